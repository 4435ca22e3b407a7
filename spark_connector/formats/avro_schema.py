"""Avro schemas as a graph of types: names and references are resolved, attributes that Avro says to ignore are dropped.

Called by avro_resolver.py and avro_columns.py. What is a schema, and which logical types are valid, follows Avro's
library for Java, as far as its specification leaves that open: a logical type that is invalid (a scale above the
precision, a precision that is text, a fixed that is too small) is ignored, a name may be used before it is defined, and
a default is checked only when a record needs it. fastavro's parser refuses all three.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from broker.errors import ConfigError
from spark_connector.formats.value_format import AvroSchema

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
NO_DEFAULT: Final = object()
_DEEPEST: Final = 64
_MOST_NAMED: Final = 8
"""Branches of a union that a message names."""
_LOGICAL: Final = {
    "date": "int",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
}
"""Logical type that Spark knows → the type it belongs to; decimal apart."""


class Decimal(NamedTuple):
    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class Field:
    """`default` is JSON, or NO_DEFAULT."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


@dataclass(eq=False, slots=True, repr=False)
class AvroType:
    """A type; a named one is the same object wherever it is used, so the graph of a recursive schema has a cycle.

    `kind` is Avro's name of the type (record, not error). `name` is a full name.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    logical: str | Decimal | None = None
    fields: tuple[Field, ...] = ()
    item: AvroType | None = None
    """Of arrays and maps."""
    branches: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    default_symbol: str | None = None
    size: int = 0
    other_logical: str = ""
    """The name of a logical type that is not in `logical`, valid or not: reads ignore it."""

    @property
    def simple_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        """For messages."""
        if self.kind == "union":
            some = ", ".join(map(str, self.branches[:_MOST_NAMED])) or "nothing"
            more = len(self.branches) - _MOST_NAMED
            return f"union of {some}" + (f" and {more} more" if more > 0 else "")
        return f"{self.kind} {self.name}" if self.name else self.kind


@functools.lru_cache(maxsize=512)
def parse_avro(schema: AvroSchema) -> AvroType:
    """Raises ConfigError for text that is not an Avro schema."""
    parser = _Parser()
    try:
        for text in schema.references:
            parser.parse(json.loads(text))
        return parser.parse(json.loads(schema.text))
    except ConfigError as error:
        raise ConfigError(f"Not an Avro schema: {error}, in: {schema.text[:200]}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"Not an Avro schema: {error}, in: {schema.text[:200]}") from None


class _Parser:
    """Finds the names first, because a name may be used before it is defined."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {name: AvroType(name) for name in PRIMITIVES}

    def parse(self, node: Any) -> AvroType:
        self._declare(node, "", 0)
        return self._type(node, "")

    def _declare(self, node: Any, namespace: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise ConfigError(f"it is nested more than {_DEEPEST} deep")
        for inner in node if isinstance(node, list) else ():
            self._declare(inner, namespace, depth + 1)
        if not isinstance(node, dict):
            return
        kind = node.get("type")
        if isinstance(kind, dict | list):
            self._declare(kind, namespace, depth + 1)
        elif kind in {"record", "error", "enum", "fixed"}:
            name = _full_name(node.get("name"), node.get("namespace"), namespace)
            if name in self._named:
                raise ConfigError(f"it defines '{name}' twice")
            made = self._named[name] = AvroType("record" if kind == "error" else kind, name)
            made.aliases = tuple(_full_name(one, None, _space(name)) for one in _texts(node, "aliases"))
            for one in _list(node, "fields") if made.kind == "record" else ():
                self._declare(one.get("type") if isinstance(one, dict) else None, _space(name), depth + 1)
        else:
            for key in ("items", "values"):
                self._declare(node.get(key), namespace, depth + 1)

    def _type(self, node: Any, namespace: str) -> AvroType:
        if isinstance(node, str):
            return self._reference(node, namespace)
        if isinstance(node, list):
            return union_of(tuple(self._type(one, namespace) for one in node))
        if not isinstance(node, dict) or "type" not in node:
            raise ConfigError(f"a type is missing at {json.dumps(node)[:60]}")
        kind = node["type"]
        if isinstance(kind, dict | list):
            return self._type(kind, namespace)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._define(node, self._named[_full_name(node["name"], node.get("namespace"), namespace)])
        if kind in {"array", "map"}:
            key = "items" if kind == "array" else "values"
            if key not in node:
                raise ConfigError(f"{kind} without {key}")
            return AvroType(kind, item=self._type(node[key], namespace))
        if isinstance(kind, str) and kind in PRIMITIVES:
            logical = _logical(node, kind, None)
            return AvroType(kind, logical=logical, other_logical="" if logical else str(node.get("logicalType", "")))
        return self._reference(kind, namespace)

    def _reference(self, name: Any, namespace: str) -> AvroType:
        known = self._named.get(f"{namespace}.{name}") if "." not in str(name) and name not in PRIMITIVES else None
        known = known or self._named.get(name if isinstance(name, str) else "")
        if known is None:
            raise ConfigError(f"'{name}' is not a type and is not defined")
        return known

    def _define(self, node: dict[str, Any], made: AvroType) -> AvroType:
        if made.kind == "fixed":
            made.size = node.get("size", -1)
            if type(made.size) is not int or not 0 <= made.size < 2**31:
                raise ConfigError(f"fixed '{made.name}' needs a size, a number of bytes from 0 to 2147483647")
            made.logical = _logical(node, "fixed", made.size)
        elif made.kind == "enum":
            if "symbols" not in node:
                raise ConfigError(f"enum '{made.name}' has no symbols")
            made.symbols = tuple(_texts(node, "symbols"))
            _distinct(made.symbols, f"enum '{made.name}'")
            made.default_symbol = node.get("default")
            if made.default_symbol is not None and made.default_symbol not in made.symbols:
                raise ConfigError(
                    f"the default '{made.default_symbol}' of enum '{made.name}' is not one of its symbols"
                )
        else:
            if "fields" not in node:
                raise ConfigError(f"record '{made.name}' has no fields")
            made.fields = tuple(self._field(one, made) for one in _list(node, "fields"))
            _distinct([one.name for one in made.fields], f"record '{made.name}'")
            if _contains(made, made, set()):
                raise ConfigError(f"record '{made.name}' contains itself without an end")
        return made

    def _field(self, node: Any, record: AvroType) -> Field:
        if not isinstance(node, dict) or not isinstance(node.get("name"), str) or not node["name"]:
            raise ConfigError(f"a field of record '{record.name}' has no name")
        if "type" not in node:
            raise ConfigError(f"field '{node['name']}' of record '{record.name}' has no type")
        kind = self._type(node["type"], _space(record.name))
        return Field(node["name"], kind, tuple(_texts(node, "aliases")), node.get("default", NO_DEFAULT))


def _contains(one: AvroType, inner: AvroType, seen: set[AvroType]) -> bool:
    """Whether every value of the record `one` has one of `inner`."""
    found = {field.type for field in one.fields if field.type.kind == "record"} - seen
    seen |= found
    return inner in found or any(_contains(field, inner, seen) for field in found)


def union_of(branches: tuple[AvroType, ...]) -> AvroType:
    """Raises ConfigError for a union that Avro does not allow."""
    for one in branches:
        if one.kind == "union":
            raise ConfigError("a union has a union as its branch")
    _distinct([one.name or one.kind for one in branches], "a union")
    return AvroType("union", branches=branches)


def _distinct(names: Any, where: str) -> None:
    twice = [name for name in dict.fromkeys(names) if list(names).count(name) > 1]
    if twice:
        raise ConfigError(f"{where} has '{twice[0]}' twice")


def _list(node: dict[str, Any], key: str) -> list[Any]:
    found = node.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"'{key}' of '{node.get('name')}' is not a list")
    return found


