"""Decodes values of a writer's schema one by one into the objects of a reader's column: what `avro_resolver` decided,
carried out in plain Python.

Called by avro_decoder.py for what the kernel's program (avro_batches.py) refuses, which says here why it is bad, and
for everything where there is no kernel. Each step becomes a function that reads its bytes. What is only passed over is
passed over without recursion, so a value of any depth takes constant space, and an array of items that take no bytes
constant time, because a few bytes announce any number of them.

Bytes that are no Avro come before a value that cannot be read as the reader's: such a step notes why, and reading goes
on to the end.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from spark_connector.formats.avro_columns import conversion, default_of, member
from spark_connector.formats.avro_resolver import Atom, Fail, FromUnion, Items, Record, Skip, Step, Symbols, ToUnion
from spark_connector.formats.avro_schema import AvroType, Field, Passing, takes_no_bytes
from spark_connector.formats.value_decoder import BadValue

_MOST_ITEMS: Final = (1 << 31) - 1
"""Of an array whose items take no bytes: as many as a list can have in Java."""
_LONGEST: Final = 10
"""Bytes of a long."""
_ALL_BITS: Final = (1 << 64) - 1
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


class _Bytes:
    """A value's bytes; `at` is the next one. Raises EOFError, IndexError or ValueError where they are no Avro."""

    __slots__ = ("at", "raw", "why")

    def __init__(self, raw: bytes, at: int) -> None:
        self.raw, self.at = raw, at
        self.why: str | None = None
        """Why the value cannot be read, though its bytes are Avro."""

    def long(self) -> int:
        byte = self.raw[self.at]
        if byte < 0x80:
            self.at += 1
            return (byte >> 1) ^ -(byte & 1)
        found = shift = 0
        for at in range(self.at, min(self.at + _LONGEST, len(self.raw))):
            byte = self.raw[at]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.at = at + 1
                found &= _ALL_BITS  # what does not fit is dropped, as by Java
                return (found >> 1) ^ -(found & 1)
        if len(self.raw) - self.at < _LONGEST:
            raise EOFError
        raise ValueError("a number of more than 10 bytes")

    def take(self, size: int) -> bytes:
        begin = self.at
        if size < 0 or begin + size > len(self.raw):
            raise EOFError
        self.at = begin + size
        return self.raw[begin : self.at]

    def data(self) -> bytes:
        return self.take(self.long())

    def text(self) -> str:
        return self.take(self.long()).decode("utf-8")

    def count(self) -> int:
        """Of the items of the next block; 0 at the end."""
        count = self.long()
        if count < 0:
            self.long()  # the block's size in bytes
        return abs(count)

    def empty_items(self) -> int:
        """The number of items in an array, which take no bytes."""
        total = 0
        while count := self.count():
            total += count
        return total

    def fail(self, why: str) -> None:
        self.why = self.why or why


_Read = Callable[[_Bytes], Any]


