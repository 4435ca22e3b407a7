"""First step of decoding: which batches of a fetch count, and their plain record sections in one buffer.

Called by column_decoder.py. The headers of all batches become one table of numbers. Every batch that counts is checked
(magic, CRC, order of offsets) and decompressed. Control batches, aborted transactions and offsets outside the range
are skipped. Compaction chooses its batches itself and collects them with a `SectionGatherer`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LENGTH_END,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    Buffer,
    parse_header,
    verify_batch,
)
from broker.records.compression import decompress
from broker.records.control import AbortedTransactions
from broker.records.crc32c import crc32c
from broker.records.plain_bytes import Bools, Int64s


class Head(IntEnum):
    """The columns of the header table, all int64, in the order of the kernel's `POSITION`, `SIZE` …"""

    POSITION = 0
    SIZE = 1
    """bytes of the whole batch"""
    BASE_OFFSET = 2
    LAST_DELTA = 3
    COUNT = 4
    ATTRIBUTES = 5
    BASE_TIME = 6
    MAX_TIME = 7
    PRODUCER = 8
    MAGIC = 9
    CRC = 10


_FIELD_AT: Final = {
    Head.BASE_OFFSET: (0, ">i8"),
    Head.LAST_DELTA: (23, ">i4"),
    Head.COUNT: (57, ">i4"),
    Head.ATTRIBUTES: (21, ">i2"),
    Head.BASE_TIME: (27, ">i8"),
    Head.MAX_TIME: (35, ">i8"),
    Head.PRODUCER: (43, ">i8"),
    Head.MAGIC: (16, "i1"),
    Head.CRC: (17, ">u4"),
}
"""Position and type of each field, see batch.py."""

NO_LIMIT: Final = 2**63 - 1
"""An offset after every record."""

_LENGTH: Final = struct.Struct(">i")
_CHECKED_FROM: Final = 21
_LAST_CODEC: Final = 4


def scan_batches(view: memoryview) -> tuple[Int64s, int | None]:
    """A row of `Head` for each whole batch of `view`, without a cut one at the end.

    Also the position of an impossible length, where the scan ended, or None.
    """
    if native.kernel is None:
        return _scan_with_numpy(view)
    count, wrong = native.kernel.scan(view, None)
    table = np.empty((count, len(Head)), np.int64)
    native.kernel.scan(view, table)
    return table, None if wrong < 0 else wrong


def _scan_with_numpy(view: memoryview) -> tuple[Int64s, int | None]:
    positions: list[int] = []
    position, end, wrong = 0, len(view), None
    while end - position >= HEADER_SIZE:
        size = LENGTH_END + _LENGTH.unpack_from(view, position + 8)[0]
        if size < HEADER_SIZE:
            wrong = position
            break
        if size > end - position:
            break
        positions.append(position)
        position += size
    table = np.empty((len(positions), len(Head)), np.int64)
    if positions:
        table[:, Head.POSITION] = positions
        table[:, Head.SIZE] = np.diff(table[:, Head.POSITION], append=position)
        for column, (at, kind) in _FIELD_AT.items():
            everywhere = np.ndarray((end - at - np.dtype(kind).itemsize + 1,), kind, view, at, (1,))
            table[:, column] = everywhere[table[:, Head.POSITION]]
    return table, wrong


def verify_batches(view: memoryview, table: Int64s, *, check_crcs: bool) -> None:
    """Check magic, counts, codec and CRC of the batches in `table`. Raises CorruptBatch for the first bad one."""
    bad: Bools = (table[:, Head.MAGIC] != 2) | (table[:, Head.COUNT] < 0) | (table[:, Head.LAST_DELTA] < 0)
    bad |= (table[:, Head.ATTRIBUTES] & 7) > _LAST_CODEC
    index = int(bad.argmax()) if bad.any() else _first_bad_crc(view, table) if check_crcs else -1
    if index >= 0:
        position = int(table[index, Head.POSITION])
        verify_batch(view, position, parse_header(view, position))
        raise CorruptBatch(f"the batch at byte {position}")  # not reached: verify_batch finds the same


def _first_bad_crc(view: memoryview, table: Int64s) -> int:
    """Which batch has a wrong checksum, or -1."""
    if native.kernel is not None and native.crc_in_kernel():
        return native.kernel.first_bad_crc(view, np.ascontiguousarray(table))
    columns = zip(
        table[:, Head.POSITION].tolist(), table[:, Head.SIZE].tolist(), table[:, Head.CRC].tolist(), strict=True
    )
    for index, (position, size, crc) in enumerate(columns):
        if crc32c(view[position + _CHECKED_FROM : position + size]) != crc:
            return index
    return -1


_SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: one byte for each field."""

NO_TIME: Final = -(2**63)
"""The append time of a batch whose records have their own times."""

_MOST_BYTES: Final = 2**31 - 1
"""The most that Arrow's 32-bit offsets can address."""

_OF_SECTION: Final = [Head.POSITION, Head.SIZE, Head.COUNT, Head.ATTRIBUTES]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The arguments of `columns.decode_columns`."""

    fields: frozenset[str]
    low: int
    high: int
    check_crcs: bool
    aborted: Iterable[tuple[int, int]]
    max_bytes: int
    batch_limit: int


class Fact(IntEnum):
    """The columns of `Sections.facts`, all int64, in the order of the kernel's `PART`, `START` …"""

    PART = 0
    START = 1
    """of the section in its part"""
    END = 2
    COUNT = 3
    BASE_OFFSET = 4
    LAST_OFFSET = 5
    BASE_TIME = 6
    APPEND_TIME = 7
    """the batch's max timestamp if the broker set it, else NO_TIME"""


@dataclass(frozen=True, slots=True)
class Sections:
    """Plain record sections. A row of `facts` says in which of `parts` a batch is, where, and more from its header."""

    parts: list[Buffer]
    facts: Int64s
    next_offset: int

    def __len__(self) -> int:
        return len(self.facts)

    def of(self, fact: Fact) -> Int64s:
        """A fact of each section."""
        return self.facts[:, fact]

    def in_one_part(self) -> Sections:
        """The same sections in one buffer."""
        if len(self.parts) <= 1:
            return self
        before = np.cumsum([0, *(len(part) for part in self.parts[:-1])])[self.facts[:, Fact.PART]]
        facts = self.facts.copy()
        facts[:, Fact.PART] = 0
        facts[:, Fact.START] += before
        facts[:, Fact.END] += before
        return Sections([b"".join(self.parts)], facts, self.next_offset)


class SectionGatherer:
    """Collects the sections of chosen batches of one buffer. Uncompressed ones are not copied."""

    def __init__(self, view: Buffer, batch_limit: int) -> None:
        """`batch_limit` is the most decompressed bytes of one batch."""
        self._view = memoryview(view)
        self._batch_limit = batch_limit
        self._parts: list[Buffer] = []
        self._facts: list[tuple[int, ...]] = []
        self._part_of_view = -1
        self.size = 0
        """Plain bytes so far."""

    def __len__(self) -> int:
        return len(self._facts)

    def plain(self, position: int, header: BatchHeader) -> Buffer:
        """The plain section of a batch, for `add`. Raises CorruptBatch."""
        section = decompress(
            header.codec, self._view[position + HEADER_SIZE : position + header.size], self._batch_limit
        )
        if header.record_count > len(section) // _SMALLEST_RECORD:
            raise CorruptBatch(f"{header.record_count} records cannot fit in {len(section)} bytes")
        return section

    def add(self, position: int, header: BatchHeader, section: Buffer) -> None:
        if header.codec:
            part, start = len(self._parts), 0
            self._parts.append(section)
        else:
            if self._part_of_view < 0:
                self._part_of_view = len(self._parts)
                self._parts.append(self._view)
            part, start = self._part_of_view, position + HEADER_SIZE
        self._facts.append(
            (
                part,
                start,
                start + len(section),
                header.record_count,
                header.base_offset,
                header.last_offset,
                header.base_timestamp,
                header.max_timestamp if header.is_log_append_time else NO_TIME,
            )
        )
        self.size += len(section)

    def build(self, next_offset: int) -> Sections:
        """All sections that were added."""
        return Sections(self._parts, np.array(self._facts, np.int64).reshape(-1, len(Fact)), next_offset)


def read_sections(chunk: Buffer, options: DecodeOptions) -> Sections:
    """The sections to decode, stopping before their plain bytes exceed `max_bytes`. Raises CorruptBatch."""
    view = memoryview(chunk)[:_MOST_BYTES]  # the rest counts as a cut tail
    table = _batches_in_order(view, options.high)
    last_offset = table[:, Head.BASE_OFFSET] + table[:, Head.LAST_DELTA]
    control = (table[:, Head.ATTRIBUTES] & CONTROL_BIT) != 0
    seen = (last_offset >= options.low) | control  # a marker before `low` ends a transaction too
    verify_batches(view, table if seen.all() else table[seen], check_crcs=options.check_crcs)
    wanted = seen & ~control & (table[:, Head.COUNT] > 0)
    aborted = list(options.aborted)
    if aborted:
        wanted &= ~_dropped(view, table, seen, AbortedTransactions(aborted))
    index = np.flatnonzero(wanted)
    gather = _gather_compressed if (table[index, Head.ATTRIBUTES] & CODEC_MASK).any() else _gather_plain
    parts, facts = gather(view, table[index], options)
    read = len(table) if len(facts) == len(index) else int(index[len(facts)])
    next_offset = max(options.low, int(last_offset[read - 1]) + 1) if read else options.low
    return Sections(parts, facts, next_offset)


