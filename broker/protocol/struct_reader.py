"""Reads the structs of messages with functions that are compiled from kio's classes, once for each struct.

kio's own readers reserve memory for any array length that a frame announces, and abort the process if there is too
little. These check every length against the end before they use it. They ignore tagged fields that the schema does not
know, as KIP-482 wants it, and give the `records` of a message as a view of the buffer. A struct becomes a named tuple
with kio's field names; what a `Table` declares becomes an object of its class. Tests compare both with kio's.

Generated functions are as fast as written ones, because neighbours of fixed size are one `struct` call, as in:

    def run(data, at, end):
        v_index, v_error_code = x3(data, at)
        at += 6
        v_error_code = ErrorCode(v_error_code)
        return new(x4, (v_index, v_error_code)), at
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import struct
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from broker.errors import ErrorCode
from broker.protocol.entities import Field, Table, fields_of

Reader: TypeAlias = Callable[[Any, int, int], tuple[Any, int]]
"""(data, position, end) -> (the struct, where it ends). Raises ValueError, LookupError, OverflowError,
struct.error."""

EPOCH: Final = datetime.datetime.fromtimestamp(0, datetime.UTC)
NO_ID: Final = bytes(16)

FORMATS: Final = {
    "bool": "B",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "error_code": "h",
    "int32": "i",
    "timedelta_i32": "i",
    "int64": "q",
    "timedelta_i64": "q",
    "datetime_i64": "q",
    "float64": "d",
    "uuid": "16s",
    "some_uuid": "16s",  # where zeros are an id, too
}
"""The types of fixed size."""


class StructCode:
    """A function for one struct in the making, and the names that it uses."""

    def __init__(self, head: str, names: Mapping[str, Any], entity: Any) -> None:
        self._lines = [f"def run({head}):"]
        self._names = dict(names)
        self._depth = 1
        self.entity = entity
        fields = fields_of(entity)
        self.flexible: bool = entity.__flexible__
        self.plain = [field for field in fields if field.tag is None]
        self.tagged = sorted([field for field in fields if field.tag is not None], key=lambda field: field.tag or 0)
        self.ends_fixed = bool(self.plain) and is_fixed(self.plain[-1])

    def add(self, *lines: str) -> None:
        self._lines += ["    " * self._depth + line for line in lines]

    @contextlib.contextmanager
    def block(self, line: str) -> Iterator[None]:
        self.add(line)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, value: Any) -> str:
        name = f"x{len(self._names)}"
        self._names[name] = value
        return name

    def compiled(self) -> Any:
        exec("\n".join(self._lines), self._names)
        return self._names["run"]


def is_fixed(field: Field) -> bool:
    return not field.is_array and field.kafka_type in FORMATS


def _layout(fields: Iterable[Field], behind: str) -> struct.Struct:
    return struct.Struct(">" + "".join(FORMATS[field.kafka_type] for field in fields) + behind)


def length_bytes(field: Field) -> int:
    """Of a string or bytes, where lengths are not compact."""
    return 2 if field.kafka_type == "string" else 4


@functools.lru_cache(maxsize=4096)
def _timedelta(milliseconds: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=milliseconds)


def _datetime(milliseconds: int) -> datetime.datetime | None:
    return None if milliseconds == -1 else EPOCH + datetime.timedelta(milliseconds=milliseconds)


@functools.lru_cache(maxsize=4096)
def _uuid(raw: bytes) -> uuid.UUID | None:
    return None if raw == NO_ID else uuid.UUID(bytes=raw)


def read_varint(data: Any, at: int) -> tuple[int, int]:
    """An unsigned varint, and where it ends. Raises as a `Reader`."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("a varint of more than five bytes")


def skip_tags(data: Any, at: int, end: int) -> int:
    """The position after tagged fields, of which none is known. Raises as a `Reader`."""
    count, at = read_varint(data, at)
    for _ in range(count):
        _, at = read_varint(data, at)
        size, at = read_varint(data, at)
        at += size
        if at > end:
            _refuse_end(at - end)
    return at


def _refuse_null(name: str, length: int) -> None:
    raise ValueError(f"{name} is null" if length == -1 else f"{name} has the length {length}")


def _refuse_array(count: int, room: int) -> None:
    raise ValueError(f"an array of {count} elements in {room} bytes")


