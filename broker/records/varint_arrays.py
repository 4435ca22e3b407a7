"""Zigzag varints, thousands at a time, with numpy: the vectorised twin of varint.py.

`varint_size` and `PrefixBuilder` write them for columns_encode.py; plain_bytes.py reads them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.records.plain_bytes import Bools, Int64s, UInt64s
from broker.records.varint import MAX_VARINT_BYTES

__all__ = ["PrefixBuilder", "binary_array", "varint_size", "zigzag"]

Buffer = bytes | bytearray | memoryview


def zigzag(value: Int64s) -> UInt64s:
    """0, -1, 1, -2 … as 0, 1, 2, 3 …"""
    return ((value << 1) ^ (value >> 63)).view(np.uint64)


def varint_size(number: UInt64s) -> Int64s:
    """Bytes that each zigzagged number takes."""
    size = np.ones(len(number), np.int64)
    largest = int(number.max(initial=0))
    for shift in range(7, 7 * MAX_VARINT_BYTES, 7):
        if largest >> shift == 0:
            break
        size += number >= np.uint64(1 << shift)
    return size


class PrefixBuilder:
    """A run of varints and single bytes per row, built column by column into one binary array."""

    def __init__(self) -> None:
        self._columns: list[npt.NDArray[np.uint8]] = []
        self._present: list[Bools | None] = []

    def zeros(self, count: int) -> None:
        """Add a zero byte to each of `count` rows."""
        self._columns.append(np.zeros(count, np.uint8))
        self._present.append(None)

    def varints(self, number: UInt64s) -> None:
        """Add a zigzagged number to each row."""
        largest = int(number.max(initial=0))
        present: Bools | None = None
        while True:
            byte = (number & np.uint64(0x7F)).astype(np.uint8)
            self._present.append(present)
            self._columns.append(byte)
            if largest <= 0x7F:
                return
            more = number > np.uint64(0x7F)
            byte |= more.astype(np.uint8) << 7
            present = more
            number = number >> np.uint64(7)
            largest >>= 7

    def build(self) -> pa.Array:
        """The rows' bytes as a binary array."""
        rows, width = len(self._columns[0]), len(self._columns)
        matrix = np.empty((rows, width), np.uint8)
        for index, column in enumerate(self._columns):
            matrix[:, index] = column
        sometimes = {index: present for index, present in enumerate(self._present) if present is not None}
        if not sometimes:
            return binary_array(np.arange(rows + 1, dtype=np.int32) * np.int32(width), matrix)
        keep = np.ones((rows, width), np.bool_)
        sizes = np.full(rows, width - len(sometimes), np.int32)
        for index, present in sometimes.items():
            keep[:, index] = present
            sizes += present
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        return binary_array(offsets, matrix[keep])


def binary_array(offsets: npt.NDArray[np.int32], data: Buffer | npt.NDArray[np.uint8]) -> pa.Array:
    """A binary array without nulls over `data`, nothing copied."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
