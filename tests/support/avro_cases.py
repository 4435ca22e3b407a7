"""Cases for readers of Avro: a writer's schema, values as it encodes them, and a reader's schema that came of it.

Strategies for hypothesis. Names are few, so that they collide in all the ways that names of Avro can.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any

from hypothesis import strategies as st

_NONE: Any = object()
_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_LOGICAL = {"int": ("date",), "long": ("timestamp-millis", "timestamp-micros", "local-timestamp-millis")}
_SIMPLE = ("A", "B", "C")
_SPACES = (("",), ("n", "n.m"))
"""Of one schema: within a namespace there is no name for a type that has none."""
_FIELDS = ("a", "b", "c", "d", "e", "f")
_DEEPEST = 3


@dataclasses.dataclass(eq=False)
class _Type:
    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: list[_Field] = dataclasses.field(default_factory=list)
    inner: list[_Type] = dataclasses.field(default_factory=list)
    """Item or branches."""
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    logical: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False)
class _Field:
    name: str
    type: _Type
    default: Any = _NONE
    aliases: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Case:
    writer: str
    reader: str
    values: tuple[bytes, ...]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    spaces = draw(st.sampled_from(_SPACES))
    maker = _Maker(draw, spaces)
    writer = maker.record(0) if draw(st.integers(0, 4)) else maker.type(0)
    values = tuple(maker.encoded(writer, 0) for _ in range(draw(st.integers(1, 3))))
    reader = _Evolution(draw, spaces).of(writer)
    moved = draw(st.sampled_from(("", "", "", "z.")))
    return Case(json.dumps(_Render("").of(writer)), json.dumps(_Render(moved).of(reader)), values)


class _Maker:
    """Draws types and values of them."""

    def __init__(self, draw: st.DrawFn, spaces: tuple[str, ...]) -> None:
        self._draw = draw
        self._spaces = spaces
        self._named: list[_Type] = []
        self._records: list[_Type] = []
        """Those that enclose the type that is being drawn."""

    def pick(self, *choices: Any) -> Any:
        return self._draw(st.sampled_from(choices))

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) < percent

    def type(self, depth: int, *, union: bool = True) -> _Type:
        closed = [one for one in self._named if one not in self._records]
        if closed and self.chance(8):
            return self.pick(*closed)
        if depth >= _DEEPEST or self.chance(45):
            return self.pick(self.primitive, self.primitive, self.enum, self.fixed)()
        made = self.pick(self.record, self.array, self.map, *((self.union,) * 3 if union else ()))
        return made(depth)

    def primitive(self) -> _Type:
        return self.primitive_of(self.pick(*_PRIMITIVES))

    def primitive_of(self, kind: str) -> _Type:
        made = _Type(kind)
        if kind == "bytes" and self.chance(50):
            made.logical = self.decimal()
        elif kind in _LOGICAL and self.chance(30):
            made.logical = {"logicalType": self.pick(*_LOGICAL[kind])}
        return made

    def decimal(self) -> dict[str, Any]:
        """Often of a precision or scale that is none."""
        precision = self.pick(1, 3, 9, 10, 18, 19, 38, 64, 0, -1, "10", None)
        scale = self.pick(0, 1, 2, 2, 5, 127, -2, "1", None)
        made = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {key: value for key, value in made.items() if value is not None}

    def name(self) -> str:
        space, simple = self.pick(*self._spaces), self.pick(*_SIMPLE)
        name = f"{space}.{simple}" if space else simple
        taken = {one.name for one in self._named}
        while name in taken:
            name += "x"
        return name

    def named(self, kind: str) -> _Type:
        made = _Type(kind, self.name())
        self._named.append(made)
        return made

    def enum(self) -> _Type:
        made = self.named("enum")
        made.symbols = tuple("XYZW"[: self._draw(st.integers(1, 4))])
        made.default = self.pick(None, None, *made.symbols)
        return made

    def fixed(self) -> _Type:
        made = self.named("fixed")
        made.size = self.pick(1, 2, 4, 5)
        made.logical = self.decimal() if self.chance(40) else {}
        return made

    def record(self, depth: int) -> _Type:
        made = self.named("record")
        self._records.append(made)
        names = self._draw(st.lists(st.sampled_from(_FIELDS), min_size=0 if depth else 1, max_size=4, unique=True))
        for name in names:
            made.fields.append(_Field(name, self.type(depth + 1)))
        self._records.pop()
        return made

    def array(self, depth: int) -> _Type:
        return _Type("array", inner=[self._item(depth)])

    def map(self, depth: int) -> _Type:
        return _Type("map", inner=[self._item(depth)])

    def _item(self, depth: int) -> _Type:
        return self.pick(*self._records) if self._records and self.chance(10) else self.type(depth + 1)

    def union(self, depth: int) -> _Type:
        most = 40 if self.chance(3) else 4
        branches = [_Type("null")] if self.chance(60) else []
        branches += [self.type(depth + 1, union=False) for _ in range(self._draw(st.integers(1, most)))]
        if self._records and self.chance(15):
            branches += [self.pick(*self._records), _Type("null")]  # null ends what is recursive
        return _Type("union", inner=_distinct(self._draw(st.permutations(branches))))

    def encoded(self, one: _Type, depth: int) -> bytes:
        """A value; the deeper, the smaller. A record that must contain itself has none, and is not drawn."""
        match one.kind:
            case "null":
                return b""
            case "boolean":
                return self.pick(b"\0", b"\1")
            case "int":
                return long(self._draw(st.integers(-(2**31), 2**31 - 1) | st.integers(-200, 200)))
            case "long":
                return long(self._draw(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)))
            case "float":
                return struct.pack("<f", self._draw(st.floats(width=32, allow_nan=False)))
            case "double":
                return struct.pack("<d", self._draw(st.floats(allow_nan=False)))
            case "bytes":
                return _sized(self._draw(st.binary(max_size=5) | st.text("ab", max_size=3).map(str.encode)))
            case "string":
                return _sized(self._draw(st.text(max_size=3)).encode("utf-8", "replace"))
            case "fixed":
                return self._draw(st.binary(min_size=one.size, max_size=one.size))
            case "enum":
                return long(self._draw(st.integers(0, len(one.symbols) - 1)))
            case "record":
                return b"".join(self.encoded(field.type, depth + 1) for field in one.fields)
            case "array" | "map":
                return self._items(one, depth)
        choices = list(range(len(one.inner)))
        if depth > 6:
            choices = [min(choices, key=lambda index: _weight(one.inner[index]))]
        index = self.pick(*choices)
        return long(index) + self.encoded(one.inner[index], depth + 1)

    def _items(self, one: _Type, depth: int) -> bytes:
        made = b""
        count = 0 if depth > 6 else self._draw(st.integers(0, 3))
        items = [self.encoded(one.inner[0], depth + 1) for _ in range(count)]
        if one.kind == "map":
            first = self.pick(b"k", b"k", b"k", b"\xff")
            items = [_sized(first + str(n).encode()) + item for n, item in enumerate(items)]
        if items and self.chance(20):
            made = long(-len(items)) + long(len(b"".join(items))) + b"".join(items)
        elif items:
            made = long(len(items)) + b"".join(items)
        return made + b"\0"

    def default(self, one: _Type, depth: int = 0) -> Any:
        """JSON of a default; of a union any branch's, as Java takes it."""
        match one.kind:
            case "null":
                return None
            case "boolean":
                return self.chance(50)
            case "int":
                return self._draw(st.integers(-(2**31), 2**31 - 1))
            case "long":
                return self._draw(st.integers(-(2**63), 2**63 - 1))
            case "float" | "double":
                texts = st.sampled_from(("Infinity", "-Infinity", "1.5"))
                return self._draw(st.integers(-5, 5) | st.floats(-1e9, 1e9) | texts)
            case "bytes":
                return self._draw(st.binary(max_size=4)).decode("iso-8859-1")
            case "fixed":
                return self._draw(st.binary(min_size=one.size, max_size=one.size)).decode("iso-8859-1")
            case "string":
                return self._draw(st.text(max_size=3))
            case "enum":
                return self.pick(*one.symbols)
            case "record":
                fields = [field for field in one.fields if field.default is _NONE or self.chance(50)]
                return {field.name: self.default(field.type, depth + 1) for field in fields}
            case "array":
                return [self.default(one.inner[0], depth + 1) for _ in range(0 if depth > 3 else self.pick(0, 1, 2))]
            case "map":
                return {
                    f"k{n}": self.default(one.inner[0], depth + 1) for n in range(0 if depth > 3 else self.pick(0, 1))
                }
        branch = min(one.inner, key=_weight) if depth > 3 else self.pick(*one.inner[:2])
        return self.default(branch, depth + 1)


