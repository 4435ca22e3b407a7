"""Decodes a batch of values of a writer's schema into a reader's column with the C kernel, without an object per value.

Called by avro_decoder.py. What `avro_resolver` decided becomes a program of nodes and a tree of columns for
`decode_avro` of `_kernel_avro.c`, which fills their buffers. Fields that the writer does not have are no work for the
kernel: their default is repeated. A row that the kernel refuses is null here, and avro_program.py has to say why, or
decode it: the kernel may refuse values that are good, but takes none that avro_program.py does not read alike.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from broker.records.native import Kernel
from spark_connector.formats.avro_columns import default_of, member
from spark_connector.formats.avro_resolver import Atom, Fail, FromUnion, Items, Record, Skip, Step, Symbols, ToUnion
from spark_connector.formats.avro_schema import AvroType, Decimal, Passing
from spark_connector.formats.kernel_columns import Column, ColumnKind, ColumnReader, Int32s, NotByColumns
from spark_connector.formats.value_decoder import BadValue


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
class _Node:
    op: _Op
    column: Column | None = None
    argument: int | Column | None = 0
    """A column stands for its number, None for -1."""
    operands: list[_Node | int] = field(default_factory=list)
    place: int = -1


class BatchProgram:
    """For values whose types resolve by `step`, and a column of the Arrow type `kind`."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        """Raises NotByColumns."""
        root = Column(kind)
        try:
            node = _Compiler().step(step, root)
            self._reader = ColumnReader(root)
        except RecursionError:
            raise NotByColumns from None
        if node.op is _Op.REFUSE:
            raise NotByColumns
        self._code = np.array(_code(node), np.int64)

    def decode(self, kernel: Kernel, values: pa.Array, begin: int) -> tuple[pa.Array, Int32s]:
        """As `ColumnReader`."""
        return self._reader.decode(kernel.decode_avro, self._code, values, begin)


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
        argument = node.argument.number if isinstance(node.argument, Column) else node.argument
        code += [node.op, -1 if node.column is None else node.column.number, -1 if argument is None else argument]
        code += [len(node.operands), *(one.place if isinstance(one, _Node) else one for one in node.operands)]
    return code


class _Compiler:
    """Makes the nodes, and of the columns those that they fill."""

    def __init__(self) -> None:
        self._records: dict[tuple[Record, Column], _Node] = {}
        self._passed: dict[AvroType, _Node] = {}
        self._passing = Passing()

    def step(self, step: Step, column: Column) -> _Node:
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

    def _items(self, step: Items, column: Column) -> _Node:
        is_map = step.writer.kind == "map"
        item = column.child("item", column.type.item_type if is_map else column.type.value_type)
        if is_map:
            column.child("key", pa.string())
        return _Node(_Op.MAP if is_map else _Op.ARRAY, column, operands=[self.step(step.item, item)])

    def _record(self, step: Record, column: Column) -> _Node:
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

    def _to_union(self, step: ToUnion, column: Column) -> _Node:
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


def _symbols(step: Symbols, column: Column) -> _Node:
    if column.symbols is None:
        column.symbols = {}
    known = column.symbols
    numbers: list[_Node | int] = [
        -1 if symbol is None else known.setdefault(symbol, len(known)) for symbol in step.symbols
    ]
    return _Node(_Op.ENUM, column, operands=numbers)


def _atom(step: Atom, column: Column) -> _Node:
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
            op = _Op.LONG_AS_FLOAT if column.kind is ColumnKind.WORDS else _Op.LONG_BY_FLOAT
        case "int" | "long":
            op = _Op.INT if column.kind is ColumnKind.WORDS else _Op.LONG
        case "float":
            op = _Op.FLOAT if column.kind is ColumnKind.WORDS else _Op.FLOAT_AS_DOUBLE
        case "string" | "bytes":
            op = _Op.STRING if reader.kind == "string" else _Op.BYTES
        case _:
            op = {"null": _Op.NULL_VALUE, "boolean": _Op.BOOLEAN, "double": _Op.DOUBLE, "fixed": _Op.FIXED}[writer.kind]
    return _Node(op, column, writer.size)
