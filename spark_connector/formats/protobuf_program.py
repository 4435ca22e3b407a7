"""A message type as a program of the kernel (`_kernel_protobuf.c`), and the columns that it fills as one of Arrow.

The kernel fills plain columns: numbers, texts, how many elements a row has, whether a message is there. Here they
become structs, lists, maps, names of enums, timestamps and decimals. The numbers of kinds and the layout of a program
are those of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.records import native
from spark_connector.formats.protobuf_columns import Field, Message, Proto
from spark_connector.formats.value_decoder import Decoded

_PRESENCE, _COUNT, _UINT32_WIDE, _SECONDS = 0, 1, 4, 13
_KINDS: Final = {
    "bool": 2,
    "int32": 3,
    "uint32": 3,
    "sint32": 5,
    "fixed32": 6,
    "sfixed32": 6,
    "float": 6,
    "int64": 7,
    "uint64": 7,
    "sint64": 8,
    "fixed64": 9,
    "sfixed64": 9,
    "double": 9,
    "bytes": 10,
    "string": 11,
    "enum": 12,
}
_MESSAGE, _GROUP, _LEFT_OUT, _LEFT_OUT_GROUP = 14, 15, 16, 17
_TYPE_GROUP: Final = 10
_IMPLICIT, _REQUIRED, _IN_MAP = 1, 2, 4
_HARD: Final = 9
_OTHER_TYPE: Final = 4
_REASONS: Final = {
    1: "it ends within field {}",
    2: "no field begins where one must (number {})",
    3: "field {} is not UTF-8",
    5: "field {} has a number that its enum does not have",
    6: "its time is beyond all timestamps, which are microseconds in 64 bits",
    7: "it is nested too deep in field {}",
    10: "it is short for the memory that its elements take (field {})",
}
"""By the kernel's status."""

Array = np.ndarray[Any, Any]
Made = tuple[int, bytes, bytes, bytes | None]
"""What the kernel makes of a column: rows, validity, values or edges, data of texts."""


@dataclass(frozen=True)
class _FieldColumns:
    """Which columns of the kernel a field fills."""

    field: Field
    column: int
    element: int = -1
    inner: tuple[_FieldColumns, ...] = ()
    in_map: bool = False