class _Evolution:
    """Draws a reader's schema that is like a writer's, more or less."""

    def __init__(self, draw: st.DrawFn, spaces: tuple[str, ...]) -> None:
        self._maker = _Maker(draw, spaces)
        self._draw = draw
        self._made: dict[_Type, _Type] = {}
        self._changes = draw(st.sampled_from((4, 10, 25)))
        """How likely every change is, in percent."""

    def _changed(self) -> bool:
        return self._maker.chance(self._changes)

    def of(self, one: _Type, *, union: bool = True) -> _Type:
        if one in self._made:
            return self._made[one]
        if union and one.kind != "union" and self._changed():
            others = [_Type("null")] if self._maker.chance(50) else []
            others += [self._maker.type(2, union=False) for _ in range(self._maker.pick(0, 1, 2))]
            return _Type("union", inner=_distinct(self._draw(st.permutations([self.of(one, union=False), *others]))))
        match one.kind:
            case "record":
                return self._record(one)
            case "enum" | "fixed":
                return self._renamed(one)
            case "array" | "map":
                return _Type(one.kind, inner=[self.of(one.inner[0])])
            case "union":
                return self._union(one)
        if one.kind in _PROMOTED and self._changed():
            return self._maker.primitive_of(self._maker.pick(*_PROMOTED[one.kind]))
        if self._maker.chance(self._changes // 4):
            return self._maker.primitive()
        return dataclasses.replace(one) if self._maker.chance(80) else self._maker.primitive_of(one.kind)

    def _renamed(self, one: _Type) -> _Type:
        made = self._made[one] = dataclasses.replace(one)
        if self._changed():
            made.name = self._maker.name()
            if self._maker.chance(60):
                made.aliases = (one.name,)
        if one.kind == "enum" and self._changed():
            made.symbols = tuple(dict.fromkeys(self._draw(st.permutations("XYZWV"))))[: self._maker.pick(1, 2, 4)]
            made.default = self._maker.pick(None, *made.symbols)
        if one.kind == "fixed" and self._changed():
            made.logical = self._maker.decimal()
            made.size += self._maker.pick(0, 1)
        return made

    def _record(self, one: _Type) -> _Type:
        made = self._renamed(one)
        made.fields = []
        for field in one.fields:
            if self._changed():
                continue  # left out
            renamed, aliases = field.name, tuple[str, ...]()
            if self._changed():
                renamed, aliases = self._maker.pick(*_FIELDS), (field.name,)
            made.fields.append(_Field(renamed, self.of(field.type), aliases=aliases))
        for _ in range(self._maker.pick(0, 0, 1, 2)):
            added = self._maker.type(2)
            default = self._maker.default(added) if self._maker.chance(90) else _NONE
            made.fields.append(_Field(self._maker.pick(*_FIELDS), added, default))
        unique = {field.name: field for field in reversed(made.fields)}
        made.fields = self._draw(st.permutations(list(unique.values()))) if self._changed() else list(unique.values())
        return made

    def _union(self, one: _Type) -> _Type:
        branches = [self.of(branch, union=False) for branch in one.inner if not self._changed()]
        if self._changed():
            branches.append(self._maker.type(2, union=False))
        if self._changed():
            branches = list(self._draw(st.permutations(branches)))
        branches = _distinct(branches)
        if len(branches) == 1 and self._changed():
            return branches[0]
        return _Type("union", inner=branches or [_Type("null")])


class _Render:
    """To JSON: a named type in full the first time, then by its name. Two of one name get two names.
    `moved`: a namespace that all names are moved to."""

    def __init__(self, moved: str) -> None:
        self._moved = moved
        self._names: dict[_Type, str] = {}

    def of(self, one: _Type) -> Any:
        if one.kind == "union":
            return [self.of(branch) for branch in one.inner]
        if one.kind in {"array", "map"}:
            return {"type": one.kind, "items" if one.kind == "array" else "values": self.of(one.inner[0])}
        if one.kind in _PRIMITIVES:
            return {"type": one.kind, **one.logical} if one.logical else one.kind
        if one in self._names:
            return self._names[one]
        name = self._moved + one.name
        while name in self._names.values():
            name += "y"
        self._names[one] = name
        space, _, simple = name.rpartition(".")
        made = {"type": one.kind, "name": simple, "namespace": space, **one.logical}
        if one.aliases:
            made["aliases"] = list(one.aliases)
        if one.kind == "enum":
            return made | {"symbols": list(one.symbols)} | ({} if one.default is None else {"default": one.default})
        if one.kind == "fixed":
            return made | {"size": one.size}
        return made | {"fields": [self._field(field) for field in one.fields]}

    def _field(self, one: _Field) -> dict[str, Any]:
        made: dict[str, Any] = {"name": one.name, "type": self.of(one.type)}
        if one.default is not _NONE:
            made["default"] = one.default
        if one.aliases:
            made["aliases"] = list(one.aliases)
        return made


def _distinct(branches: Any) -> list[_Type]:
    """At most one branch of each type without a name, and of each name."""
    return list({one.name or one.kind: one for one in branches}.values())


def _weight(one: _Type) -> int:
    """How likely a value of it leads deeper."""
    return {"record": 3, "array": 1, "map": 1, "union": 2}.get(one.kind, 0)


def long(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    made = bytearray()
    while value > 0x7F:
        made.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes([*made, value])


def _sized(raw: bytes) -> bytes:
    return long(len(raw)) + raw


def full_named(schema: Any, space: str = "", named: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """The schema with full names, which `_Render` always splits into name and namespace; and its named types."""
    named = {} if named is None else named
    if isinstance(schema, list):
        return [full_named(one, space, named)[0] for one in schema], named
    if not isinstance(schema, dict):
        return schema, named
    made = dict(schema)
    if "name" in schema:
        made["name"] = f"{schema['namespace']}.{schema['name']}" if schema["namespace"] else schema["name"]
        named[made["name"]] = made
    for key in ("items", "values"):
        if key in schema:
            made[key] = full_named(schema[key], space, named)[0]
    if "fields" in schema:
        made["fields"] = [{**one, "type": full_named(one["type"], space, named)[0]} for one in schema["fields"]]
    return made, named
