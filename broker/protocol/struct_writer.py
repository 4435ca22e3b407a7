"""Writes the structs of messages with functions that are compiled from kio's classes, as `struct_reader` reads them.

A writer takes a mapping by kio's field names: fields that the struct lacks are ignored, missing ones get the schema's
default or zero. What a `Table` declares is written from an object of its class, or from a tuple.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from broker.protocol.entities import Field, Table, fields_of
from broker.protocol.struct_reader import EPOCH, FORMATS, NO_ID, StructCode, is_fixed, length_bytes, row_layout
from broker.protocol.wire import unsigned_varint

Writer: TypeAlias = Callable[[Callable[[Any], None], Any], None]
"""(append of a list of bytes, `get` of a mapping or the object of a table): appends the struct, piece by piece."""

_MS: Final = datetime.timedelta(milliseconds=1)


def _timedelta_ms(value: Any) -> int:
    return value if isinstance(value, int) else value // _MS


def _datetime_ms(value: Any) -> int:
    if value is None:
        return -1
    return max(value, -1) if isinstance(value, int) else (value - EPOCH) // _MS


def _uuid_bytes(value: uuid.UUID | None) -> bytes:
    return NO_ID if value is None else value.bytes


_TO_WIRE: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": bool,
    "timedelta_i32": _timedelta_ms,
    "timedelta_i64": _timedelta_ms,
    "datetime_i64": _datetime_ms,
    "uuid": _uuid_bytes,
    "some_uuid": _uuid_bytes,
}
_ZEROS: Final[Mapping[str, Any]] = {"string": "", "bytes": b"", "records": b"", "bool": False, "float64": 0.0}

_WRITE_NAMES: Final[Mapping[str, Any]] = {
    **_TO_WIRE,
    "unsigned_varint": unsigned_varint,
    "short": [unsigned_varint(length) for length in range(129)],
    "int16": struct.Struct(">h").pack,
    "int32": struct.Struct(">i").pack,
    "pack": struct.pack,
    "join": b"".join,
}


def encode(entity: Any, values: Mapping[str, Any]) -> bytes:
    pieces: list[Any] = []
    writer(entity)(pieces.append, values.get)
    return b"".join(pieces)


@functools.cache
def writer(entity: Any) -> Writer:
    """The writer of kio's class `entity`, or of a table."""
    code = _WriterCode("put, get", _WRITE_NAMES, entity)
    code.fields()
    write: Writer = code.compiled()
    return write


@functools.cache
def encoder(table: Table, head: bytes = b"") -> Callable[[Any], bytes]:
    """A function that gives the bytes of an object behind `head`."""
    code = _WriterCode("get", _WRITE_NAMES, table, head)
    code.is_flat = not code.flexible and all(
        is_fixed(field) or (field.kafka_type == "string" and not (field.is_array or field.optional))
        for field in code.plain
    )
    if not code.is_flat:
        code.add("pieces = []", "put = pieces.append")
    code.fields()
    code.add(f"return {' + '.join(code.pieces)}" if code.is_flat else "return join(pieces)")
    encode: Callable[[Any], bytes] = code.compiled()
    return encode


def _default_value(field: Field) -> Any:
    """What a missing field has, as a caller would give it."""
    if dataclasses.is_dataclass(field.default):
        return {f.name: getattr(field.default, f.name) for f in fields_of(field.struct)}
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.is_array:
        return ()
    if field.optional:
        return None
    return {} if field.struct is not None else _ZEROS.get(field.kafka_type, 0)


