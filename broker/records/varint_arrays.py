"""Zigzag varints, thousands at a time, with numpy: the vectorised twin of varint.py.

`PlainBytes` reads them for columns_decode.py; `varint_size` and `PrefixBuilder` write them for columns_encode.py.
"""

from __future__ import annotations

from typing import Final, TypeAlias

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


_UNKNOWN: Final = 1 << 62


def _two_byte_table() -> Int64s:
    """The number that begins with two given bytes, read as one little-endian number; _UNKNOWN for longer ones."""
    pair = np.arange(1 << 16, dtype=np.int64)
    first, second = pair & 0xFF, pair >> 8
    number = np.where(first < 0x80, first, (first & 0x7F) | second << 7)
    return np.where((first < 0x80) | (second < 0x80), (number >> 1) ^ -(number & 1), _UNKNOWN)


_VALUE_OF_PAIR: Final = _two_byte_table()


class PlainBytes:
    """Decompressed record sections, read at many positions at once.

    `pairs` views the same bytes as a 2-byte number at *every* position: one gather fetches all of
    a short varint, and a table of all pairs decodes it.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.pairs: npt.NDArray[np.uint16] = np.ndarray((max(self.size - 1, 0),), "<u2", data, 0, (1,))

    def varints(self, position: Int64s) -> tuple[Int64s, Int64s]:
        """The varints at `position`, which must not be negative, and where each ends.

        Raises CorruptBatch for one of more than 10 bytes or beyond the end of the data.
        """
        if len(position) == 0:
            return position, position
        if position.max() >= len(self.pairs):
            return self._long_varints(position)
        pair = self.pairs[position]
        value = _VALUE_OF_PAIR[pair]
        end = position + 1
        end += (pair >> 7) & 1
        if value.max() == _UNKNOWN:
            longer = np.flatnonzero(value == _UNKNOWN)
            value[longer], end[longer] = self._long_varints(position[longer])
        return value, end

    def _long_varints(self, position: Int64s) -> tuple[Int64s, Int64s]:
        """Byte by byte: for varints of more than two bytes, and for the last byte of the data."""
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
