"""First step of decoding: which batches of a fetch count, and their plain record sections in one buffer.

Called by column_decoder.py. The headers of all batches become one table of numbers. Every batch that counts is checked
(magic, CRC, order of offsets) and decompressed. Control batches, aborted transactions and offsets outside the range
are skipped.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    Buffer,
    parse_header,
    verify_batch,
    walk_batches,
)
from broker.records.compression import decompress
from broker.records.control import AbortedTransactions
from broker.records.record import NO_TIME

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


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


NO_LIMIT: Final = 2**63 - 1
"""An offset after every record."""

_LAST_CODEC: Final = 4


def scan_batches(view: memoryview) -> tuple[Int64s, int | None]:
    """A row of `Head` for each whole batch of `view`, without a cut one at the end.

    Also the position of an impossible length, where the scan ended, or None.
    """
    if native.kernel is None:
        return _scan_plainly(view)
    count, wrong, _ = native.kernel.scan(view, None)
    table = np.empty((count, len(Head)), np.int64)
    native.kernel.scan(view, table)
    return table, None if wrong < 0 else wrong


def _scan_plainly(view: memoryview) -> tuple[Int64s, int | None]:
    rows: list[tuple[int, ...]] = []
    end, wrong = 0, None
    try:
        for position, h in walk_batches(view):
            end = position + h.size
            offsets, times = (h.base_offset, h.last_offset_delta), (h.base_timestamp, h.max_timestamp)
            rest = h.record_count, h.attributes, *times, h.producer_id, h.magic, h.crc
            rows.append((position, h.size, *offsets, *rest))
    except CorruptBatch:
        wrong = end
    return np.array(rows, np.int64).reshape(-1, len(Head)), wrong


def verify_batches(view: memoryview, table: Int64s, *, check_crcs: bool) -> None:
    """Check magic, counts, codec and CRC of the batches in `table`. Raises CorruptBatch for the first bad one."""
    bad: Bools = (table[:, Head.MAGIC] != 2) | (table[:, Head.COUNT] < 0) | (table[:, Head.LAST_DELTA] < 0)
    bad |= (table[:, Head.ATTRIBUTES] & CODEC_MASK) > _LAST_CODEC
    suspects = table[bad]
    if check_crcs and not len(suspects):
        suspects = table
        if native.kernel is not None and native.crc_in_kernel():
            index = native.kernel.first_bad_crc(view, np.ascontiguousarray(table))
            suspects = table[index : index + 1] if index >= 0 else table[:0]
    for position in suspects[:, Head.POSITION].tolist():
        verify_batch(view, position, parse_header(view, position))


_SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: one byte for each field."""

_MOST_BYTES: Final = 2**31 - 1
"""The most that Arrow's 32-bit offsets can address."""

_OF_SECTION: Final = [Head.POSITION, Head.SIZE, Head.COUNT, Head.ATTRIBUTES]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    fields: frozenset[str]
    low: int
    high: int
    check_crcs: bool
    aborted: Collection[tuple[int, int]]
    max_bytes: int
    batch_limit: int
    consume: bool


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
    exhausted: bool
    """whether all batches of the range were read"""

    def __len__(self) -> int:
        return len(self.facts)

    def of(self, fact: Fact) -> Int64s:
        """A fact of each section."""
        return self.facts[:, fact]


def read_sections(chunk: Buffer, options: DecodeOptions) -> Sections:
    """The sections to decode, stopping before their plain bytes exceed `max_bytes`. Raises CorruptBatch."""
    view = memoryview(chunk)[:_MOST_BYTES]  # the rest counts as a cut tail
    table = _batches_in_order(view, options.high)
    last_offset = table[:, Head.BASE_OFFSET] + table[:, Head.LAST_DELTA]
    control = (table[:, Head.ATTRIBUTES] & CONTROL_BIT) != 0
    seen = (last_offset >= options.low) | control  # a marker before `low` ends a transaction too
    verify_batches(view, table if seen.all() else table[seen], check_crcs=options.check_crcs)
    wanted = seen & ~control & (table[:, Head.COUNT] > 0)
    if options.aborted:
        wanted &= ~_dropped(view, table, seen, AbortedTransactions(options.aborted))
    index = np.flatnonzero(wanted)
    gather = _gather_compressed if (table[index, Head.ATTRIBUTES] & CODEC_MASK).any() else _gather_plain
    parts, facts = gather(view, table[index], options)
    exhausted = len(facts) == len(index)
    read = len(table) if exhausted else int(index[len(facts)])
    next_offset = max(options.low, int(last_offset[read - 1]) + 1) if read else options.low
    return Sections(parts, facts, next_offset, exhausted)


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