def _refuse_end(missing: int) -> None:
    raise ValueError(f"{missing} bytes are missing")


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": {0: False, 1: True}.__getitem__,
    "error_code": {code.value: code for code in ErrorCode}.__getitem__,
    "timedelta_i32": _timedelta,
    "timedelta_i64": _timedelta,
    "datetime_i64": _datetime,
    "uuid": _uuid,
    "some_uuid": functools.lru_cache(maxsize=4096)(lambda raw: uuid.UUID(bytes=raw)),
}
_TEXTS: Final = {
    "string": "str(data[begin:at], 'utf-8')",
    "bytes": "bytes(data[begin:at])",
    "records": "data[begin:at]",
}

_READ_NAMES: Final[Mapping[str, Any]] = {
    **_CONVERTERS,
    "new": tuple.__new__,
    "varint": read_varint,
    "refuse_null": _refuse_null,
    "refuse_array": _refuse_array,
    "refuse_end": _refuse_end,
    "int16": struct.Struct(">h").unpack_from,
    "int32": struct.Struct(">i").unpack_from,
    "unpack_from": struct.unpack_from,
}


@functools.cache
def reader(entity: Any) -> Reader:
    """The reader of kio's class `entity`, or of a table."""
    code = _ReaderCode("data, at, end", _READ_NAMES, entity)
    for fixed, run in itertools.groupby(code.plain, is_fixed):
        if fixed:
            code.fixed(list(run))
        else:
            for field in run:
                code.field(field)
    if code.flexible:
        code.tags()
    code.body()
    read: Reader = code.compiled()
    return read


@functools.cache
def _body_class(entity: Any) -> Any:
    if isinstance(entity, Table):
        return entity.row
    return collections.namedtuple(entity.__name__, [field.name for field in fields_of(entity)])


def _from_wire(field: Field) -> str:
    return f"{field.kafka_type}(v_{field.name})" if field.kafka_type in _CONVERTERS else f"v_{field.name}"