class _WriterCode(StructCode):
    """Puts the fields that `get` finds. Neighbours of fixed size are put together, with the length behind them."""

    def __init__(self, head: str, names: Mapping[str, Any], entity: Any, begins: bytes = b"") -> None:
        super().__init__(head, names, entity)
        self._run = [(f"{len(begins)}s", repr(begins))] if begins else []
        """Of fixed size, and not yet put: (format, argument)."""
        self.is_flat = False
        """Nothing is put: the struct is the sum of the variables `pieces`, because that is faster for a few."""
        self.pieces: list[str] = []

    def fields(self) -> None:
        if isinstance(self.entity, Table) and self.entity.is_tuple:
            self.add(f"{''.join(f'v_{name}, ' for name in self.entity.columns)} = get")
        for field in self.plain:
            if is_fixed(field):
                self.fixed(field)
            else:
                self.field(field)
        self.tags()

    def put(self, value: str = "") -> None:
        """Put what is of fixed size before, then the value."""
        if self._run:
            layout = struct.Struct(">" + "".join(kind for kind, _ in self._run))
            values, self._run = ", ".join(argument for _, argument in self._run if argument), []
            self.put(f"{self.name(layout.pack)}({values})")
        if value and self.is_flat:
            self.pieces.append(f"piece_{len(self.pieces)}")
            self.add(f"{self.pieces[-1]} = {value}")
        elif value:
            self.add(f"put({value})")

    def fixed(self, field: Field) -> None:
        """Behind the last, too, that there are no tagged fields, if the struct knows none."""
        self._run.append((FORMATS[field.kafka_type], self._converted(field, self._got(field))))
        if self.flexible and not self.tagged and field is self.plain[-1]:
            self._run.append(("x", ""))

    def field(self, field: Field) -> None:
        """A field of another type, or a tagged one of any type."""
        self.add(f"value = {self._got(field)}")
        if not field.optional:
            self._value(field)
            return
        is_struct = field.struct is not None and not field.is_array
        width = 4 if field.is_array else length_bytes(field)
        null = b"\xff" * (1 if is_struct else width) if is_struct or not self.flexible else b"\0"
        self.put()
        with self.block("if value is None:"):
            self.put(repr(null))
        with self.block("else:"):
            if is_struct:
                self.put("b'\\x01'")
            self._value(field)

    def tags(self) -> None:
        if not self.tagged:
            self.put("b'\\0'" if self.flexible and not self.ends_fixed else "")
            self.add("pass")
            return
        self.put()
        self.add("tags = []", "outer = put")
        for field in self.tagged:
            self._tag(field)
        self.add("outer(short[len(tags)] + join(tags) if tags else b'\\0')")

    def _tag(self, field: Field) -> None:
        default = _default_value(field)
        left_out = encode(field.struct, default) if isinstance(default, Mapping) else None
        tag = unsigned_varint(field.tag or 0)
        self.add(f"value = {self._got(field)}")
        condition = "value" if field.is_array else f"value is not None and value != {self.name(default)}"
        with self.block(f"if {condition}:"):
            if is_fixed(field):
                layout = struct.Struct(f">{len(tag)}sB{FORMATS[field.kafka_type]}")
                size = layout.size - len(tag) - 1
                self.add(f"tags.append({self.name(layout.pack)}({tag!r}, {size}, {self._converted(field, 'value')}))")
                return
            self.add("held = []", "put = held.append")
            if field.optional and isinstance(field.struct, Table):
                self.put("b'\\x01'")
            self._value(field)
            self.put()
            self.add("held = join(held)", f"if held != {left_out!r}:")
            self.add(f"    tags.append({tag!r} + unsigned_varint(len(held)) + held)")

    def _got(self, field: Field) -> str:
        if not isinstance(self.entity, Table):
            return f"get({field.name!r}, {self.name(_default_value(field))})"
        got = f"v_{field.name}" if self.entity.is_tuple else f"get.{field.name}"
        return f"{self.name(field.wire.write)}({got})" if field.wire.write else got

    def _converted(self, field: Field, value: str) -> str:
        return f"{field.kafka_type}({value})" if field.kafka_type in _TO_WIRE else value

    def _length(self, width: int, of: str) -> None:
        if self.flexible:
            self.put()
            self.add(f"n = len({of}) + 1", "put(short[n] if n < 129 else unsigned_varint(n))")
        else:
            self._run.append(("h" if width == 2 else "i", f"len({of})"))

    def _value(self, field: Field) -> None:
        """`value`, which is not null."""
        if not field.is_array:
            self._element(field, "value")
            return
        self._length(4, "value")
        self.put()
        if field.kafka_type in FORMATS and field.kafka_type not in _TO_WIRE:
            self.put(f"pack(f'>{{len(value)}}{FORMATS[field.kafka_type]}', *value)")
            return
        row = row_layout(field) if isinstance(field.struct, Table) else None
        if row is not None and not any(one.kafka_type in _TO_WIRE for one in fields_of(field.struct)):
            self.put(f"join([{self.name(row.pack)}(*item) for item in value])")
            return
        with self.block("for item in value:"):
            self._element(field, "item")
            self.put()

    def _element(self, field: Field, value: str) -> None:
        if field.struct is not None:
            given = value if isinstance(field.struct, Table) else f"{value}.get"
            self.put()
            self.add(f"{self.name(writer(field.struct))}(put, {given})")
        elif field.kafka_type in FORMATS:
            self._run.append((FORMATS[field.kafka_type], self._converted(field, value)))
        else:
            if field.kafka_type == "string":
                self.add(f"{value} = {value}.encode()")
            self._length(length_bytes(field), value)
            self.put(value)
