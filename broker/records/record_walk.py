"""The check of a batch's records without the kernel, with numpy for the records that are whole in a piece.

Made by record_check.py, which documents the rules. A plain loop finds where the records of a piece start, then numpy
checks all of them at once. Records across two pieces, and records that numpy cannot judge, are checked one by one.
`feed` returns how much slower that was than the kernel, so that the broker can continue in a thread.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Final

import numpy as np

from broker.errors import CorruptBatch
from broker.records.batch import NO_TIMESTAMP, BatchHeader, Buffer
from broker.records.plain_bytes import Bools, Int64s, PlainBytes
from broker.records.record_rules import MOST_FAULTS, Fault, RecordRules
from broker.records.varint import MAX_VARINT_BYTES

_INT_BYTES: Final = 5
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
_TOO_LONG: Final = "a number in it is too long"

_FEWEST_AT_ONCE: Final = 12
"""Fewer records are checked one by one (measured: 8 us for a record, 100 us for numpy's calls)."""
_FEWEST_WITH_HEADERS: Final = 4
"""The same for records of a piece that have another header."""

# Costs, as the number of bytes that the kernel checks in that time, about 1 ns for each.
_COST_AT_ONCE: Final = 300
"""Of a record that is checked together with others."""
_COST_OF_HEADERS: Final = 30_000
"""Of the check of one header of all records that have so many."""
_COST_IN_STEPS: Final = 6000
"""Of a record that is checked alone."""


class RecordWalk:
    """Call `feed` with the plain section. Raises ValueError for an error in the record at `index`."""

    def __init__(self, header: BatchHeader, rules: RecordRules) -> None:
        self._count, self._base_time, self._rules = header.record_count, header.base_timestamp, rules
        self.index, self.newest, self.fault_count = 0, NO_TIMESTAMP, 0
        self.faults: list[Fault] = []
        self._piece, self._at = b"", 0
        self._before = 0  # bytes of the pieces before this one
        self._cost = 0
        self._steps = self._all_records()
        next(self._steps)

    def feed(self, piece: Buffer) -> int:
        """Returns the cost, as the number of bytes that the kernel checks in that time."""
        self._cost = 0
        self._steps.send(piece)
        return self._cost

    def _all_records(self) -> Generator[None, Buffer, None]:
        yield from self._more()
        while self.index < self._count:
            yield from self._whole_records()
            if self.index < self._count:
                yield from self._one_record()
        while self._at == len(self._piece):
            yield from self._more()
        raise ValueError("bytes follow the last of them")

    def _more(self) -> Generator[None, Buffer, None]:
        self._before += len(self._piece)
        self._piece = bytes((yield))
        self._at = 0

    def _whole_records(self) -> Generator[None, Buffer, None]:
        """Check the records that are whole in the piece."""
        starts = self._starts()
        if len(starts) < _FEWEST_AT_ONCE:
            for _ in starts:
                yield from self._one_record()
            return
        look = _Look(self._piece, starts, self.index, self._base_time)
        self._cost += look.cost
        begin = 0
        for place in np.flatnonzero(~look.good).tolist():
            self._take_all(look, begin, place)
            self._at, begin = starts[place], place + 1
            yield from self._one_record()
        self._take_all(look, begin, len(starts))
        self._at = int(look.end[-1])

    def _starts(self) -> list[int]:
        """Where the whole records of the piece start, according to their lengths."""
        piece, size, at = self._piece, len(self._piece), self._at
        starts: list[int] = []
        append = starts.append
        try:
            for _ in range(self._count - self.index):
                number, end = piece[at], at + 1
                if number > 0x7F:
                    number, shift = number & 0x7F, 7
                    while (byte := piece[end]) > 0x7F and shift < 7 * (_INT_BYTES - 1):
                        number |= (byte & 0x7F) << shift
                        end, shift = end + 1, shift + 7
                    number, end = number | byte << shift, end + 1
                end += number >> 1
                if number & 1 or end > size:
                    break
                append(at)
                at = end
        except IndexError:
            pass
        return starts

    def _take_all(self, look: _Look, begin: int, end: int) -> None:
        """Count the good records [begin, end) of the piece."""
        if begin == end:
            return
        times, rules = look.times[begin:end], self._rules
        age = rules.now_ms - times  # wraps as in Java
        forbidden = (times != NO_TIMESTAMP) & ((age > rules.before_max_ms) | (age < -rules.after_max_ms))
        keyless = ~look.has_key[begin:end] if rules.needs_key else np.zeros(len(times), np.bool_)
        wrong = np.flatnonzero(forbidden | keyless)
        for place in wrong[: MOST_FAULTS - len(self.faults)].tolist():
            self.faults.append(Fault(self.index + place, None if keyless[place] else int(times[place])))
        self.fault_count += len(wrong)
        self.newest = max(self.newest, int(times.max()))
        self.index += end - begin

    def _one_record(self) -> Generator[None, Buffer, None]:
        """Check one record, which may span pieces."""
        self._cost += _COST_IN_STEPS
        length = yield from self._number(_INT_BYTES, sys.maxsize)
        if length < 1:
            raise ValueError("its length is not above 0")
        end = self._before + self._at + length
        yield from self._skip(1)  # attributes
        time = self._base_time + (yield from self._number(MAX_VARINT_BYTES, end))
        if not _LOWEST <= time <= _HIGHEST:
            raise ValueError("its timestamp does not fit in 64 bits")
        if (yield from self._number(_INT_BYTES, end)) != self.index:
            raise ValueError("its offset delta is not its place in the batch")
        has_key = yield from self._bytes("its key is longer than it is, or of negative length", end)
        yield from self._bytes("its value is longer than it is, or of negative length", end)
        headers = yield from self._number(_INT_BYTES, end)
        if not 0 <= headers <= (end - self._before - self._at) // 2:
            raise ValueError("it has more headers than bytes for them, or fewer than none")
        self._cost += _COST_IN_STEPS // 4 * headers
        for _ in range(headers):
            wrong = "the key of a header is longer than the record, or of negative length"
            if not (yield from self._bytes(wrong, end)):
                raise ValueError(wrong)
            yield from self._bytes("the value of a header is longer than the record, or of negative length", end)
        if self._before + self._at != end:
            raise ValueError("it does not end where its length says")
        self._take(time, has_key)

    def _number(self, most_bytes: int, end: int) -> Generator[None, Buffer, int]:
        """A zigzag varint that ends before `end`."""
        number = 0
        for shift in range(0, 7 * most_bytes, 7):
            if self._before + self._at >= end:
                raise ValueError("it ends within a field")
            while self._at == len(self._piece):
                yield from self._more()
            byte = self._piece[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                number &= 2**64 - 1
                return (number >> 1) ^ -(number & 1)
        raise ValueError(_TOO_LONG)

    def _bytes(self, wrong: str, end: int) -> Generator[None, Buffer, bool]:
        """Skip a length and as many bytes; returns False for null (-1)."""
        length = yield from self._number(_INT_BYTES, end)
        if not -1 <= length <= end - self._before - self._at:
            raise ValueError(wrong)
        yield from self._skip(max(length, 0))
        return length >= 0

    def _skip(self, count: int) -> Generator[None, Buffer, None]:
        while count > len(self._piece) - self._at:
            count -= len(self._piece) - self._at
            yield from self._more()
        self._at += count

    def _take(self, time: int, has_key: bool) -> None:
        rules = self._rules
        fault = None
        if rules.needs_key and not has_key:
            fault = Fault(self.index, None)
        elif rules.forbid(time):
            fault = Fault(self.index, time)
        if fault is not None:
            self.fault_count += 1
            if len(self.faults) < MOST_FAULTS:
                self.faults.append(fault)
        self.newest = max(self.newest, time)
        self.index += 1


class _Look:
    """A check of all records at `starts` at once. `good` marks those that are certainly well-formed."""

    def __init__(self, piece: bytes, starts: list[int], first_place: int, base_time: int) -> None:
        self._plain = PlainBytes(piece)
        start = np.array(starts, np.int64)
        self.cost = _COST_AT_ONCE * len(starts)
        self.good: Bools = np.ones(len(starts), np.bool_)
        self.times: Int64s = start
        self.has_key: Bools = self.good
        try:
            length, at = self._plain.varints(start)
            self.end = at + length
            self._read(at + 1, first_place, base_time)  # after the attributes
        except CorruptBatch:  # some varint is too long
            self.good[:] = False

    def _read(self, at: Int64s, first_place: int, base_time: int) -> None:
        every = slice(None)
        delta, at = self._numbers(at, every, MAX_VARINT_BYTES)
        self.times = base_time + delta
        self.good &= ((base_time ^ self.times) & (delta ^ self.times)) >= 0  # else it has wrapped
        place, at = self._numbers(at, every)
        self.good &= place == np.arange(first_place, first_place + len(at))
        key, at = self._spans(at, every)
        self.has_key = key >= 0
        _, at = self._spans(at, every)
        headers, at = self._numbers(at, every)
        self.good &= (headers >= 0) & (headers <= (self.end - at) // 2)
        rows = np.flatnonzero(self.good & (headers > 0))
        while len(rows) >= _FEWEST_WITH_HEADERS:
            self.cost += _COST_OF_HEADERS + _COST_AT_ONCE // 2 * len(rows)
            name, after = self._spans(at[rows], rows)
            self.good[rows] &= name >= 0
            _, at[rows] = self._spans(after, rows)
            headers[rows] -= 1
            rows = rows[self.good[rows] & (headers[rows] > 0)]
        self.good &= (headers == 0) & (at == self.end)

    def _numbers(self, at: Int64s, rows: slice | Int64s, most_bytes: int = _INT_BYTES) -> tuple[Int64s, Int64s]:
        """The varint at `at` in each of the rows, and where it ends."""
        end = self.end[rows]
        number, after = self._plain.varints(np.minimum(at, end - 1))
        self.good[rows] &= (at < end) & (after <= end) & (after - at <= most_bytes)
        return number, after

    def _spans(self, at: Int64s, rows: slice | Int64s) -> tuple[Int64s, Int64s]:
        """The length at `at` (-1 for null) in each of the rows, and where as many bytes end."""
        length, after = self._numbers(at, rows)
        fits = (length >= -1) & (length <= self.end[rows] - after)
        self.good[rows] &= fits
        return length, after + np.where(fits, np.maximum(length, 0), 0)