class Program:
    """Decodes values of a message type, where there is a kernel."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._nodes: list[tuple[int, int, int]] = []
        self._fields: list[list[int]] = []
        self._columns: list[tuple[int, int]] = []
        self._groups = 1
        self._symbols: list[int] = []
        self._places = self._node(message, 0, in_map=False)
        self._order = sorted(range(len(self._columns)), key=lambda column: self._columns[column][1])
        self._code = self._encoded()

    def decode(self, values: pa.Array, skips: Array | None = None) -> tuple[Decoded, list[int]]:
        """`values`: binary. `skips`: how many bytes lie before each message (int32), negative: leave it out.

        Returns the column, null where a value is null, left out, bad or hard; and the rows of the hard ones, which
        `RowReader` must read."""
        assert native.kernel is not None
        statuses = np.zeros(len(values), np.int64)
        made = native.kernel.protobuf_decode(
            native.column_buffers(values),
            len(values),
            skips,
            self._code,
            np.array(self._symbols, np.int32),
            statuses,
        )
        columns: list[Made | None] = [None] * len(made)
        for one, column in zip(made, self._order, strict=True):
            columns[column] = one
        there = statuses == 0
        if skips is not None:
            there &= skips >= 0
        if values.null_count:
            there &= values.is_valid().to_numpy(zero_copy_only=False)
        whole = self._struct(self._places, columns, self._message.type, len(values), _bits(there))
        bad, hard = {}, []
        for row in np.flatnonzero(statuses).tolist():
            status, number = int(statuses[row]) & 0xFF, int(statuses[row]) >> 8
            if status == _HARD:
                hard.append(row)
            else:
                bad[row] = self._reason(status, number)
        return Decoded(whole, bad), hard

    def _reason(self, status: int, number: int) -> str:
        name = self._message.proto.full_name
        if status == _OTHER_TYPE:
            found = next((one.name for one in self._message.proto.fields if one.number == number), "")
            return f"field {found} (number {number}) is not of the type that it has in {name}"
        return f"no message {name}: {_REASONS[status].format(number)}"

    # ---- the program

    def _encoded(self) -> Array:
        at = {column: index for index, column in enumerate(self._order)}
        fields = [[*one[:3], at.get(one[3], -1), at.get(one[4], -1), *one[5:]] for one in self._fields]
        columns = [self._columns[column] for column in self._order]
        groups = []
        for group in range(self._groups):
            mine = [index for index, (_, other) in enumerate(columns) if other == group]
            groups.append((mine[0] if mine else 0, len(mine)))
        head = (len(self._nodes), len(fields), len(columns), len(groups))
        rows: list[Any] = [head, *self._nodes, *fields, *columns, *groups]
        return np.array([number for row in rows for number in row], np.int32)

    def _column(self, kind: int, group: int) -> int:
        self._columns.append((kind, group))
        return len(self._columns) - 1

    def _node(self, message: Message, group: int, *, in_map: bool, seconds: bool = False) -> tuple[_FieldColumns, ...]:
        """Add a node and all below it. `seconds`: its first field is that of a Timestamp or a Duration."""
        index = len(self._nodes)
        shown = {one.number: one for one in message.fields}
        protos = sorted(message.proto.fields, key=lambda proto: proto.number)
        first = len(self._fields)
        self._nodes.append((first, len(protos), group))
        self._fields += [[0] * 10 for _ in protos]
        assert index < len(self._nodes)
        by_number = {}
        for place, proto in enumerate(protos, first):
            field = shown.get(proto.number)
            if field is None:
                kind = _LEFT_OUT_GROUP if proto.type == _TYPE_GROUP else _LEFT_OUT
                self._fields[place] = [
                    proto.number,
                    kind,
                    int(proto.is_repeated),
                    -1,
                    -1,
                    -1,
                    -1,
                    0,
                    0,
                    _flags(proto, 0),
                ]
            else:
                by_number[proto.number] = self._field(field, place, group, in_map=in_map, seconds=seconds)
        _link_oneofs(protos, self._fields, first)
        return tuple(by_number[one.number] for one in message.fields)

    def _field(self, field: Field, place: int, group: int, *, in_map: bool, seconds: bool) -> _FieldColumns:
        column, element, child = -1, -1, -1
        inner: tuple[_FieldColumns, ...] = ()
        begin, count = 0, 0
        if field.message is not None:
            kind = _GROUP if field.proto.type == _TYPE_GROUP else _MESSAGE
            column = self._column(_COUNT if field.is_list else _PRESENCE, group)
            child = len(self._nodes)
            below = self._new_group() if field.is_list else group
            moment = field.kind in {"timestamp", "duration"}
            inner = self._node(field.message, below, in_map=field.is_map, seconds=moment)
        else:
            kind = _UINT32_WIDE if field.is_wide and field.kind == "uint32" else _KINDS[field.kind]
            if seconds and field.name == "seconds":
                kind = _SECONDS
            if field.kind == "enum" and field.proto.enum_type.is_closed:
                begin, count = len(self._symbols), len(field.symbols)
                self._symbols += sorted(field.symbols)
            column = self._column(_COUNT if field.is_list else kind, group)
            if field.is_list:
                element = self._column(kind, self._new_group())
        flags = _flags(field.proto, _IN_MAP if in_map else 0)
        self._fields[place] = [field.number, kind, int(field.is_list), column, element, child, -1, begin, count, flags]
        return _FieldColumns(field, column, element, inner, in_map)

    def _new_group(self) -> int:
        self._groups += 1
        return self._groups - 1

    # ---- its columns

    def _struct(
        self, fields: tuple[_FieldColumns, ...], made: list[Any], kind: pa.DataType, rows: int, valid: Any
    ) -> pa.Array:
        children = [_shown(self, where, made, rows) for where in fields] or [pa.nulls(rows, pa.string())]
        return pa.Array.from_buffers(kind, rows, [valid], children=children)


def _shown(program: Program, where: _FieldColumns, made: list[Any], rows: int) -> pa.Array:
    """The column of a field."""
    field = where.field
    length, valid, edges, _ = made[where.column]
    assert length == rows
    if not field.is_list:
        return _filled(
            _values(program, where, made, where.column, None if where.in_map else pa.py_buffer(valid)), where
        )
    count = int(np.frombuffer(edges, np.int32)[-1])
    if field.is_map:
        key, item = (_shown(program, one, made, count) for one in where.inner)
        return _map(np.frombuffer(edges, np.int32), key, item, field.type)
    elements = _values(program, where, made, where.element, None, count)
    return pa.Array.from_buffers(field.column, rows, [None, pa.py_buffer(edges)], children=[elements])


def _values(
    program: Program, where: _FieldColumns, made: list[Any], column: int, valid: Any, rows: int = -1
) -> pa.Array:
    """Values of a field, `valid` None: all are there."""
    field = where.field
    if field.message is not None:
        rows = made[where.column][0] if rows < 0 else rows
        if field.kind == "message":
            return program._struct(where.inner, made, field.type, rows, valid)
        children = [_shown(program, one, made, rows) for one in where.inner]
        if field.kind == "wrapper":
            return (
                children[0]
                if valid is None
                else pc.if_else(_mask(valid, rows), children[0], pa.scalar(None, field.type))
            )
        seconds, nanos = (pc.fill_null(child, 0).to_numpy(zero_copy_only=False) for child in children)
        micros = seconds * 1_000_000 + np.trunc(nanos / 1000).astype(np.int64)
        return pa.Array.from_buffers(field.type, rows, [valid, pa.py_buffer(micros)])
    rows, _, values, texts = made[column]
    if texts is not None:
        return pa.Array.from_buffers(field.type, rows, [valid, pa.py_buffer(values), pa.py_buffer(texts)])
    if field.kind == "enum" and field.type == pa.string():
        return _names(np.frombuffer(values, np.int32), field, valid)
    if field.is_wide and field.kind == "uint64":
        wide = np.zeros((rows, 2), np.uint64)
        wide[:, 0] = np.frombuffer(values, np.uint64)
        values = wide.tobytes()
    return pa.Array.from_buffers(field.type, rows, [valid, pa.py_buffer(values)])


def _filled(column: pa.Array, where: _FieldColumns) -> pa.Array:
    """With the field's default where nothing is."""
    default = where.field.default
    if default is None or not column.null_count:
        return column
    return pc.fill_null(column, pa.scalar(default, column.type))


