"""Second step of decoding: where each record's key, value and headers are, and its numbers.

Called by column_decoder.py and by compaction. One vectorised pass per field over all records of all batches. Every
length is checked against the end of its record before it is followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptBatch
from broker.records.plain_bytes import Bools, Int64s, PlainBytes
from broker.records.record_sections import NO_TIME, Fact, Sections
from broker.records.varint import read_unsigned_varint


@dataclass(frozen=True, slots=True)
class Span:
    """One byte range for each row; empty where `null`."""

    start: Int64s
    end: Int64s
    null: Bools

    def select(self, rows: Int64s) -> Span:
        return Span(self.start[rows], self.end[rows], self.null[rows])


@dataclass(frozen=True, slots=True)
class Fields:
    """One row for each record. Its headers are between the end of its value and `end`."""

    offset: Int64s
    timestamp: Int64s
    timestamp_type: npt.NDArray[np.int32]
    key: Span
    value: Span
    end: Int64s

    def select(self, rows: Int64s) -> Fields:
        return Fields(
            self.offset[rows],
            self.timestamp[rows],
            self.timestamp_type[rows],
            self.key.select(rows),
            self.value.select(rows),
            self.end[rows],
        )


@dataclass(frozen=True, slots=True)
class HeaderFields:
    """One row for each header, in the order of the records; `count` for each record."""

    count: Int64s
    key: Span
    value: Span


def read_fields(plain: PlainBytes, sections: Sections) -> Fields:
    """Locate all records of `sections`. Raises CorruptBatch, or IndexError where a length leaves the data."""
    starts = record_starts(plain, sections.of(Fact.START), sections.of(Fact.COUNT))
    length, at = plain.varints(starts)
    end = at + length
    if (end[np.cumsum(sections.of(Fact.COUNT)) - 1] != sections.of(Fact.END)).any():
        raise CorruptBatch("the last record of a batch does not end with it")
    timestamp_delta, at = plain.varints(at + 1)  # after the attributes
    offset_delta, at = plain.varints(at)
    key = _read_span(plain, at, end)
    value = _read_span(plain, key.end, end)
    if (value.end >= end).any():
        raise CorruptBatch("a record has no room for a header count")
    if (value.end + 1 != end)[plain.bytes[value.end] == 0].any():
        raise CorruptBatch("a record without headers does not end with its value")
    timestamp, timestamp_type = _timestamps(timestamp_delta, sections)
    return Fields(_offsets(offset_delta, sections), timestamp, timestamp_type, key, value, end)


def _read_span(plain: PlainBytes, at: Int64s, end: Int64s) -> Span:
    """A length (-1 for null) and as many bytes, which must end before `end`."""
    length, start = plain.varints(at)
    if (length < -1).any() or (length > end - start).any():
        raise CorruptBatch("a key or value is longer than its record, or its length is negative")
    return Span(start, start + np.maximum(length, 0), length < 0)


def _offsets(delta: Int64s, sections: Sections) -> Int64s:
    """All offsets must rise, because the batches are in order (see `read_sections`)."""
    base, counts = sections.of(Fact.BASE_OFFSET), sections.of(Fact.COUNT)
    offset: Int64s = np.repeat(base, counts)
    offset += delta
    last = np.cumsum(counts) - 1
    first = last + 1 - counts
    inside = (offset[first] >= base).all() and (offset[last] <= sections.of(Fact.LAST_OFFSET)).all()
    if not inside or (offset[1:] <= offset[:-1]).any():
        raise CorruptBatch("the offsets of a batch do not rise, or leave it")
    return offset


def _timestamps(delta: Int64s, sections: Sections) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """The record's own time or, with LogAppendTime, the broker's time in the batch header."""
    counts = sections.of(Fact.COUNT)
    base = np.repeat(sections.of(Fact.BASE_TIME), counts)
    timestamp = base + delta
    overflow = ((base ^ timestamp) & (delta ^ timestamp)) < 0
    stamped = sections.of(Fact.APPEND_TIME) != NO_TIME
    if stamped.any():
        by_broker = np.repeat(stamped, counts)
        timestamp = np.where(by_broker, np.repeat(sections.of(Fact.APPEND_TIME), counts), timestamp)
        overflow &= ~by_broker
    if overflow.any():
        raise CorruptBatch("a timestamp does not fit in 64 bits")
    return timestamp, np.repeat(stamped.astype(np.int32), counts)


def read_header_fields(plain: PlainBytes, fields: Fields) -> HeaderFields:
    """Locate the headers: the first ones of all records at once, then the second ones, and so on.

    Raises CorruptBatch, or IndexError where a length leaves the data.
    """
    count, at = plain.varints(fields.value.end)
    if (count < 0).any() or (count > (fields.end - at) // 2).any():
        raise CorruptBatch("a record has more headers than bytes for them")
    total = int(count.sum())
    first = np.cumsum(count) - count
    key = Span(np.empty(total, np.int64), np.empty(total, np.int64), np.zeros(total, np.bool_))
    value = Span(np.empty(total, np.int64), np.empty(total, np.int64), np.zeros(total, np.bool_))
    rows = np.flatnonzero(count)
    step = 0
    while len(rows):
        end, out = fields.end[rows], first[rows] + step
        one_key = _read_span(plain, at[rows], end)
        one_value = _read_span(plain, one_key.end, end)
        if one_key.null.any():
            raise CorruptBatch("a header without a key")
        for span, one in ((key, one_key), (value, one_value)):
            span.start[out], span.end[out], span.null[out] = one.start, one.end, one.null
        at[rows] = one_value.end
        step += 1
        rows = rows[count[rows] > step]
    if (at != fields.end).any():
        raise CorruptBatch("a record's headers do not end with it")
    return HeaderFields(count, key, value)


_FEWEST_IN_STEP: Final = 40
"""With fewer batches a plain loop is faster (measured: 150 ns for a record, ~6 us for a step)."""


def _advance_table() -> Int64s:
    """Bytes from a record to the next, by its first two bytes; 0 if these do not hold the length or it is negative."""
    pair = np.arange(1 << 16, dtype=np.int64)
    first, second = pair & 0xFF, pair >> 8
    one_byte = first < 0x80
    number = np.where(one_byte, first, (first & 0x7F) | second << 7)
    known = (one_byte | (second < 0x80)) & (number & 1 == 0)
    return np.where(known, (number >> 1) + np.where(one_byte, 1, 2), 0)


_ADVANCE = _advance_table()


def record_starts(plain: PlainBytes, section_starts: Int64s, counts: Int64s) -> Int64s:
    """The position of each record, batch after batch.

    A record's place follows from the length of the one before, which cannot be vectorised within a batch. But batches
    are independent, so the first records of all batches are found in one numpy step, then the second ones, and so on.
    With too few batches left, a plain loop does the rest. Wrong lengths may lead out of the batch; the caller checks
    where the last record ends. Raises CorruptBatch for a negative length, IndexError for one that leaves the data.
    """
    first_rows = np.cumsum(counts) - counts
    out = np.empty(int(counts.sum()), np.int64)
    order = np.argsort(-counts, kind="stable")  # most records first: the unfinished batches are a prefix
    counts, position, row = counts[order], section_starts[order], first_rows[order]
    steps = int(counts[_FEWEST_IN_STEP - 1]) if len(counts) >= _FEWEST_IN_STEP else 0
    if steps:
        _walk_in_step(plain, position, row, np.searchsorted(-counts, -np.arange(steps), "left"), out)
    for index in np.flatnonzero(counts > steps).tolist():
        begin = int(row[index]) + steps
        left = int(counts[index]) - steps
        out[begin : begin + left] = _walk_alone(plain, int(position[index]), left)
    return out


def _walk_in_step(plain: PlainBytes, position: Int64s, row: Int64s, alive_at: Int64s, out: Int64s) -> None:
    """Find `len(alive_at)` records of each batch, or all it has, and move `position` after them."""
    pairs, advance = plain.pairs, _ADVANCE
    current = position.copy()
    for step, alive in enumerate(alive_at.tolist()):
        if alive < len(current):
            position[: len(current)] = current
            current, row = current[:alive], row[:alive]
        out[row + step] = current
        way = advance[pairs[current]]
        if not way.all():
            unknown = np.flatnonzero(way == 0)
            length, body = plain.varints(current[unknown])
            if length.min() <= 0 or length.max() > plain.size:
                raise CorruptBatch("a record's length is negative or beyond its batch")
            way[unknown] = body - current[unknown] + length
        current = current + way
    position[: len(current)] = current


def _walk_alone(plain: PlainBytes, position: int, count: int) -> list[int]:
    """Find `count` records of one batch."""
    data = plain.data
    starts: list[int] = []
    append = starts.append
    for _ in range(count):
        append(position)
        number = data[position]
        if number < 0x80:
            position += 1
        elif data[position + 1] < 0x80:
            number = number & 0x7F | data[position + 1] << 7
            position += 2
        else:
            number, position = read_unsigned_varint(data, position)
        if number & 1:
            raise CorruptBatch(f"a record's length is negative, before byte {position} of its batch")
        position += number >> 1
    return starts
