"""Decodes a batch of values of a writer's schema into a reader's column with the C kernel, without an object per value.

Called by avro_decoder.py. What `avro_resolver` decided becomes a program of nodes and a tree of columns for
`decode_avro` of `_kernel_avro.c`, which fills their buffers. Fields that the writer does not have are no work for the
kernel: their default is repeated. A row that the kernel refuses is null here, and avro_program.py has to say why, or
decode it: the kernel may refuse values that are good, but takes none that avro_program.py does not read alike.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broker.records.native import Kernel, column_buffers
from spark_connector.formats.avro_columns import default_of, member
from spark_connector.formats.avro_resolver import Atom, Fail, FromUnion, Items, Record, Skip, Step, Symbols, ToUnion
from spark_connector.formats.avro_schema import AvroType, Decimal, Passing
from spark_connector.formats.value_decoder import BadValue

Int32s = np.ndarray[Any, np.dtype[np.int32]]

_SLACK: Final = 64
"""Room after the last text, because the kernel copies short ones in blocks."""
_MOST: Final = 2**31 - 1
"""The most rows and bytes that Arrow's 32-bit offsets can address."""


class NotByColumns(Exception):
    """The kernel has no program for this pair of schemas."""


class _Kind(enum.IntEnum):
    """Of columns, as the kernel numbers them: by what their buffers hold."""

    NOTHING, BITS, WORDS, LONGS, DECIMALS, TEXTS, STRUCT, LIST = range(8)


_WIDTHS: Final = {_Kind.WORDS: 4, _Kind.LONGS: 8, _Kind.DECIMALS: 16, _Kind.TEXTS: 4, _Kind.LIST: 4}
"""Bytes of a row in the buffer of numbers or edges."""


class _Op(enum.IntEnum):
    """Of nodes, as the kernel numbers them, which says what they do."""

    REFUSE = 0
    NULL_VALUE = 1
    BOOLEAN = 2
    INT = 3
    LONG = 4
    MILLIS = 5
    LONG_AS_FLOAT = 6
    LONG_AS_DOUBLE = 7
    LONG_BY_FLOAT = 8
    FLOAT = 9
    FLOAT_AS_DOUBLE = 10
    DOUBLE = 11
    STRING = 12
    BYTES = 13
    FIXED = 14
    DECIMAL = 15
    ENUM = 16
    RECORD = 17
    MEMBER = 18
    UNION = 19
    ARRAY = 20
    MAP = 21
    PASS_LONG = 22
    PASS_BYTES = 23
    PASS_FIXED = 24
    PASS_RECORD = 25
    PASS_ARRAY = 26
    PASS_MAP = 27


@dataclass(eq=False, slots=True)
class _Column:
    """A column that some node fills, and the columns within it that are filled, too."""

    type: pa.DataType
    children: dict[str, _Column] = field(default_factory=dict)
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
    def kind(self) -> _Kind:
        one = self.type
        if self.symbols is not None or pa.types.is_int32(one) or pa.types.is_date32(one) or pa.types.is_float32(one):
            return _Kind.WORDS
        if pa.types.is_int64(one) or pa.types.is_timestamp(one) or pa.types.is_float64(one):
            return _Kind.LONGS
        if pa.types.is_string(one) or pa.types.is_binary(one):
            return _Kind.TEXTS
        if pa.types.is_list(one) or pa.types.is_map(one):
            return _Kind.LIST
        others = (
            (pa.types.is_boolean, _Kind.BITS),
            (pa.types.is_decimal, _Kind.DECIMALS),
            (pa.types.is_struct, _Kind.STRUCT),
            (pa.types.is_null, _Kind.NOTHING),
        )
        return next(kind for is_one, kind in others if is_one(one))

    def child(self, name: str, kind: pa.DataType) -> _Column:
        if name not in self.children:
            self.children[name] = _Column(kind)
        return self.children[name]

    def enter(self, columns: list[_Column | None]) -> None:
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
        return {True: ["key", "item"], False: ["item"]}[pa.types.is_map(self.type)] if self.kind is _Kind.LIST else []


@dataclass(eq=False, slots=True)
class _Node:
    op: _Op
    column: _Column | None = None
    argument: int | _Column | None = 0
    """A column stands for its number, None for -1."""
    operands: list[_Node | int] = field(default_factory=list)
    place: int = -1


