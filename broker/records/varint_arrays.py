"""Zigzag varints, thousands at a time, with numpy: the vectorised twin of varint.py.

`PlainBytes` reads them for columns_decode.py; `varint_size` and `PrefixBuilder` write them for columns_encode.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.errors import CorruptBatch
from broker.records.varint import MAX_VARINT_BYTES

__all__ = ["Int64s", "PlainBytes", "PrefixBuilder", "binary_array", "varint_size", "zigzag"]

Buffer = bytes | bytearray | memoryview
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class PlainBytes:
    """Decompressed record sections, read at many positions at once.

    `words` and `pairs` view the same bytes as a 4-byte and a 2-byte number at *every* position: one
    gather fetches all of a short varint.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.pairs: npt.NDArray[np.uint16] = np.ndarray((max(self.size - 1, 0),), "<u2", data, 0, (1,))
        self.words: npt.NDArray[np.uint32] = np.ndarray((max(self.size - 3, 0),), "<u4", data, 0, (1,))

    def varints(self, position: Int64s) -> tuple[Int64s, Int64s]:
        """The varints at `position`, which must not be negative, and where each ends.

        Raises CorruptBatch for one of more than 10 bytes or beyond the end of the data.
        """
        if len(position) == 0:
            return position, position
        if position.max() >= len(self.words):
            return self._long_varints(position)
        word = self.words[position]
        if not (word & 0x80).any():
            small = (word & 0x7F).astype(np.int64)
            return (small >> 1) ^ -(small & 1), position + 1
        more1 = (word >> 7) & 1  # 1 where the first byte is not the last
        more2 = more1 & (word >> 15)
        more3 = more2 & (word >> 23)
        if (more3 & (word >> 31)).any():
            return self._long_varints(position)
        number = (word & 0x7F) | ((word >> 1) & 0x3F80) * more1
        if more2.any():
            number |= ((word >> 2) & 0x1FC000) * more2 | ((word >> 3) & 0xFE00000) * more3
        value = number.astype(np.int64)
        return (value >> 1) ^ -(value & 1), position + (1 + more1 + more2 + more3)

    def _long_varints(self, position: Int64s) -> tuple[Int64s, Int64s]:
        """Byte by byte: for varints of more than 4 bytes, and for the last bytes of the data."""
        number = np.zeros(len(position), np.uint64)
        end = position.copy()
        unfinished = np.arange(len(position))
        for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
            at = end[unfinished]
            if at.max() >= self.size:
                raise CorruptBatch("a varint runs past the end of a batch")
            byte = self.bytes[at]
            number[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            end[unfinished] += 1
            unfinished = unfinished[byte >= 0x80]
            if len(unfinished) == 0:
                value = (number >> np.uint64(1)).astype(np.int64)
                return value ^ -(number & np.uint64(1)).astype(np.int64), end
        raise CorruptBatch(f"a varint is longer than {MAX_VARINT_BYTES} bytes")


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
        if all(present is None for present in self._present):
            return binary_array(np.arange(rows + 1, dtype=np.int32) * width, matrix)
        keep = np.ones((rows, width), np.bool_)
        for index, present in enumerate(self._present):
            if present is not None:
                keep[:, index] = present
        offsets = np.zeros(rows + 1, np.int32)
        np.cumsum(keep.sum(1), out=offsets[1:])
        return binary_array(offsets, matrix[keep])


def binary_array(offsets: npt.NDArray[np.int32], data: Buffer | npt.NDArray[np.uint8]) -> pa.Array:
    """A binary array without nulls over `data`, nothing copied."""
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
