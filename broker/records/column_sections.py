"""First step of decoding: which batches of a fetch count, and their plain record sections in one buffer.

Called by columns_decode.py. Checks every batch it lets through (magic, CRC, order of offsets) and
decompresses it; what the caller cannot want (control batches, aborted transactions, offsets outside
the range) is stepped over. Compaction chooses its batches itself and gathers them in a `SectionGatherer`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, BatchHeader, verify_batch, walk_batches
from broker.records.column_types import NO_LIMIT
from broker.records.compression import decompress
from broker.records.control import AbortedTransactions
from broker.records.varint_arrays import Int64s

__all__ = ["NO_TIME", "DecodeOptions", "SectionGatherer", "Sections", "read_sections"]

Buffer = bytes | bytearray | memoryview

_SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: one for each field."""

NO_TIME: Final = -(2**63)
"""Stands for the append time of a batch whose records keep their own."""

_MOST_BYTES: Final = 2**31 - 1
"""What Arrow's 32-bit offsets can address."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """The arguments of `columns.decode_columns`, described there."""

    fields: frozenset[str]
    low: int
    high: int
    check_crcs: bool
    aborted: Iterable[tuple[int, int]]
    max_bytes: int
    batch_limit: int


@dataclass(frozen=True, slots=True)
class Sections:
    """Plain record sections, one row per batch: where in `data` each starts and ends, and facts of its header."""

    data: Buffer
    start: Int64s
    end: Int64s
    record_count: Int64s
    base_offset: Int64s
    last_offset: Int64s
    base_timestamp: Int64s
    append_time: Int64s
    """max timestamp of the batch if the broker set it, else NO_TIME"""
    next_offset: int


class SectionGatherer:
    """Sections of chosen batches of one buffer, batch by batch. Uncompressed ones stay where they are in it."""

    def __init__(self, view: Buffer, batch_limit: int) -> None:
        """`batch_limit` bounds what one batch may grow to, bytes."""
        self._view = memoryview(view)
        self._batch_limit = batch_limit
        self._plain: list[Buffer] = []
        self._facts: list[tuple[int, ...]] = []
        self._codecs = 0
        self.size = 0
        """Plain bytes so far."""

    def __len__(self) -> int:
        return len(self._plain)

    def plain(self, position: int, header: BatchHeader) -> Buffer:
        """The plain section of a batch, for `add`. Raises CorruptBatch."""
        section = decompress(
            header.codec, self._view[position + HEADER_SIZE : position + header.size], self._batch_limit
        )
        if header.record_count > len(section) // _SMALLEST_RECORD:
            raise CorruptBatch(f"{header.record_count} records cannot fit in {len(section)} bytes")
        return section

    def add(self, position: int, header: BatchHeader, section: Buffer) -> None:
        self._plain.append(section)
        self._facts.append(_facts(position, header))
        self._codecs |= header.codec
        self.size += len(section)

    def build(self, next_offset: int) -> Sections:
        """All that was added; `next_offset` is only passed on."""
        start, count, base_offset, last_offset, base_timestamp, append_time = (
            np.array(self._facts, np.int64).reshape(-1, 6).T
        )
        size = np.array([len(section) for section in self._plain], np.int64)
        compressed = self._codecs != 0
        end = np.cumsum(size) if compressed else start + size
        return Sections(
            data=b"".join(self._plain) if compressed else self._view,
            start=end - size,
            end=end,
            record_count=count,
            base_offset=base_offset,
            last_offset=last_offset,
            base_timestamp=base_timestamp,
            append_time=append_time,
            next_offset=next_offset,
        )


def read_sections(chunk: Buffer, options: DecodeOptions) -> Sections:
    """The sections to decode, stopping before their plain bytes exceed `max_bytes`. Raises CorruptBatch."""
    view = memoryview(chunk)[:_MOST_BYTES]  # beyond it is a cut tail
    most = min(options.max_bytes, _MOST_BYTES)
    transactions = AbortedTransactions(options.aborted)
    gathered = SectionGatherer(view, options.batch_limit)
    next_offset, last_offset = options.low, -1
    for position, header in walk_batches(view):
        if not last_offset < header.base_offset <= header.last_offset < NO_LIMIT:
            raise CorruptBatch(f"a batch of offsets {header.base_offset} to {header.last_offset} follows {last_offset}")
        if header.base_offset >= options.high:
            break
        last_offset = header.last_offset
        if last_offset >= options.low or header.is_control:  # a marker before `low` ends a transaction too
            verify_batch(view, position, header, check_crc=options.check_crcs)
            dropped = transactions.drops(view, position, header)
            if header.record_count and not header.is_control and not dropped:
                section = gathered.plain(position, header)
                if gathered.size + len(section) > most and len(gathered):
                    break
                gathered.add(position, header, section)
        next_offset = max(options.low, last_offset + 1)
    return gathered.build(next_offset)


def _facts(position: int, header: BatchHeader) -> tuple[int, ...]:
    """Where the section starts in the chunk, then the fields of `Sections` from `record_count` on."""
    append_time = header.max_timestamp if header.is_log_append_time else NO_TIME
    return (
        position + HEADER_SIZE,
        header.record_count,
        header.base_offset,
        header.last_offset,
        header.base_timestamp,
        append_time,
    )
