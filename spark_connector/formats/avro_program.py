"""Decodes values of a writer's schema into the objects of a reader's column: what `avro_resolver` decided, carried out.

Called by avro_decoder.py. fastavro decodes with a schema of the writer's encoding that is written here: what the column
does not have is read without logical types, a branch of a union that Spark shows as a struct is a record of one field
(it is encoded alike, and so nobody has to guess the branch by a Python type), and string and bytes are the reader's.
Then functions fix in place what is left: defaults, decimals, numbers that are promoted, branches that cannot be read.
Most schemas need few of these.

The schema is in the form that fastavro's parser returns, with dicts by index for the branches of unions and for
symbols: from a list, fastavro takes a negative index from the end, and so reads bytes that are no Avro as a value.
Schemas that fastavro's C code must not read are read by _Walk: recursive ones, where a value of 10 kB can be
nested so deep that the process dies, and arrays whose items take no bytes, where a few bytes announce any number.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, Final

import fastavro
import pyarrow as pa

from spark_connector.formats.avro_columns import conversion, default_of, member
from spark_connector.formats.avro_resolver import Atom, Fail, FromUnion, Items, Record, Skip, Step, Symbols, ToUnion
from spark_connector.formats.avro_schema import AvroType, Passing, takes_no_bytes
from spark_connector.formats.value_decoder import BadValue

_Fix = Callable[[Any], Any]
_Compiled = tuple[Any, _Fix | None]
"""(schema for fastavro, function that makes its object that of the column, or None)."""
_VALUE: Final = "value"
_SKIPPED: Final = {"string": "bytes", "enum": "int"}
"""What nobody reads need not be valid."""
_MOST_ITEMS: Final = (1 << 31) - 1
"""Of an array whose items take no bytes: as many as a list can have in Java."""


class Program:
    """For values whose types resolve by `step`, and a column of the Arrow type `kind`."""

    def __init__(self, step: Step, kind: pa.DataType) -> None:
        """Raises ConfigError for a default that is needed and wrong: as in Java, no value can be read then."""
        self._why = step.why if isinstance(step, Fail | Record) else None
        """Why no value can be read, however it is encoded."""
        made = _Compiler()
        node, self._fix = made.step(step, kind)
        self.by_fastavro = not made.needs_care
        # In a record of its own, so that fastavro takes a schema of any type as parsed.
        self._schema: dict[str, Any] = {"type": "record", "name": "value", "fields": [{"name": _VALUE, "type": node}]}
        self._schema |= {"__fastavro_parsed": True, "__named_schemas": {}}

    def read(self, raw: bytes, begin: int) -> Any:
        """The object for the value in `raw` from `begin` to the end. Raises BadValue."""
        if self._why is not None:
            raise BadValue(self._why)
        try:
            if self.by_fastavro:
                stream = io.BytesIO(raw)
                stream.seek(begin)
                value: Any = fastavro.schemaless_reader(stream, self._schema, None)
                left = len(raw) - stream.tell()
            else:
                walk = _Walk(raw, begin)
                value = walk.value(self._schema)
                left = len(raw) - walk.at
        except Exception as error:  # fastavro raises all kinds of errors for bytes that are not Avro
            raise BadValue(f"not Avro of the schema: {_complaint(error)}") from None
        if left:
            raise BadValue(f"{left} bytes are left after the Avro data")
        return value[_VALUE] if self._fix is None else self._fix(value[_VALUE])


def _complaint(error: Exception) -> str:
    match error:
        case EOFError() | IndexError():
            return "the bytes end too early"
        case KeyError():
            return "it has a branch of a union or a symbol of an enum that the schema does not have"
        case UnicodeDecodeError():
            return "it has text that is not UTF-8"
    return str(error)[:300] or type(error).__name__


class _Compiler:
    def __init__(self) -> None:
        self.needs_care = False
        self._records: dict[tuple[Record, pa.DataType], _Compiled] = {}
        self._skipped: dict[AvroType, Any] = {}
        self._passing = Passing()
        self._open: set[AvroType] = set()
        self._names = 0

    def step(self, step: Step, kind: pa.DataType) -> _Compiled:
        match step:
            case Fail():
                return self._skip(step.writer), _failing(step.why)
            case Skip():
                return self._skip(step.writer), None
            case Atom():
                return self._atom(step)
            case Symbols():
                return self._symbols(step)
            case Items():
                return self._items(step, kind)
            case Record():
                if (step, kind) not in self._records:
                    self._records[step, kind] = self._record(step, kind)
                return self._records[step, kind]
            case FromUnion():
                return self._from_union(step, kind)
            case ToUnion():
                return self._to_union(step, kind)

    def _atom(self, step: Atom) -> _Compiled:
        fix = conversion(step.writer.kind, step.reader, step.path)
        if step.writer.kind == "fixed":
            return self._fixed(step.writer), fix
        return step.reader.kind if step.reader.kind in {"string", "bytes"} else step.writer.kind, fix

    def _symbols(self, step: Symbols) -> _Compiled:
        node = {"type": "enum", "name": self._name(), "symbols": dict(enumerate(step.writer.symbols))}
        if step.symbols == step.writer.symbols:
            return node, None
        found = dict(zip(step.writer.symbols, step.symbols, strict=True))

        def fix(value: str) -> str:
            symbol = found[value]
            if symbol is None:
                where = f"field {step.path}: " if step.path else ""
                raise BadValue(f"{where}the reader's {step.writer} has no symbol '{value}' and no default")
            return symbol

        return node, fix

    def _items(self, step: Items, kind: pa.DataType) -> _Compiled:
        is_map = step.writer.kind == "map"
        inner, fix = self.step(step.item, kind.item_type if is_map else kind.value_type)
        node = self._array_or_map(step.writer, inner)
        if fix is None:
            return node, None
        if is_map:
            return node, lambda value: {key: fix(item) for key, item in value.items()}
        return node, lambda value: [fix(item) for item in value]

    def _record(self, step: Record, kind: pa.DataType) -> _Compiled:
        if step.why is not None:
            return self._skip(step.writer), _failing(step.why)
        try:
            defaults = {one.name: default_of(one, step.writer) for one in step.missing}
        except BadValue as error:
            return self._skip(step.writer), _failing(str(error))
        fields, fixed = [], []
        for number, ((name, inner), written) in enumerate(zip(step.fields, step.writer.fields, strict=True)):
            index = -1 if name is None else kind.get_field_index(name)
            if name is None or index < 0:
                if self._passing.type(written.type) is not None:
                    # The name is one that no field can have: Arrow ignores it.
                    fields.append({"name": f"{number}", "type": self._skip(written.type), "skip": True})
                continue
            made, fix = self.step(inner, kind.field(index).type)
            fields.append({"name": name, "type": made})
            if fix is not None:
                fixed.append((name, fix))
        # Arrow takes a field that is absent for null.
        defaults = {name: value for name, value in defaults.items() if value is not None}
        return {"type": "record", "name": self._name(), "fields": fields}, _of_record(fixed, defaults)

    def _from_union(self, step: FromUnion, kind: pa.DataType) -> _Compiled:
        made = [self.step(branch, kind) for branch in step.branches]
        null = [branch.kind == "null" for branch in step.writer.branches]
        nodes, fixes = [node for node, _ in made], [fix for _, fix in made]
        some = [fix for fix, is_null in zip(fixes, null, strict=True) if not is_null]
        of_null = next((fix for fix, is_null in zip(fixes, null, strict=True) if is_null), None)
        if not any(fixes):
            return _union(nodes), None
        if len(some) <= 1:
            return _union(nodes), _of_nullable(some[0] if some else None, of_null)
        # To be fixed, branches must be told apart: each is read as a record of one field, named by its index.
        nodes = [
            node if is_null else self._record_of(str(index), node)
            for index, (node, is_null) in enumerate(zip(nodes, null, strict=True))
        ]
        by_index = {str(index): fix for index, fix in enumerate(fixes)}

        def fix_branch(value: dict[str, Any]) -> Any:
            ((index, inner),) = value.items()
            fix = by_index[index]
            return inner if fix is None else fix(inner)

        return _union(nodes), _of_nullable(fix_branch, of_null)

    def _to_union(self, step: ToUnion, kind: pa.DataType) -> _Compiled:
        name = member(step.reader, step.index)
        if name is None:
            return self.step(step.step, kind)
        index = kind.get_field_index(name)
        if index < 0:
            return self._record_of(name, self._skip(step.writer)), None
        node, fix = self.step(step.step, kind.field(index).type)
        return self._record_of(name, node), None if fix is None else _of_record([(name, fix)], {})

    def _skip(self, one: AvroType) -> Any:
        """The schema for passing over a value."""
        if one.kind == "null":
            return "null"
        bare = self._passing.type(one)
        # A value of no bytes is not None, by which unions know their null.
        return {"type": "fixed", "name": self._name(), "size": 0} if bare is None else self._skip_bare(bare)

    def _skip_bare(self, one: AvroType) -> Any:
        if one.kind == "fixed":
            return self._fixed(one)
        if one.kind not in {"record", "union", "array", "map"}:
            return _SKIPPED.get(one.kind, one.kind)
        if one in self._skipped:
            self.needs_care = self.needs_care or one in self._open
            return self._skipped[one]
        made: dict[Any, Any] = {}
        self._skipped[one] = made  # before what is in it, which may lead to it again
        self._open.add(one)
        made |= self._skip_nested(one)
        self._open.remove(one)
        return made

    def _skip_nested(self, one: AvroType) -> dict[Any, Any]:
        match one.kind:
            case "record":
                inner = enumerate(self._passing.fields(one))
                fields = [{"name": str(number), "type": self._skip(field)} for number, field in inner]
                return {"type": "record", "name": self._name(), "fields": fields}
            case "union":
                return _union([self._skip(branch) for branch in one.branches])
        assert one.item is not None
        if one.kind == "array":
            return self._array_or_map(one, self._skip(one.item))
        # A map as an array of entries, which is encoded alike, because the keys need not be valid either.
        fields = [{"name": "key", "type": "bytes"}, {"name": "value", "type": self._skip(one.item)}]
        entry = {"type": "record", "name": self._name(), "fields": fields}
        return {"type": "array", "items": entry, "empty": False}

    def _array_or_map(self, one: AvroType, inner: Any) -> dict[str, Any]:
        assert one.item is not None
        if one.kind == "map":
            return {"type": "map", "values": inner}
        is_empty = takes_no_bytes(one.item)
        self.needs_care = self.needs_care or is_empty
        return {"type": "array", "items": inner, "empty": is_empty}

    def _fixed(self, one: AvroType) -> dict[str, Any]:
        return {"type": "fixed", "name": self._name(), "size": one.size}

    def _record_of(self, name: str, inner: Any) -> dict[str, Any]:
        return {"type": "record", "name": self._name(), "fields": [{"name": name, "type": inner}]}

    def _name(self) -> str:
        self._names += 1
        return f"t{self._names}"


def _union(nodes: list[Any]) -> dict[Any, Any]:
    return {"type": "union", **dict(enumerate(nodes))}


def _of_nullable(some: _Fix | None, null: _Fix | None) -> _Fix:
    def fix(value: Any) -> Any:
        one = null if value is None else some
        return value if one is None else one(value)

    return fix


def _of_record(fixed: list[tuple[str, _Fix]], defaults: dict[str, Any]) -> _Fix | None:
    if not fixed and not defaults:
        return None
    if len(fixed) == 1 and not defaults:
        return _of_field(*fixed[0])

    def fix(value: dict[str, Any]) -> dict[str, Any]:
        for name, one in fixed:
            value[name] = one(value[name])
        value.update(defaults)
        return value

    return fix


def _of_field(name: str, one: _Fix) -> _Fix:
    def fix(value: dict[str, Any]) -> dict[str, Any]:
        value[name] = one(value[name])
        return value

    return fix


def _failing(why: str) -> _Fix:
    def fix(_: Any) -> Any:
        raise BadValue(why)

    return fix


_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_LONGEST: Final = 10
"""Bytes of a long."""


class _Walk:
    """Reads Avro's encoding in Python, where fastavro's C code must not: the same schemas, the same objects.

    What is only passed over is passed over without recursion, so a list of any length is read in constant space, and an
    array of items that take no bytes in constant time: it gives one item for any number. A field that is marked `skip`
    has no value. Raises EOFError, KeyError, ValueError, RecursionError for bytes that are not Avro.
    """

    def __init__(self, raw: bytes, begin: int) -> None:
        self._raw = raw
        self.at = begin

    def value(self, node: Any) -> Any:
        kind = node if isinstance(node, str) else node["type"]
        match kind:
            case "record":
                return self._record(node["fields"])
            case "union":
                return self.value(node[self._long()])
            case "array":
                if node["empty"]:
                    return [self.value(node["items"])] if self._empty_items() else []
                items: list[Any] = []
                while (count := self._count()) > 0:
                    items.extend(self.value(node["items"]) for _ in range(count))
                return items
            case "map":
                entries: dict[str, Any] = {}
                while (count := self._count()) > 0:
                    for _ in range(count):
                        key = self._take(self._long()).decode("utf-8")
                        entries[key] = self.value(node["values"])
                return entries
            case "enum":
                return node["symbols"][self._long()]
            case "fixed":
                return self._take(node["size"])
            case "int" | "long":
                return self._long()
            case "bytes":
                return self._take(self._long())
            case "string":
                return self._take(self._long()).decode("utf-8")
            case "boolean":
                return self._take(1) != b"\0"
            case "float":
                return struct.unpack("<f", self._take(4))[0]
            case "double":
                return struct.unpack("<d", self._take(8))[0]
        return None

    def _record(self, fields: list[dict[str, Any]]) -> dict[str, Any]:
        made = {}
        for one in fields:
            if "skip" in one:
                self._pass_over(one["type"])
            else:
                made[one["name"]] = self.value(one["type"])
        return made

    def _pass_over(self, node: Any) -> None:
        """Without recursion: `left` has what is still to be passed over, and how often."""
        left: list[tuple[Any, int]] = [(node, 1)]
        while left:
            node, count = left.pop()
            if count > 1:
                left.append((node, count - 1))
            kind = node if isinstance(node, str) else node["type"]
            if kind == "record":
                left.extend((one["type"], 1) for one in reversed(node["fields"]))
            elif kind == "union":
                left.append((node[self._long()], 1))
            elif kind == "array" and node["empty"]:
                if self._empty_items() > _MOST_ITEMS:
                    raise ValueError(f"an array of more than {_MOST_ITEMS:,} items")
            elif kind == "array":  # or a map, which is passed over as an array of its entries
                count = self._count()
                if count > 0:
                    left += [(node, 1), (node["items"], count)]  # another block may follow
            elif kind in {"int", "long"}:
                self._long()
            else:
                self._take(self._long() if kind == "bytes" else node["size"] if kind == "fixed" else _SIZES[kind])

    def _empty_items(self) -> int:
        """The number of items in an array, which take no bytes."""
        total = 0
        while (count := self._count()) > 0:
            total += count
        return total

    def _count(self) -> int:
        """Of the items of the next block; 0 at the end."""
        count = self._long()
        if count < 0:
            self._long()  # the block's size in bytes
        return abs(count)

    def _long(self) -> int:
        found = shift = 0
        for at in range(self.at, min(self.at + _LONGEST, len(self._raw))):
            byte = self._raw[at]
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                self.at = at + 1
                return (found >> 1) ^ -(found & 1)
        if len(self._raw) - self.at < _LONGEST:
            raise EOFError
        raise ValueError("a number of more than 10 bytes")

    def _take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self._raw):
            raise EOFError
        self.at += size
        return self._raw[self.at - size : self.at]
