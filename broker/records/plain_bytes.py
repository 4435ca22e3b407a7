"""Reads thousands of varints of decompressed records at a time with numpy: the vectorised form of varint.py.

Used without the kernel, by the column decoder and by the check of produced records. Does not import pyarrow, which a
broker does not need.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptBatch
from broker.records.varint import MAX_VARINT_BYTES

Buffer = bytes | bytearray | memoryview
Int64s: TypeAlias = npt.NDArray[np.int64]
UInt64s: TypeAlias = npt.NDArray[np.uint64]
Bools: TypeAlias = npt.NDArray[np.bool_]


_UNKNOWN: Final = 1 << 62


def _two_byte_table() -> Int64s:
    """The varint of each pair of bytes (a little-endian number); _UNKNOWN for longer varints."""
    pair = np.arange(1 << 16, dtype=np.int64)
    first, second = pair & 0xFF, pair >> 8
    number = np.where(first < 0x80, first, (first & 0x7F) | second << 7)
    return np.where((first < 0x80) | (second < 0x80), (number >> 1) ^ -(number & 1), _UNKNOWN)


_VALUE_OF_PAIR: Final = _two_byte_table()


class PlainBytes:
    """Decompressed record sections, read at many positions at once.

    `pairs` has the two bytes at *every* position as one number: one gather fetches a short varint, and a table of all
    pairs decodes it.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.size = len(data)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self.pairs: npt.NDArray[np.uint16] = np.ndarray((max(self.size - 1, 0),), "<u2", data, 0, (1,))

    def varints(self, position: Int64s) -> tuple[Int64s, Int64s]:
        """(the varints at these positions, which must not be negative, where each varint ends).

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
        """Read byte by byte, for varints of more than two bytes and for the last byte of the data."""
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
