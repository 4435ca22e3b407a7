"""The headers of all batches in a buffer as one table of numbers, so that they are looked at column by column.

Called by column_sections.py. `batch.py` does the same batch by batch, for those who need one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

import numpy as np

from broker.errors import CorruptBatch
from broker.records import native
from broker.records.batch import HEADER_SIZE, LENGTH_END, parse_header, verify_batch
from broker.records.crc32c import crc32c
from broker.records.plain_bytes import Bools, Int64s

__all__ = ["Head", "scan_batches", "verify_batches"]


class Head(IntEnum):
    """The columns of the table, all int64; the order is that of the kernel's `POSITION`, `SIZE` …"""

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
"""Byte and type of each field, see batch.py."""

_LENGTH: Final = struct.Struct(">i")
_CHECKED_FROM: Final = 21
_LAST_CODEC: Final = 4


def scan_batches(view: memoryview) -> tuple[Int64s, int | None]:
    """A line of `Head` per whole batch of `view`; a cut one at the end is left out.

    And the position of a length that no batch can have, where the walk had to end.
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
        raise CorruptBatch(f"the batch at byte {position}")  # not reached: both ways find the same


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