class BatchProgram:
    """For values whose types resolve by `step`, and a column of the Arrow type `kind`."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        """Raises NotByColumns."""
        self._root, self._columns = _Column(kind), list[_Column | None]()
        try:
            node = _Compiler().step(step, self._root)
            self._root.enter(self._columns)
        except RecursionError:
            raise NotByColumns from None
        if node.op is _Op.REFUSE:
            raise NotByColumns
        shapes = [
            (column.kind, column.end) if column is not None else (_Kind.NOTHING, number + 1)
            for number, column in enumerate(self._columns)
        ]
        self._shapes = np.array(shapes, np.int64)
        self._with_rows_of = _with_rows_of(shapes)
        self._code = np.array(_code(node), np.int64)
        self._texts = sum(column is not None and column.kind is _Kind.TEXTS for column in self._columns)

    def decode(self, kernel: Kernel, values: pa.Array, begin: int) -> tuple[pa.Array, Int32s]:
        """(a row for each of `values`, the rows that were refused). Each value is read from byte `begin` to its end.
        A refused row that would take too much memory is given as its complement (~row)."""
        rows = len(values)
        refused = np.empty(rows, np.int32)
        if not rows:
            return pa.nulls(0, self._root.type), refused
        given = column_buffers(values)
        edges = np.frombuffer(given[0], np.int32, rows + 1, 4 * values.offset)
        size = int(edges[-1] - edges[0])
        buffers = [self._reserved(column, rows, size) for column in self._columns]
        state = np.zeros(2 + 3 * len(self._columns), np.int64)
        while (full := kernel.decode_avro(self._code, self._shapes, state, buffers, given, rows, begin, refused)) >= 0:
            column, is_text = divmod(full, 2)
            if is_text:
                _grow(buffers[column][2:])
            else:
                for other in self._with_rows_of[column]:
                    _grow(buffers[other][:2])
        filled = _Filled(state[2:].reshape(-1, 3), buffers)
        return filled.array(self._root, rows), refused[: state[1]]

    def _reserved(self, column: _Column | None, rows: int, size: int) -> list[pa.Buffer | None]:
        """Room for a row per value; more, which items of lists may need, is given when it is asked for."""
        if column is None or column.kind is _Kind.NOTHING:
            return [None, None, None]
        bits = rows // 8 + 1
        main = bits if column.kind is _Kind.BITS else _WIDTHS.get(column.kind, 0) * (rows + 1)
        text = _buffer(min(2 * size // self._texts + _SLACK, _MOST)) if column.kind is _Kind.TEXTS else None
        return [_buffer(bits), _buffer(main), text]


def _buffer(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size, resizable=True)  # of pyarrow's pool, whose memory is paged in already


def _grow(buffers: list[pa.Buffer | None]) -> None:
    for buffer in buffers:
        if buffer is not None:
            buffer.resize(2 * buffer.size + _SLACK)


def _with_rows_of(shapes: list[tuple[_Kind, int]]) -> list[list[int]]:
    """For each column those that have as many rows: they grow together, since a value is begun again after each."""
    groups: list[list[int]] = [[] for _ in shapes]
    open_lists: list[tuple[int, list[int]]] = [(len(shapes), [])]
    for number, (kind, end) in enumerate(shapes):
        while open_lists[-1][0] <= number:
            open_lists.pop()
        groups[number] = open_lists[-1][1]
        groups[number].append(number)
        if kind is _Kind.LIST:
            open_lists.append((end, []))
    return groups


class _Filled:
    """What the kernel left: per column the rows, the bytes of text, whether there are nulls; and the buffers."""

    def __init__(self, state: np.ndarray[Any, Any], buffers: list[list[pa.Buffer | None]]) -> None:
        self._state = state
        self._buffers = buffers

    def array(self, column: _Column, rows: int) -> pa.Array:
        """The first `rows` rows of a column."""
        kind = column.kind
        if kind is _Kind.NOTHING:
            return pa.nulls(rows, column.type)
        _, used, has_nulls = self._state[column.number].tolist()
        valid, main, text = self._buffers[column.number]
        count = -1 if has_nulls else 0
        buffers, children = [valid if has_nulls else None], None
        if kind is not _Kind.STRUCT:
            buffers.append(main)
        if column.symbols is not None:
            numbers = pa.Array.from_buffers(pa.int32(), rows, buffers, null_count=count)
            symbols = pa.array(list(column.symbols), column.type)
            return symbols.take(numbers) if len(symbols) else pa.nulls(rows, column.type)
        match kind:
            case _Kind.STRUCT:
                children = [self._field(column, one, rows) for one in column.type]
            case _Kind.LIST:
                assert main is not None
                children = [self._items(column, int(np.frombuffer(main, np.int32)[rows]))]
            case _Kind.TEXTS:
                assert text is not None
                text.resize(used, shrink_to_fit=True)
                buffers.append(text)
        return pa.Array.from_buffers(column.type, rows, buffers, null_count=count, children=children)

    def _field(self, column: _Column, one: pa.Field, rows: int) -> pa.Array:
        if column.defaults is not None and one.name in column.defaults:
            return column.defaults[one.name].take(pa.array(np.zeros(rows, np.int8)))
        return self._child(column, one.name, one.type, rows)

    def _items(self, column: _Column, count: int) -> pa.Array:
        kind = column.type
        if not pa.types.is_map(kind):
            return self._child(column, "item", kind.value_type, count)
        pairs = [
            self._child(column, name, one, count) for name, one in (("key", kind.key_type), ("item", kind.item_type))
        ]
        entry = pa.struct([kind.key_field, kind.item_field])
        return pa.Array.from_buffers(entry, count, [None], null_count=0, children=pairs)

    def _child(self, column: _Column, name: str, kind: pa.DataType, rows: int) -> pa.Array:
        return self.array(column.children[name], rows) if name in column.children else pa.nulls(rows, kind)


def _code(root: _Node) -> list[int]:
    """The nodes one after the other, the first one first."""
    nodes: list[_Node] = []
    length, left = 0, [root]
    while left:
        node = left.pop()
        if node.place < 0:
            node.place = length
            length += 4 + len(node.operands)
            nodes.append(node)
            left.extend(one for one in node.operands if isinstance(one, _Node))
    code: list[int] = []
    for node in nodes:
        argument = node.argument.number if isinstance(node.argument, _Column) else node.argument
        code += [node.op, -1 if node.column is None else node.column.number, -1 if argument is None else argument]
        code += [len(node.operands), *(one.place if isinstance(one, _Node) else one for one in node.operands)]
    return code


class _Compiler:
    """Makes the nodes, and of the columns those that they fill."""

    def __init__(self) -> None:
        self._records: dict[tuple[Record, _Column], _Node] = {}
        self._passed: dict[AvroType, _Node] = {}
        self._passing = Passing()

    def step(self, step: Step, column: _Column) -> _Node:
        match step:
            case Fail():
                return _Node(_Op.REFUSE)
            case Skip():
                return self._pass_over(step.writer) or _nothing()
            case Atom():
                return _atom(step, column)
            case Symbols():
                return _symbols(step, column)
            case Items():
                return self._items(step, column)
            case Record():
                if (step, column) not in self._records:
                    self._records[step, column] = self._record(step, column)
                return self._records[step, column]
            case FromUnion():
                return _Node(_Op.UNION, operands=[self.step(branch, column) for branch in step.branches])
            case ToUnion():
                return self._to_union(step, column)

    def _items(self, step: Items, column: _Column) -> _Node:
        is_map = step.writer.kind == "map"
        item = column.child("item", column.type.item_type if is_map else column.type.value_type)
        if is_map:
            column.child("key", pa.string())
        return _Node(_Op.MAP if is_map else _Op.ARRAY, column, operands=[self.step(step.item, item)])

    def _record(self, step: Record, column: _Column) -> _Node:
        kind = column.type
        if step.why is not None:
            return _Node(_Op.REFUSE)
        try:
            missing = {one.name: default_of(one, step.writer) for one in step.missing}
        except BadValue:
            return _Node(_Op.REFUSE)
        try:
            defaults = {
                name: pa.array([value], kind.field(name).type)
                for name, value in missing.items()
                if kind.get_field_index(name) >= 0
            }
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            raise NotByColumns from None
        if column.defaults is not None and column.defaults != defaults:
            raise NotByColumns  # two records of the writer, of which one lacks what the other has
        column.defaults = defaults
        nodes: list[_Node | int] = []
        for (name, inner), written in zip(step.fields, step.writer.fields, strict=True):
            if name is None or kind.get_field_index(name) < 0:
                nodes.extend(filter(None, [self._pass_over(written.type)]))
            else:
                nodes.append(self.step(inner, column.child(name, kind.field(name).type)))
        return _Node(_Op.RECORD, column, operands=nodes)

    def _to_union(self, step: ToUnion, column: _Column) -> _Node:
        name = member(step.reader, step.index)
        if name is None:
            return self.step(step.step, column)
        if column.type.get_field_index(name) < 0:
            return _Node(_Op.MEMBER, column, None, [self._pass_over(step.writer) or _nothing()])
        child = column.child(name, column.type.field(name).type)
        return _Node(_Op.MEMBER, column, child, [self.step(step.step, child)])

    def _pass_over(self, one: AvroType) -> _Node | None:
        """None for a type of no bytes."""
        bare = self._passing.type(one)
        return None if bare is None else self._pass_bare(bare)

    def _pass_bare(self, one: AvroType) -> _Node:
        if one in self._passed:
            return self._passed[one]
        made = self._passed[one] = _Node(_Op.PASS_RECORD)  # before its fields, which may lead to it again
        match one.kind:
            case "record":
                made.operands.extend(filter(None, map(self._pass_over, self._passing.fields(one))))
            case "union":
                made.op = _Op.UNION
                made.operands.extend(self._pass_over(branch) or _nothing() for branch in one.branches)
            case "array":
                assert one.item is not None
                made.op = _Op.PASS_ARRAY
                made.operands.extend(filter(None, [self._pass_over(one.item)]))
            case "map":
                assert one.item is not None
                made.op = _Op.PASS_MAP
                made.operands.append(self._pass_over(one.item) or _nothing())
            case "int" | "long" | "enum":
                made.op = _Op.PASS_LONG
            case "string" | "bytes":
                made.op = _Op.PASS_BYTES
            case _:
                made.op = _Op.PASS_FIXED
                made.argument = {"boolean": 1, "float": 4, "double": 8}.get(one.kind, one.size)
        return made


def _nothing() -> _Node:
    """Passes over no bytes."""
    return _Node(_Op.PASS_FIXED)


def _symbols(step: Symbols, column: _Column) -> _Node:
    if column.symbols is None:
        column.symbols = {}
    known = column.symbols
    numbers: list[_Node | int] = [
        -1 if symbol is None else known.setdefault(symbol, len(known)) for symbol in step.symbols
    ]
    return _Node(_Op.ENUM, column, operands=numbers)


def _atom(step: Atom, column: _Column) -> _Node:
    writer, reader = step.writer, step.reader
    if isinstance(reader.logical, Decimal):
        limit = 10**reader.logical.precision
        size = writer.size if writer.kind == "fixed" else -1
        low = limit & (2**64 - 1)
        return _Node(_Op.DECIMAL, column, size, [limit >> 64, low - (low >> 63 << 64)])
    match writer.kind:
        case "int" | "long" if isinstance(reader.logical, str) and reader.logical.endswith("-millis"):
            op = _Op.MILLIS
        case "int" | "long" if reader.kind == "double":
            op = _Op.LONG_AS_DOUBLE
        case "int" | "long" if reader.kind == "float":
            op = _Op.LONG_AS_FLOAT if column.kind is _Kind.WORDS else _Op.LONG_BY_FLOAT
        case "int" | "long":
            op = _Op.INT if column.kind is _Kind.WORDS else _Op.LONG
        case "float":
            op = _Op.FLOAT if column.kind is _Kind.WORDS else _Op.FLOAT_AS_DOUBLE
        case "string" | "bytes":
            op = _Op.STRING if reader.kind == "string" else _Op.BYTES
        case _:
            op = {"null": _Op.NULL_VALUE, "boolean": _Op.BOOLEAN, "double": _Op.DOUBLE, "fixed": _Op.FIXED}[writer.kind]
    return _Node(op, column, writer.size)
