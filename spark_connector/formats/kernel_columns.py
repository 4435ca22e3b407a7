"""Columns that the C kernel fills from values, row by row: their tree, their buffers, and the Arrow arrays of them.

A `Column` stands for each column that some value fills; `ColumnReader` gives the kernel the buffers, larger ones when
it asks for them, and makes the array. Called by avro_batches.py and json_batches.py, which make the programs that say
what goes where (`_kernel_columns.h`). A row that the kernel refuses is null, and `with_refused` has it decoded in
Python: the kernel may refuse values that are good, but takes none that Python does not read alike.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.records.native import Buffer, ColumnsDecoder, column_buffers
from spark_connector.formats.value_decoder import Decoded, one_by_one

Int32s = np.ndarray[Any, np.dtype[np.int32]]

_SLACK: Final = 64
"""Room after the last text, because the kernel copies short ones in blocks."""
_MOST: Final = 2**31 - 1
"""The most rows and bytes that Arrow's 32-bit offsets can address."""


class NotByColumns(Exception):
    """The kernel has no program for these schemas."""


class ColumnKind(enum.IntEnum):
    """Of columns, as the kernel numbers them: by what their buffers hold."""

    NOTHING, BITS, WORDS, LONGS, DECIMALS, TEXTS, STRUCT, LIST, OCTETS, SHORTS = range(10)


_WIDTHS: Final = {
    ColumnKind.OCTETS: 1,
    ColumnKind.SHORTS: 2,
    ColumnKind.WORDS: 4,
    ColumnKind.LONGS: 8,
    ColumnKind.DECIMALS: 16,
    ColumnKind.TEXTS: 4,
    ColumnKind.LIST: 4,
}
_KINDS: Final = (
    (pa.types.is_null, ColumnKind.NOTHING),
    (pa.types.is_boolean, ColumnKind.BITS),
    (pa.types.is_decimal128, ColumnKind.DECIMALS),
    (pa.types.is_struct, ColumnKind.STRUCT),
    (lambda one: pa.types.is_string(one) or pa.types.is_binary(one), ColumnKind.TEXTS),
    (lambda one: pa.types.is_list(one) or pa.types.is_map(one), ColumnKind.LIST),
)
_NUMBERS: Final = {8: ColumnKind.OCTETS, 16: ColumnKind.SHORTS, 32: ColumnKind.WORDS, 64: ColumnKind.LONGS}


@dataclass(eq=False, slots=True)
class Column:
    """A column that some node fills, and the columns within it that are filled, too."""

    type: pa.DataType
    children: dict[str, Column] = field(default_factory=dict)
    """Of a struct by field, of lists and maps `item`, and `key`."""
    defaults: dict[str, pa.Array] | None = None
    """Of a struct that records fill: an array of one row for each field that they do not have."""
    symbols: dict[str, int] | None = None
    """Of an enum: symbol → number."""
    number: int = -1
    """Its place among all columns."""
    end: int = -1
    """Behind the last column within it."""

    @property
    def kind(self) -> ColumnKind:
        if self.symbols is not None:
            return ColumnKind.WORDS
        found = next((kind for is_one, kind in _KINDS if is_one(self.type)), None)
        return _NUMBERS[self.type.bit_width] if found is None else found

    def child(self, name: str, kind: pa.DataType) -> Column:
        if name not in self.children:
            self.children[name] = Column(kind)
        return self.children[name]

    def enter(self, columns: list[Column | None]) -> None:
        """Add it and those within it to all columns, as the kernel numbers them; None stands for a field of a struct
        that nobody fills."""
        self.number = len(columns)
        columns.append(self)
        for name in self._places():
            if name in self.children:
                self.children[name].enter(columns)
            else:
                columns.append(None)
        self.end = len(columns)

    def _places(self) -> list[str]:
        if pa.types.is_struct(self.type):
            return [one.name for one in self.type]
        return (
            {True: ["key", "item"], False: ["item"]}[pa.types.is_map(self.type)] if self.kind is ColumnKind.LIST else []
        )