def _batches_in_order(view: memoryview, high: int) -> Int64s:
    """The table of the batches that begin before `high`. Raises CorruptBatch when their offsets do not rise."""
    table, wrong = scan_batches(view)
    base_offset = table[:, Head.BASE_OFFSET]
    last_offset = base_offset + table[:, Head.LAST_DELTA]
    before = np.concatenate((np.array([-1]), last_offset[:-1]))
    in_order = (before < base_offset) & (base_offset <= last_offset) & (last_offset < NO_LIMIT)
    past_high = np.flatnonzero(base_offset >= high)
    stop = int(past_high[0]) if len(past_high) else len(table)
    if not in_order[: stop + 1].all():
        index = int(in_order.argmin())
        raise CorruptBatch(f"a batch of offsets {base_offset[index]} to {last_offset[index]} follows {before[index]}")
    if stop == len(table) and wrong is not None:
        raise CorruptBatch(f"no batch can have the length at byte {wrong}")
    return table[:stop]


def _dropped(view: memoryview, table: Int64s, seen: Bools, transactions: AbortedTransactions) -> Bools:
    dropped = np.zeros(len(table), np.bool_)
    for index in np.flatnonzero(seen).tolist():
        position = int(table[index, Head.POSITION])
        dropped[index] = transactions.drops(view, position, parse_header(view, position))
    return dropped


def _gather_plain(view: memoryview, table: Int64s, options: DecodeOptions) -> tuple[list[Buffer], Int64s]:
    """Parts and facts of uncompressed batches, without a copy."""
    size = table[:, Head.SIZE] - HEADER_SIZE
    if (table[:, Head.COUNT] > size // _SMALLEST_RECORD).any():
        raise CorruptBatch("more records than a batch has room for")
    fitting = int(np.searchsorted(np.cumsum(size), _most_bytes(options), "right"))
    facts = _facts(table[: max(fitting, 1)])
    return [view], facts


def _gather_compressed(view: memoryview, table: Int64s, options: DecodeOptions) -> tuple[list[Buffer], Int64s]:
    """Parts and facts of batches some of which are compressed: each batch is a part."""
    parts: list[Buffer] = []
    total, most = 0, _most_bytes(options)
    for position, size, count, attributes in table[:, _OF_SECTION].tolist():
        section = decompress(
            attributes & CODEC_MASK, view[position + HEADER_SIZE : position + size], options.batch_limit
        )
        if count > len(section) // _SMALLEST_RECORD:
            raise CorruptBatch(f"{count} records cannot fit in {len(section)} bytes")
        total += len(section)
        if total > most and parts:
            break
        parts.append(section)
    facts = _facts(table[: len(parts)])
    facts[:, Fact.PART] = np.arange(len(parts))
    facts[:, Fact.START] = 0
    facts[:, Fact.END] = [len(part) for part in parts]
    return parts, facts


def _facts(table: Int64s) -> Int64s:
    """The facts of batches whose sections are in the chunk itself."""
    facts = np.empty((len(table), len(Fact)), np.int64)
    facts[:, Fact.PART] = 0
    facts[:, Fact.START] = table[:, Head.POSITION] + HEADER_SIZE
    facts[:, Fact.END] = table[:, Head.POSITION] + table[:, Head.SIZE]
    facts[:, Fact.COUNT] = table[:, Head.COUNT]
    facts[:, Fact.BASE_OFFSET] = table[:, Head.BASE_OFFSET]
    facts[:, Fact.LAST_OFFSET] = table[:, Head.BASE_OFFSET] + table[:, Head.LAST_DELTA]
    facts[:, Fact.BASE_TIME] = table[:, Head.BASE_TIME]
    by_broker = (table[:, Head.ATTRIBUTES] & TIMESTAMP_TYPE_BIT) != 0
    facts[:, Fact.APPEND_TIME] = np.where(by_broker, table[:, Head.MAX_TIME], NO_TIME)
    return facts


def _most_bytes(options: DecodeOptions) -> int:
    return min(options.max_bytes, _MOST_BYTES)