def _names(numbers: Array, field: Field, valid: Any) -> pa.Array:
    known = np.array(sorted(field.symbols), np.int32)
    indices = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
    names = [field.symbols[number] for number in known.tolist()]
    other = known[indices] != numbers
    if other.any():
        more, places = np.unique(numbers[other], return_inverse=True)
        names += [field.symbol(number) for number in more.tolist()]
        indices[other] = len(known) + places
    shown = pa.Array.from_buffers(pa.int32(), len(numbers), [valid, pa.py_buffer(indices.astype(np.int32))])
    return pa.array(names, pa.string()).take(shown)


def _map(edges: Array, keys: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Of entries of one map with one key the last counts."""
    counts = np.diff(edges)
    if len(counts) and counts.max() > 1:
        rows = np.repeat(np.arange(len(counts)), counts)
        table = pa.table({"row": rows, "key": keys, "entry": np.arange(len(rows))})
        last = table.group_by(["row", "key"]).aggregate([("entry", "max")])["entry_max"].to_numpy()
        if len(last) < len(rows):
            last = np.sort(last)
            keys, items = keys.take(pa.array(last)), items.take(pa.array(last))
            edges = np.concatenate([[0], np.cumsum(np.bincount(rows[last], minlength=len(counts)))]).astype(np.int32)
    entries = pa.Array.from_buffers(
        pa.struct([kind.key_field, kind.item_field]), len(keys), [None], children=[keys, items]
    )
    return pa.Array.from_buffers(kind, len(edges) - 1, [None, pa.py_buffer(edges)], children=[entries])


def _mask(bits: Any, rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), rows, [None, bits])


def _bits(there: Array) -> pa.Buffer | None:
    return None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little").tobytes())


def _flags(proto: Proto, more: int) -> int:
    implicit = not proto.has_presence and not proto.is_repeated and not more & _IN_MAP
    within = more & _IN_MAP and proto.message_type  # an entry without a value has an empty message
    required = proto.is_required or (within and any(one.is_required for one in within.fields))
    return more | (_IMPLICIT if implicit else 0) | (_REQUIRED if required else 0)


def _link_oneofs(protos: list[Proto], fields: list[list[int]], first: int) -> None:
    """Each member names the next one, the last one the first."""
    members: dict[str, list[int]] = {}
    for place, proto in enumerate(protos, first):
        if proto.containing_oneof is not None and len(proto.containing_oneof.fields) > 1:
            members.setdefault(proto.containing_oneof.full_name, []).append(place)
    for places in members.values():
        for place, following in zip(places, [*places[1:], places[0]], strict=True):
            fields[place][6] = following
