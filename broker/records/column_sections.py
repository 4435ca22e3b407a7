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

__all__ = ["DecodeOptions", "Sections", "read_sections"]

Buffer = bytes | bytearray | memoryview

_SMALLEST_RECORD: Final = 7
"""Bytes of a record without key, value and headers: one for each field."""

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
    """Plain record sections: where in `data` each starts and ends, and the header of its batch."""

    data: Buffer
    starts: Int64s
    ends: Int64s
    headers: list[BatchHeader]
    next_offset: int

    def of_batches(self, field: str) -> Int64s:
        """A field of every batch's header."""
        return np.array([getattr(header, field) for header in self.headers], np.int64)


def read_sections(chunk: Buffer, options: DecodeOptions) -> Sections:
    """The sections to decode, stopping before their plain bytes exceed `max_bytes`. Raises CorruptBatch.

    Uncompressed batches stay where they are, in `chunk`.
    """
    view = memoryview(chunk)[:_MOST_BYTES]  # beyond it is a cut tail
    most = min(options.max_bytes, _MOST_BYTES)
    transactions = AbortedTransactions(options.aborted)
    headers: list[BatchHeader] = []
    starts: list[int] = []
    plain: list[Buffer] = []
    size, next_offset, last_offset = 0, options.low, -1
    for position, header in walk_batches(view):
        if not last_offset < header.base_offset <= header.last_offset < NO_LIMIT:
            raise CorruptBatch(f"a batch of offsets {header.base_offset} to {header.last_offset} follows {last_offset}")
        if header.base_offset >= options.high:
            break
        last_offset = header.last_offset
        if last_offset >= options.low:
            verify_batch(view, position, header, check_crc=options.check_crcs)
            dropped = transactions.drops(view, position, header)  # sees control batches too
            if header.record_count and not header.is_control and not dropped:
                section = _plain_section(view, position, header, options.batch_limit)
                size += len(section)
                if size > most and headers:
                    break
                headers.append(header)
                starts.append(position + HEADER_SIZE)
                plain.append(section)
        next_offset = max(options.low, header.next_offset)
    sizes = np.array([len(section) for section in plain], np.int64)
    if all(header.codec == 0 for header in headers):
        in_place = np.array(starts, np.int64)
        return Sections(view, in_place, in_place + sizes, headers, next_offset)
    ends = np.cumsum(sizes)
    return Sections(b"".join(plain), ends - sizes, ends, headers, next_offset)


def _plain_section(view: memoryview, position: int, header: BatchHeader, limit: int) -> Buffer:
    section = decompress(header.codec, view[position + HEADER_SIZE : position + header.size], limit)
    if header.record_count > len(section) // _SMALLEST_RECORD:
        raise CorruptBatch(f"{header.record_count} records cannot fit in {len(section)} bytes")
    return section