def _texts(node: dict[str, Any], key: str) -> Iterator[str]:
    for one in _list(node, key):
        if not isinstance(one, str):
            raise ConfigError(f"'{key}' of '{node.get('name')}' has {json.dumps(one)[:60]}, which is not text")
        yield one


def _full_name(name: Any, namespace: Any, enclosing: str) -> str:
    if not isinstance(name, str) or not name.strip("."):
        raise ConfigError("a record, enum or fixed has no name")
    if "." in name:
        return name.removeprefix(".")
    space = namespace if isinstance(namespace, str) else enclosing
    return f"{space}.{name}" if space else name


def _space(name: str) -> str:
    return name.rpartition(".")[0]


def _logical(node: dict[str, Any], kind: str, size: int | None) -> str | Decimal | None:
    name = node.get("logicalType")
    if name != "decimal":
        return name if isinstance(name, str) and _LOGICAL.get(name) == kind else None
    precision, scale = node.get("precision"), node.get("scale", 0)
    if kind not in {"bytes", "fixed"} or type(precision) is not int or type(scale) is not int:
        return None
    # A fixed of n bytes holds any number of this many digits.
    most = 2**31 - 1 if size is None else math.floor(math.log10(2) * (8 * size - 1))
    return Decimal(precision, scale) if 0 < precision <= most and 0 <= scale <= precision else None


def takes_no_bytes(one: AvroType, known: dict[AvroType, bool] | None = None) -> bool:
    """Whether every value of the type is encoded in no bytes. `known`: of records that were looked at before."""
    if one.kind == "record":
        known = {} if known is None else known
        if one not in known:
            known[one] = all(takes_no_bytes(field.type, known) for field in one.fields)
        return known[one]
    return one.kind == "null" or (one.kind == "fixed" and one.size == 0)


class Passing:
    """What is to be done to pass over values. Records may be nested by their names, so that 3 kB of schema have 2^30
    fields of no bytes: these, and records of a single field that has bytes, are no work. So whatever is passed over
    takes a byte, or has two fields that do."""

    def __init__(self) -> None:
        self._known: dict[AvroType, bool] = {}

    def type(self, one: AvroType) -> AvroType | None:
        """The type to pass over instead of `one`; None for one of no bytes."""
        while one.kind == "record":
            fields = self.fields(one)
            if len(fields) > 1:
                return one
            if not fields:
                return None
            one = fields[0]
        return None if takes_no_bytes(one) else one

    def fields(self, record: AvroType) -> list[AvroType]:
        """Those that take bytes."""
        return [field.type for field in record.fields if not takes_no_bytes(field.type, self._known)]