class _ReaderCode(StructCode):
    """Reads `data` from `at` on. The field `name` goes into the variable `v_name`."""

    def fixed(self, run: list[Field]) -> None:
        """Neighbours of fixed size; behind the last, too, the number of tagged fields, which has mostly one byte."""
        has_tags = self.flexible and run[-1] is self.plain[-1]
        layout = _layout(run, "B" * has_tags)
        targets = "".join(f"v_{field.name}, " for field in run) + "tags, " * has_tags
        self.add(f"{targets} = {self.name(layout.unpack_from)}(data, at)", f"at += {layout.size}")
        self.add(*(f"v_{field.name} = {_from_wire(field)}" for field in run if field.kafka_type in _CONVERTERS))

    def field(self, field: Field) -> None:
        if field.is_array:
            self._array(field)
        else:
            may_be_null = field.optional and (field.tag is None or isinstance(field.struct, Table))
            self._value(field, f"v_{field.name}", may_be_null=may_be_null)

    def _length(self, width: int) -> None:
        if self.flexible:
            self.add("n = data[at] - 1", "at += 1", "if n > 126:", "    n, at = varint(data, at - 1)", "    n -= 1")
        else:
            self.add(f"(n,) = int{8 * width}(data, at)", f"at += {width}")

    def _value(self, field: Field, to: str, *, may_be_null: bool = False) -> None:
        """A struct, string, bytes, or a number alone."""
        if field.struct is not None:
            read = f"{self.name(reader(field.struct))}(data, at, end)"
            if may_be_null:
                self.add("at += 1")
                read += " if data[at - 1] < 0x80 else (None, at)"
            self.add(f"{to}, at = {read}")
        elif field.kafka_type in FORMATS:
            layout = _layout([field], "")
            self.add(f"(v_{field.name},) = {self.name(layout.unpack_from)}(data, at)", f"at += {layout.size}")
            self.add(f"{to} = {_from_wire(field)}")
        else:
            self._length(length_bytes(field))
            with self.block("if n < 0:"):
                self.add(f"if n < -1 or not {may_be_null}:", f"    refuse_null({field.name!r}, n)", f"{to} = None")
            with self.block("else:"):
                self.add("begin, at = at, at + n", "if at > end:", "    refuse_end(at - end)")
                self.add(f"{to} = {_TEXTS[field.kafka_type]}")

    def _array(self, field: Field) -> None:
        to, row = f"v_{field.name}", row_layout(field)
        size = row.size if row is not None else struct.calcsize(FORMATS.get(field.kafka_type, "b"))
        self._length(4)
        self.add(f"{to}, after = (), at + n * {size}")
        with self.block("if n < 0:"):
            self.add(f"if n < -1 or not {field.optional}:", "    refuse_array(n, end - at)", f"{to} = None")
        with self.block("elif after > end:"):
            self.add("refuse_array(n, end - at)")
        if row is not None:
            no_tags = f" and not any(data[at + {size - 1}:after:{size}])" * field.struct.__flexible__
            with self.block(f"elif n{no_tags}:"):
                self._rows(field, to, row)
        with self.block("elif n:"):
            if field.kafka_type in FORMATS and field.kafka_type not in _CONVERTERS:
                self.add(f"{to}, at = unpack_from(f'>{{n}}{FORMATS[field.kafka_type]}', data, at), after")
                return
            self.add("elements = []")
            with self.block("for _ in range(n):"):
                self._value(field, "element")
                self.add("elements.append(element)")
            self.add(f"{to} = tuple(elements)")

    def _rows(self, field: Field, to: str, row: struct.Struct) -> None:
        """All elements at once, up to `after`."""
        inner, body, rows = fields_of(field.struct), self.name(_body_class(field.struct)), self.name(row.iter_unpack)
        names = values = "row"
        if any(one.kafka_type in _CONVERTERS for one in inner):
            names = "".join(f"v_{one.name}, " for one in inner)
            values = f"({''.join(f'{_from_wire(one)}, ' for one in inner)})"
        self.add(f"{to} = tuple([new({body}, {values}) for {names} in {rows}(data[at:after])])", "at = after")

    def tags(self) -> None:
        if not self.ends_fixed:
            self.add("tags = data[at]", "at += 1")
        self.add(*(f"v_{field.name} = {self.name(_default_body(field))}" for field in self.tagged))
        self.add("if tags > 127:", "    tags, at = varint(data, at - 1)")
        with self.block("for _ in range(tags):"):
            self.add("tag, at = varint(data, at)", "size, at = varint(data, at)", "end, outer = at + size, end")
            self.add("if end > outer:", "    refuse_end(end - outer)")
            for field in self.tagged:
                with self.block(f"if tag == {field.tag}:"):
                    self.field(field)
                    self.add("if at > end:", "    refuse_end(at - end)")
            self.add("at, end = end, outer")

    def body(self) -> None:
        fields = fields_of(self.entity)
        values, make = [f"v_{field.name}" for field in fields], "new({0}, ({1}))"
        for field in fields:
            if field.wire.read:
                beside = f", v_{field.wire.beside}" if field.wire.beside else ""
                self.add(f"v_{field.name} = {self.name(field.wire.read)}(v_{field.name}{beside})")
        if isinstance(self.entity, Table):
            columns = self.entity.columns.values()
            values = [f"v_{one.name}" if one in fields else self.name(self.entity.lacking(one)) for one in columns]
            make = make if self.entity.is_tuple else "{0}({1})"
        made = make.format(self.name(_body_class(self.entity)), "".join(f"{value}, " for value in values))
        self.add(f"return {made}, at")


def row_layout(field: Field) -> struct.Struct | None:
    """How to unpack an element whose fields are all of fixed size; its tags must be empty."""
    inner = fields_of(field.struct) if field.struct is not None else ()
    if not inner or not all(is_fixed(one) and one.tag is None for one in inner) or not _is_whole(field.struct):
        return None
    return _layout(inner, "x" * field.struct.__flexible__)


def _is_whole(entity: Any) -> bool:
    """Whether an object of the struct is a tuple of what is stored."""
    if not isinstance(entity, Table):
        return True
    names = [field.name for field in fields_of(entity) if not (field.wire.read or field.wire.write)]
    return entity.is_tuple and names == list(entity.columns)


def _default_body(field: Field) -> Any:
    """The default of a tagged field, as a reader gives it."""
    if dataclasses.is_dataclass(field.default):
        return _body_class(field.struct)(*(getattr(field.default, f.name) for f in fields_of(field.struct)))
    return field.default
