"""The bytes of many rows at once, field after field: numpy and Arrow do the work of Avro's encoder for a whole column.

avro_writers.py appends; nobody else calls this. What has few bytes (numbers, lengths, branches) is kept as cells: a
cell is one byte per row, and a mask says which rows have it. Neighbouring cells become one matrix, of which numpy takes
the bytes that are there. What is long already (texts) stays where it is, until Arrow joins the pieces of each row.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_MOST_BYTES: Final = (1 << 31) - 1
_MORE: Final = 0x7F
"""The largest byte that ends a number."""


class RowBytes:
    """Collects the bytes of `rows` rows. `there`: the rows that have what is appended; None for all."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._cells: list[tuple[Bytes | int, Mask | None]] = []
        self._pieces: list[pa.Array] = []

    def byte(self, value: Bytes | int, there: Mask | None) -> None:
        self._cells.append((value, there))

    def number(self, numbers: np.ndarray[Any, Any], there: Mask | None) -> None:
        """Signed integers, as Avro's int and long."""
        left = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        if there is not None:
            left = np.where(there, left, np.uint64(0))
        while True:
            more: Mask = left > _MORE
            cell: Bytes = left.astype(np.uint8)
            if not more.any():
                self._cells.append((cell, there))
                return
            cell |= more.view(np.uint8) << 7
            self._cells.append((cell, there))
            there = more
            left >>= np.uint64(7)

    def matrix(self, values: Bytes, there: Mask | None, first: np.ndarray[Any, Any] | None = None) -> None:
        """All bytes of each row of `values` (rows, width), or those from `first` (rows)."""
        for index in range(values.shape[1]):
            has = there
            if first is not None:
                has = first <= index if there is None else there & (first <= index)
            self._cells.append((values[:, index], has))

    def data(self, column: pa.Array) -> None:
        """The bytes of a binary column; none where it is null."""
        self._flush()
        self._pieces.append(column)

    def joined(self, prefix: bytes = b"") -> pa.Array:
        """All that was appended, a binary value per row, each behind `prefix`."""
        self._flush()
        if not self._pieces:
            return pa.repeat(pa.scalar(prefix, pa.binary()), self._rows)
        if len(self._pieces) == 1 and not prefix and not self._pieces[0].null_count:
            return self._pieces[0]
        parts = [pa.scalar(prefix, pa.binary()), *self._pieces] if prefix else self._pieces
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()), null_handling="replace")

    def _flush(self) -> None:
        if not self._cells:
            return
        shape = (self._rows, len(self._cells))
        values = np.empty(shape, np.uint8)
        for index, (cell, _) in enumerate(self._cells):
            values[:, index] = cell
        ends = np.zeros(self._rows + 1, np.int64)
        if all(there is None for _, there in self._cells):
            ends += shape[1] * np.arange(self._rows + 1)
        else:
            kept = np.empty(shape, np.bool_)
            sizes = np.zeros(self._rows, np.int32)
            for index, (_, there) in enumerate(self._cells):
                kept[:, index] = True if there is None else there
                sizes += 1 if there is None else there
            np.cumsum(sizes, out=ends[1:])
            values = values[kept]
        self._cells = []
        self._pieces.append(binary_array(ends, pa.py_buffer(values)))


def binary_array(ends: np.ndarray[Any, Any], data: pa.Buffer) -> pa.Array:
    """`ends`: the end of each value in `data`, behind the begin of the first. Raises OverflowError beyond 2 GiB."""
    if ends[-1] > _MOST_BYTES:
        raise OverflowError("the Avro data of one batch of rows is larger than 2 GiB")
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends.astype(np.int32)), data])
