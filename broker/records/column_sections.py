"""First step of decoding: which batches of a fetch count, and their plain record sections in one buffer.

Called by columns_decode.py. Checks every batch it lets through (magic, CRC, order of offsets) and
decompresses it; what the caller cannot want (control batches, aborted transactions, offsets outside
the range) is stepped over.
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

__all__ = ["NO_TIME", "DecodeOptions", "Sections", "read_sections"]

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

    headers: bool
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


def read_sections(chunk: Buffer, options: DecodeOptions) -> Sections:
    """The sections to decode, stopping before their plain bytes exceed `max_bytes`. Raises CorruptBatch.

    Uncompressed batches stay where they are, in `chunk`.
    """
    view = memoryview(chunk)[:_MOST_BYTES]  # beyond it is a cut tail
    most = min(options.max_bytes, _MOST_BYTES)
    transactions = AbortedTransactions(options.aborted)
    plain: list[Buffer] = []
    facts: list[tuple[int, ...]] = []
    codecs = 0
    size, next_offset, last_offset = 0, options.low, -1
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
                section = _plain_section(view, position, header, options.batch_limit)
                size += len(section)
                if size > most and plain:
                    break
                plain.append(section)
                facts.append(_facts(position, header, last_offset))
                codecs |= header.codec
        next_offset = max(options.low, last_offset + 1)
    return _lay_out(view, facts, plain, compressed=codecs != 0, next_offset=next_offset)


def _facts(position: int, header: BatchHeader, last_offset: int) -> tuple[int, ...]:
    """Where the section starts in the chunk, then the fields of `Sections` from `record_count` on."""
    append_time = header.max_timestamp if header.is_log_append_time else NO_TIME
    first = position + HEADER_SIZE
    return first, header.record_count, header.base_offset, last_offset, header.base_timestamp, append_time


def _lay_out(
    view: memoryview, facts: list[tuple[int, ...]], plain: list[Buffer], *, compressed: bool, next_offset: int
) -> Sections:
    start, count, base_offset, last_offset, base_timestamp, append_time = np.array(facts, np.int64).reshape(-1, 6).T
    size = np.array([len(section) for section in plain], np.int64)
    end = np.cumsum(size) if compressed else start + size
    return Sections(
        data=b"".join(plain) if compressed else view,
        start=end - size,
        end=end,
        record_count=count,
        base_offset=base_offset,
        last_offset=last_offset,
        base_timestamp=base_timestamp,
        append_time=append_time,
        next_offset=next_offset,
    )


def _plain_section(view: memoryview, position: int, header: BatchHeader, limit: int) -> Buffer:
    section = decompress(header.codec, view[position + HEADER_SIZE : position + header.size], limit)
    if header.record_count > len(section) // _SMALLEST_RECORD:
        raise CorruptBatch(f"{header.record_count} records cannot fit in {len(section)} bytes")
    return section