class Program:
    """For values whose types resolve by `step`, and a column of the Arrow type `kind`."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        """Raises ConfigError for a default that is needed and wrong: as in Java, no value can be read then."""
        self._why = step.why if isinstance(step, Fail | Record) else None
        """Why no value can be read, however it is encoded."""
        self._read = _Readers().step(step, kind)

    def read(self, raw: bytes, begin: int) -> Any:
        """The object for the value in `raw` from `begin` to the end. Raises BadValue."""
        if self._why is not None:
            raise BadValue(self._why)
        found = _Bytes(raw, begin)
        try:
            value = self._read(found)
        except Exception as error:
            raise BadValue(f"not Avro of the schema: {_complaint(error)}") from None
        if found.at < len(raw):
            raise BadValue(f"{len(raw) - found.at} bytes are left after the Avro data")
        if found.why is not None:
            raise BadValue(found.why)
        return value


def _complaint(error: Exception) -> str:
    match error:
        case EOFError() | IndexError():
            return "the bytes end too early"
        case KeyError():
            return "it has a branch of a union or a symbol of an enum that the schema does not have"
        case UnicodeDecodeError():
            return "it has text that is not UTF-8"
    return str(error)[:300] or type(error).__name__


class _Readers:
    """Makes the functions of steps."""

    def __init__(self) -> None:
        self._records: dict[tuple[Record, pa.DataType], _Read] = {}
        self._passing = Passing()
        self._inner: dict[AvroType, tuple[AvroType | None, ...]] = {}

    def step(self, step: Step, kind: pa.DataType) -> _Read:
        match step:
            case Fail():
                return self._failing(step.writer, step.why)
            case Skip():
                return self._skip(step.writer)
            case Atom():
                return _atom(step)
            case Symbols():
                return _symbols(step)
            case Items():
                return self._items(step, kind)
            case Record():
                if (step, kind) not in self._records:
                    self._records[step, kind] = self._record(step, kind)
                return self._records[step, kind]
            case FromUnion():
                branches = dict(enumerate(self.step(branch, kind) for branch in step.branches))
                return lambda found: branches[found.long()](found)
            case ToUnion():
                return self._to_union(step, kind)

    def _items(self, step: Items, kind: pa.DataType) -> _Read:
        is_map = step.writer.kind == "map"
        item = self.step(step.item, kind.item_type if is_map else kind.value_type)

        def read_array(found: _Bytes) -> list[Any]:
            items: list[Any] = []
            while count := found.count():
                for _ in range(count):
                    items.append(item(found))  # noqa: PERF401
            return items

        def read_map(found: _Bytes) -> dict[str, Any]:
            entries: dict[str, Any] = {}
            while count := found.count():
                for _ in range(count):
                    key = found.text()
                    entries[key] = item(found)
            return entries

        def read_empty(found: _Bytes) -> list[Any]:
            return [item(found)] if found.empty_items() else []  # one says why it is bad

        assert step.writer.item is not None
        return read_map if is_map else read_empty if takes_no_bytes(step.writer.item) else read_array

    def _record(self, step: Record, kind: pa.DataType) -> _Read:
        if step.why is not None:
            return self._failing(step.writer, step.why)
        try:
            defaults = {one.name: default_of(one, step.writer) for one in step.missing}
        except BadValue as error:
            return self._failing(step.writer, str(error))
        fields: list[tuple[str | None, _Read]] = []
        for (name, inner), written in zip(step.fields, step.writer.fields, strict=True):
            if name is not None and kind.get_field_index(name) >= 0:
                fields.append((name, self.step(inner, kind.field(name).type)))
            elif not takes_no_bytes(written.type):
                fields.append((None, self._skip(written.type)))
        # Arrow takes a field that is absent for null.
        defaults = {name: value for name, value in defaults.items() if value is not None}

        def read(found: _Bytes) -> dict[str, Any]:
            value = defaults.copy()
            for name, one in fields:
                if name is None:
                    one(found)
                else:
                    value[name] = one(found)
            return value

        return read

    def _to_union(self, step: ToUnion, kind: pa.DataType) -> _Read:
        name = member(step.reader, step.index)
        if name is None:
            return self.step(step.step, kind)
        if kind.get_field_index(name) < 0:
            skip = self._skip(step.writer)
            return lambda found: skip(found) or {}
        inner = self.step(step.step, kind.field(name).type)
        return lambda found: {name: inner(found)}

    def _failing(self, writer: AvroType, why: str) -> _Read:
        skip = self._skip(writer)

        def read(found: _Bytes) -> None:
            skip(found)
            found.fail(why)

        return read

    def _skip(self, one: AvroType) -> _Read:
        """Passes over a value, which need not be valid; gives None."""
        bare = self._passing.type(one)
        return _nothing if bare is None else functools.partial(self._pass_over, bare)

    def _pass_over(self, one: AvroType, found: _Bytes) -> None:
        """Without recursion: `left` has what is still to be passed over, and how often."""
        left = [(one, 1)]
        while left:
            node, count = left.pop()
            if count > 1:
                left.append((node, count - 1))
            match node.kind:
                case "record":
                    left.extend((inner, 1) for inner in reversed(self._within(node)) if inner is not None)
                case "union":
                    branch = dict(enumerate(self._within(node)))[found.long()]
                    left.extend([(branch, 1)] if branch is not None else [])
                case "array" | "map":
                    (item,) = self._within(node)
                    if item is None:
                        if found.empty_items() > _MOST_ITEMS:
                            raise ValueError(f"an array of more than {_MOST_ITEMS:,} items")
                    elif more := found.count():
                        left += [(node, 1), (item, more)]  # another block may follow
                case "int" | "long" | "enum":
                    found.long()
                case "string" | "bytes":
                    found.data()
                case kind:
                    found.take(_SIZES.get(kind, node.size))

    def _within(self, one: AvroType) -> tuple[AvroType | None, ...]:
        """What is to be passed over in a value: None for what takes no bytes."""
        if one not in self._inner:
            inner = self._passing.fields(one) if one.kind == "record" else one.branches or [one.item]
            if one.kind == "map":
                assert one.item is not None
                inner = [AvroType("record", fields=(Field("key", AvroType("bytes")), Field("value", one.item)))]
            self._inner[one] = tuple(self._passing.type(each) for each in inner if each is not None)
        return self._inner[one]


def _nothing(_: _Bytes) -> None:
    return None


def _symbols(step: Symbols) -> _Read:
    symbols = dict(enumerate(zip(step.symbols, step.writer.symbols, strict=True)))
    where = f"field {step.path}: " if step.path else ""

    def read(found: _Bytes) -> str | None:
        symbol, written = symbols[found.long()]
        if symbol is None:
            found.fail(f"{where}the reader's {step.writer} has no symbol '{written}' and no default")
        return symbol

    return read


def _atom(step: Atom) -> _Read:
    writer, reader = step.writer, step.reader
    plain = _PLAIN.get(reader.kind if reader.kind in {"string", "bytes"} else writer.kind)
    if plain is None:
        plain = _fixed(writer.size)
    convert = conversion(writer.kind, reader, step.path)
    if convert is None:
        return plain

    def read(found: _Bytes) -> Any:
        try:
            return convert(plain(found))
        except BadValue as error:
            found.fail(str(error))

    return read


def _fixed(size: int) -> _Read:
    return lambda found: found.take(size)


_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_PLAIN: Final[dict[str, _Read]] = {
    "null": _nothing,
    "boolean": lambda found: found.take(1) != b"\0",
    "int": _Bytes.long,
    "long": _Bytes.long,
    "float": lambda found: _FLOAT.unpack(found.take(4))[0],
    "double": lambda found: _DOUBLE.unpack(found.take(8))[0],
    "bytes": _Bytes.data,
    "string": _Bytes.text,
}
