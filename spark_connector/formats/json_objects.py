"""Puts the fields of rows together to JSON objects: in the kernel (`_kernel_json.c`), or by Arrow's own functions.

json_encoder.py makes an ObjectWriter for each type of struct. The kernel writes texts, integers, booleans, doubles of
few digits and times as it goes; all else comes as a column of JSON tokens. Both ways give the same bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.records import native
from spark_connector.formats.text_encoder import valid_text
from spark_connector.formats.time_text import TimePattern

RAW, TEXT, INT8, INT16, INT32, INT64, BOOLEAN, DOUBLE, TIME = range(9)
"""The kernel's kinds of values. RAW is written as it is, TEXT is escaped."""

_INTEGERS: Final = {8: INT8, 16: INT16, 32: INT32, 64: INT64}
_QUOTE: Final = b'"'


class Tokens(NamedTuple):
    """The JSON tokens of a column: `body` (binary) between `open` and `close`; null where the column is null."""

    body: pa.Array
    open: bytes = b""
    close: bytes = b""

    def joined(self) -> pa.Array:
        if not self.open and not self.close:
            return self.body
        return pc.binary_join_element_wise(scalar(self.open), self.body, scalar(self.close), scalar(b""))


TokenWriter = Callable[[pa.Array], Tokens]


class Cells(NamedTuple):
    """A column as the kernel takes it. `numbers`: the values of TIME, microseconds of local time for each row; those of
    other kinds are the column's own."""

    kind: int
    column: pa.Array
    open: bytes = b""
    close: bytes = b""
    numbers: np.ndarray | None = None
    pattern: bytes = b""


CellWriter = Callable[[pa.Array], Cells | None]
"""None for a batch that the kernel does not write."""


@dataclass
class FieldWriter:
    """A field of an object. `label`: its name with quotes and colon. `cells`: None for types that the kernel does not
    write, and for doubles from the first that it did not."""

    label: bytes
    tokens: TokenWriter
    cells: CellWriter | None = None


class ObjectWriter:
    """Writes the structs of one type."""

    def __init__(self, fields: list[FieldWriter], *, ignore_nulls: bool) -> None:
        self._fields = fields
        self._ignore_nulls = ignore_nulls

    def write(self, column: pa.StructArray, prefix: bytes = b"") -> pa.Array:
        """binary: the object of each row behind `prefix`; null where the struct is. Raises OverflowError or
        pa.ArrowInvalid beyond 2 GiB."""
        children = column.flatten()
        made = self._by_kernel(len(column), children, prefix)
        if made is None:
            columns = [field.tokens(child) for field, child in zip(self._fields, children, strict=True)]
            labels = [field.label for field in self._fields]
            made = _objects(len(column), prefix, labels, columns, ignore_nulls=self._ignore_nulls)
        return made if not column.null_count else pc.if_else(column.is_valid(), made, null())

    def _by_kernel(self, rows: int, children: list[pa.Array], prefix: bytes) -> pa.Array | None:
        if native.kernel is None:
            return None
        columns = [_cells_of(field, child) for field, child in zip(self._fields, children, strict=True)]
        fields = [(field.label, cells) for field, cells in zip(self._fields, columns, strict=True)]
        made = _in_kernel(native.kernel, rows, prefix, fields, ignore_nulls=self._ignore_nulls)
        if made is not None:
            return made
        for field, cells in zip(self._fields, columns, strict=True):
            if cells.kind == DOUBLE:
                field.cells = None  # the doubles of the next batch are like these
        return self._by_kernel(rows, children, prefix)


def _in_kernel(
    kernel: native.Kernel, rows: int, prefix: bytes, fields: list[tuple[bytes, Cells]], *, ignore_nulls: bool
) -> pa.Array | None:
    given = []
    for label, cells in fields:
        validity, *rest = cells.column.buffers()
        edges, values = rest if cells.kind <= TEXT else (None, *rest)
        first = cells.column.offset
        first_value = first
        if cells.numbers is not None:
            values, first_value = cells.numbers, 0
        if not cells.column.null_count:
            validity = None
        kind, pattern = cells.kind, cells.pattern
        given.append((kind, label, cells.open, cells.close, validity, values, edges, pattern, first, first_value))
    made = kernel.json_objects(rows, prefix, ignore_nulls, given)
    if made is None:
        return None
    edges, data = made
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(edges), pa.py_buffer(data)])


def _cells_of(field: FieldWriter, column: pa.Array) -> Cells:
    if field.cells is not None and (cells := field.cells(column)) is not None:
        return cells
    tokens = field.tokens(column)
    return Cells(RAW, tokens.body, tokens.open, tokens.close)


def cell_writer(kind: pa.DataType) -> CellWriter | None:
    """For a type that the kernel writes; not for times."""
    if pa.types.is_string(kind):
        return lambda column: Cells(TEXT, valid_text(column), _QUOTE, _QUOTE)
    if pa.types.is_signed_integer(kind):
        integer = _INTEGERS[kind.bit_width]
        return lambda column: Cells(integer, column)
    if pa.types.is_boolean(kind):
        return lambda column: Cells(BOOLEAN, column)
    if pa.types.is_float64(kind):
        return lambda column: Cells(DOUBLE, column)
    return None


def time_cells(times: TimePattern) -> CellWriter:
    def cells(column: pa.Array) -> Cells | None:
        found = times.of_one_width(column)
        return None if found is None else Cells(TIME, column, _QUOTE, _QUOTE, *found)

    return cells


@functools.cache
def null() -> pa.Scalar:
    return pa.scalar(None, pa.binary())  # not at the top: Arrow loads pandas for it, which the driver can do without


def scalar(text: bytes) -> pa.Scalar:
    return pa.scalar(text, pa.binary())


def _objects(rows: int, prefix: bytes, labels: list[bytes], columns: list[Tokens], *, ignore_nulls: bool) -> pa.Array:
    """`{"a":1,"b":2}` of each row, behind `prefix`. A comma stands before a field if the row has a field before it."""
    pieces: list[pa.Array | pa.Scalar] = []
    literal = prefix + b"{"
    before: bool | pa.Array = False
    """Whether a row has had a field: of all rows, or by row."""
    for label, tokens in zip(labels, columns, strict=True):
        if tokens.body.null_count and not ignore_nulls:
            tokens = Tokens(pc.fill_null(tokens.joined(), scalar(b"null")))
        label += tokens.open
        if not tokens.body.null_count and isinstance(before, bool):
            pieces += [scalar(literal + (b"," + label if before else label)), tokens.body]
            literal, before = tokens.close, True
            continue
        pieces.append(scalar(literal))
        literal = b""
        with_comma = scalar(b"," + label)
        start = (
            with_comma
            if before is True
            else scalar(label)
            if before is False
            else pc.if_else(before, with_comma, scalar(label))
        )
        if not tokens.body.null_count:
            pieces += [start, tokens.body]
            literal, before = tokens.close, True
            continue
        there = tokens.body.is_valid()
        pieces += [pc.if_else(there, start, null()), tokens.body]
        if tokens.close:
            pieces.append(pc.if_else(there, scalar(tokens.close), null()))
        before = before if before is True else there if before is False else pc.or_(before, there)
    pieces.append(scalar(literal + b"}"))
    if all(isinstance(piece, pa.Scalar) for piece in pieces):
        return pa.array([literal + b"}"] * rows, pa.binary())
    return pc.binary_join_element_wise(*pieces, scalar(b""), null_handling="replace", null_replacement=b"")