class ColumnReader:
    """Has the kernel fill a column, and those within it."""

    def __init__(self, root: Column) -> None:
        """`root` has its children, and gives them their numbers here."""
        self._root = root
        self._columns: list[Column | None] = []
        root.enter(self._columns)
        shapes = [
            (column.kind, column.end) if column is not None else (ColumnKind.NOTHING, number + 1)
            for number, column in enumerate(self._columns)
        ]
        self._shapes = np.array(shapes, np.int64)
        self._with_rows_of = _with_rows_of(shapes)
        self._texts = sum(column is not None and column.kind is ColumnKind.TEXTS for column in self._columns)

    def decode(self, decoder: ColumnsDecoder, code: Buffer, values: pa.Array, begin: int) -> tuple[pa.Array, Int32s]:
        """(a row for each of `values`, the rows that were refused), by the kernel's `decoder` and the program `code`.
        Each value is read from byte `begin` to its end. A refused row that would take too much memory is given as its
        complement (~row)."""
        rows = len(values)
        refused = np.empty(rows, np.int32)
        if not rows:
            return pa.nulls(0, self._root.type), refused
        given = column_buffers(values)
        edges = np.frombuffer(given[0], np.int32, rows + 1, 4 * values.offset)
        size = int(edges[-1] - edges[0])
        buffers = [self._reserved(column, rows, size) for column in self._columns]
        state = np.zeros(2 + 3 * len(self._columns), np.int64)
        while (full := decoder(code, self._shapes, state, buffers, given, rows, begin, refused)) >= 0:
            column, is_text = divmod(full, 2)
            if is_text:
                _grow(buffers[column][2:])
            else:
                for other in self._with_rows_of[column]:
                    _grow(buffers[other][:2])
        filled = _Filled(state[2:].reshape(-1, 3), buffers)
        return filled.array(self._root, rows), refused[: state[1]]

    def _reserved(self, column: Column | None, rows: int, size: int) -> list[pa.Buffer | None]:
        """Room for a row per value; more, which items of lists may need, is given when it is asked for."""
        if column is None or column.kind is ColumnKind.NOTHING:
            return [None, None, None]
        bits = rows // 8 + 1
        main = bits if column.kind is ColumnKind.BITS else _WIDTHS.get(column.kind, 0) * (rows + 1)
        text = _buffer(min(2 * size // self._texts + _SLACK, _MOST)) if column.kind is ColumnKind.TEXTS else None
        return [_buffer(bits), _buffer(main), text]


def _buffer(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size, resizable=True)  # of pyarrow's pool, whose memory is paged in already


def _grow(buffers: list[pa.Buffer | None]) -> None:
    for buffer in buffers:
        if buffer is not None:
            buffer.resize(2 * buffer.size + _SLACK)


def _with_rows_of(shapes: list[tuple[ColumnKind, int]]) -> list[list[int]]:
    """For each column those that have as many rows: they grow together, since a value is begun again after each."""
    groups: list[list[int]] = [[] for _ in shapes]
    open_lists: list[tuple[int, list[int]]] = [(len(shapes), [])]
    for number, (kind, end) in enumerate(shapes):
        while open_lists[-1][0] <= number:
            open_lists.pop()
        groups[number] = open_lists[-1][1]
        groups[number].append(number)
        if kind is ColumnKind.LIST:
            open_lists.append((end, []))
    return groups


class _Filled:
    """What the kernel left: per column the rows, the bytes of text, whether there are nulls; and the buffers."""

    def __init__(self, state: np.ndarray[Any, Any], buffers: list[list[pa.Buffer | None]]) -> None:
        self._state = state
        self._buffers = buffers

    def array(self, column: Column, rows: int) -> pa.Array:
        """The first `rows` rows of a column."""
        kind = column.kind
        if kind is ColumnKind.NOTHING:
            return pa.nulls(rows, column.type)
        _, used, has_nulls = self._state[column.number].tolist()
        valid, main, text = self._buffers[column.number]
        count = -1 if has_nulls else 0
        buffers, children = [valid if has_nulls else None], None
        if kind is not ColumnKind.STRUCT:
            buffers.append(main)
        if column.symbols is not None:
            numbers = pa.Array.from_buffers(pa.int32(), rows, buffers, null_count=count)
            symbols = pa.array(list(column.symbols), column.type)
            return symbols.take(numbers) if len(symbols) else pa.nulls(rows, column.type)
        match kind:
            case ColumnKind.STRUCT:
                children = [self._field(column, one, rows) for one in column.type]
            case ColumnKind.LIST:
                assert main is not None
                children = [self._items(column, int(np.frombuffer(main, np.int32)[rows]))]
            case ColumnKind.TEXTS:
                assert text is not None
                text.resize(used, shrink_to_fit=True)
                buffers.append(text)
        return pa.Array.from_buffers(column.type, rows, buffers, null_count=count, children=children)

    def _field(self, column: Column, one: pa.Field, rows: int) -> pa.Array:
        if column.defaults is not None and one.name in column.defaults:
            return column.defaults[one.name].take(pa.array(np.zeros(rows, np.int8)))
        return self._child(column, one.name, one.type, rows)

    def _items(self, column: Column, count: int) -> pa.Array:
        kind = column.type
        if not pa.types.is_map(kind):
            return self._child(column, "item", kind.value_type, count)
        pairs = [
            self._child(column, name, one, count) for name, one in (("key", kind.key_type), ("item", kind.item_type))
        ]
        entry = pa.struct([kind.key_field, kind.item_field])
        return pa.Array.from_buffers(entry, count, [None], null_count=0, children=pairs)

    def _child(self, column: Column, name: str, kind: pa.DataType, rows: int) -> pa.Array:
        return self.array(column.children[name], rows) if name in column.children else pa.nulls(rows, kind)


def with_refused(
    column: pa.Array, refused: Int32s, values: pa.Array, one: Callable[[bytes], Any], too_large: str = ""
) -> Decoded:
    """What `ColumnReader` has made of `values`, with those that it refused decoded by `one`, or bad: with the reason
    `too_large` where that is their fault."""
    if not len(refused):
        return Decoded(column)
    bad = dict.fromkeys((~refused[refused < 0]).tolist(), too_large)
    refused = refused[refused >= 0]
    again = one_by_one(values.take(pa.array(refused)), column.type, one)
    bad = dict(sorted({**bad, **{int(refused[row]): why for row, why in again.bad.items()}}.items()))
    if len(again.bad) == len(refused):
        return Decoded(column, bad)
    places = np.arange(len(values))
    places[refused] = len(values) + np.arange(len(refused))
    return Decoded(pa.concat_arrays([column, again.column]).take(pa.array(places)), bad)
