"""A JSON Schema (draft-04 to 2020-12) to the type of a column.

Called by schema_text.py for `valueSchema` and subjects of a registry, and by json_check.py for writes. `parse` makes a
Shape of the schema: what a column and a check need of it. Where a schema admits several types, they become the one that
Spark's own inference gives such values (`spark.read.json`): integer and number are DOUBLE, objects are one STRUCT of
all their fields, anything else is a STRING with the JSON text. So is a schema without a type, and an object within
itself: a column cannot be recursive. `connect.type` of Kafka Connect's JsonSchemaConverter is respected.

What limits values but has no type (`minimum`, `pattern`, `if`, `not`, `dependentSchemas`, …) is not looked at.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Final

import pyarrow as pa

from broker.errors import ConfigError
from spark_connector.formats.value_format import JsonSchema

_DEEPEST: Final = 64
_MOST_SHAPES: Final = 100_000
_INTEGERS: Final = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64()}
_WIDTHS: Final = tuple(_INTEGERS.values())
_FLOATS: Final = {"float32": pa.float32(), "float64": pa.float64()}
_TEXTS: Final = {"date-time": pa.timestamp("us", "UTC"), "date": pa.date32()}
_OLD: Final = ("draft-03", "draft-04", "draft-06", "draft-07")
"""Drafts in which what stands beside a $ref does not count."""
_IN_UNION: Final = ("anyOf", "oneOf")
_NO_SCHEMAS: Final = frozenset({"enum", "const", "default", "examples", "example"})
_OBJECTS: Final = ("struct", "map", "any")
"""Kinds that may be an object."""
_REFS: Final = ("$ref", "$dynamicRef", "$recursiveRef")


_NAMES: Final = (
    (("struct", "map"), "an object"),
    (("list",), "an array"),
    (("null",), "null"),
    (("any",), "anything"),
    (("never",), "nothing"),
    ((pa.string(), pa.binary(), *_TEXTS.values()), "a string"),
    ((pa.bool_(),), "a boolean"),
    (_WIDTHS, "an integer"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """What a schema admits. `kind`: an atomic type, or `struct`, `list`, `map`, `null`, `any` (no clear type) or
    `never`.

    `fields`: of a struct, by name, in order. `item`: of a list or map. `required`: names. `is_closed`: no other fields.
    `values`: of an enumeration of strings; None for all."""

    kind: pa.DataType | str
    nullable: bool = False
    fields: Mapping[str, Shape] | None = None
    item: Shape | None = None
    required: frozenset[str] = frozenset()
    is_closed: bool = False
    values: frozenset[str] | None = None

    @property
    def admits_others(self) -> bool:
        """Of an object: whether it may have more than its `fields`."""
        return not self.is_closed and (self.item is None or self.item.kind != "never")

    @property
    def type(self) -> pa.DataType:
        """The type of the column."""
        if self.kind == "struct":
            return pa.struct([(name, one.type) for name, one in (self.fields or {}).items()])
        if self.item is not None:
            return pa.list_(self.item.type) if self.kind == "list" else pa.map_(pa.string(), self.item.type)
        return pa.string() if isinstance(self.kind, str) else self.kind

    def __str__(self) -> str:
        """For messages: as JSON Schema calls it."""
        return next((name for kinds, name in _NAMES if self.kind in kinds), "a number")


ANY: Final = Shape("any", nullable=True)
_NULL: Final = Shape("null", nullable=True)
_NEVER: Final = Shape("never")


def parse_json_schema(schema: JsonSchema) -> Shape:
    """Raises ConfigError for what is no JSON Schema."""
    try:
        documents = {name: json.loads(text) for name, text in (("", schema.text), *schema.references)}
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"JSON Schema is not JSON: {error}") from None
    try:
        return _Reader(_Documents(documents)).shape(documents[""], (), 0)
    except RecursionError:
        raise ConfigError(f"JSON Schema is nested more than {_DEEPEST} deep") from None


def json_column(schema: JsonSchema) -> pa.DataType:
    """The type of a column of such values. Raises ConfigError for a schema that describes no object."""
    shape = parse_json_schema(schema)
    if shape.kind != "struct":
        raise ConfigError(
            f"JSON Schema does not describe an object with properties, which a column needs, but {shape}: set the "
            "schema as Spark's DDL instead, e.g. 'id BIGINT, name STRING'"
        )
    return shape.type


def title(schema: JsonSchema) -> str | None:
    """What the schema calls itself."""
    document = json.loads(schema.text)
    found = document.get("title") if isinstance(document, dict) else None
    return found if isinstance(found, str) and found else None


class _Reader:
    def __init__(self, documents: _Documents) -> None:
        self._documents = documents
        self._made = 0

    def shape(self, schema: Any, within: tuple[int, ...], depth: int) -> Shape:
        """`within`: the ids of the schemas around this one, by which recursion is seen."""
        if isinstance(schema, bool):
            return ANY if schema else _NEVER
        if not isinstance(schema, dict):
            raise ConfigError(f"JSON Schema has {json.dumps(schema)[:60]} where a schema should be")
        if id(schema) in within:
            return ANY
        self._made += 1
        if depth > _DEEPEST or len(within) > 4 * _DEEPEST:
            raise ConfigError(f"JSON Schema is nested more than {_DEEPEST} deep")
        if self._made > _MOST_SHAPES:
            raise ConfigError(f"JSON Schema makes a column of more than {_MOST_SHAPES:,} fields")
        inner = (*within, id(schema))
        parts = [self.shape(self._documents.target(schema, ref), inner, depth) for ref in _texts(schema, _REFS)]
        if not (parts and self._documents.is_old(schema)):
            parts += [self._own(schema, inner, depth)]
            parts += [self.shape(one, inner, depth) for one in _schemas(schema, "allOf")]
            for keyword in _IN_UNION:
                if branches := _schemas(schema, keyword):
                    parts.append(reduce(_either, [self.shape(one, inner, depth) for one in branches]))
        return reduce(_both, parts)

    def _own(self, schema: dict[str, Any], within: tuple[int, ...], depth: int) -> Shape:
        """What the schema says itself, without the schemas that it combines."""
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        types = schema.get("type", _implied(schema))
        listed = [types] if isinstance(types, str) else types
        if isinstance(listed, list) and listed:
            shape = reduce(_either, [self._of_type(str(one), schema, within, depth) for one in listed])
        else:
            shape = ANY
        if not isinstance(values, list) or not values:
            return shape
        if shape.kind == "any":
            shape = reduce(_either, map(_of_value, values))
        nullable = shape.nullable and None in values
        texts = frozenset(one for one in values if isinstance(one, str))
        return replace(shape, nullable=nullable, values=texts if shape.kind == pa.string() else None)

    def _of_type(self, name: str, schema: dict[str, Any], within: tuple[int, ...], depth: int) -> Shape:
        connect = schema.get("connect.type")
        match name:
            case "null":
                return _NULL
            case "boolean":
                return Shape(pa.bool_())
            case "integer":
                return Shape(_INTEGERS.get(str(connect), pa.int64()))
            case "number":
                return Shape(_connect_decimal(schema) or _FLOATS.get(str(connect), pa.float64()))
            case "string" if connect == "bytes" or schema.get("contentEncoding") == "base64":
                return Shape(pa.binary())
            case "string":
                return Shape(_TEXTS.get(str(schema.get("format")), pa.string()))
            case "array":
                return Shape("list", item=self._item(schema, within, depth + 1))
            case "object":
                return self._object(schema, within, depth + 1)
        raise ConfigError(f"JSON Schema has the type {name!r}, which is none of JSON Schema")

    def _item(self, schema: dict[str, Any], within: tuple[int, ...], depth: int) -> Shape:
        """Of an array; of a tuple, what all its places have in common."""
        items = schema.get("items", True)
        first = items if isinstance(items, list) else _schemas(schema, "prefixItems")
        rest = schema.get("additionalItems", True) if isinstance(items, list) else items
        if first and rest is True:
            rest = False  # a tuple rarely says that nothing follows
        shapes = [self.shape(one, within, depth) for one in (*first, rest)]
        return reduce(_either, shapes)

    def _object(self, schema: dict[str, Any], within: tuple[int, ...], depth: int) -> Shape:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        if not isinstance(properties, dict):
            raise ConfigError(f"JSON Schema has properties that are no object: {json.dumps(properties)[:60]}")
        names = schema.get("required")
        required = frozenset(map(str, names)) if isinstance(names, list) else frozenset()
        if properties and schema.get("connect.type") != "map":
            ordered = sorted(properties.items(), key=_place)
            shapes = {name: self.shape(one, within, depth) for name, one in ordered}
            return Shape(
                "struct",
                fields={name: one for name, one in shapes.items() if one.kind != "never"},
                required=required,
                is_closed=others is False and not schema.get("patternProperties"),
            )
        patterns = list(_mapping(schema.get("patternProperties")).values())
        if others is None and not patterns:
            return replace(ANY, nullable=False, required=required)
        item = reduce(_either, [self.shape(one, within, depth) for one in (*patterns, others or False)])
        is_open = item.kind == "never" and others is not False
        return Shape("map", item=ANY if is_open else item, required=required)


def _implied(schema: dict[str, Any]) -> str | None:
    """The type of a schema that names none, by the keywords of objects and arrays."""
    if any(key in schema for key in ("properties", "additionalProperties", "patternProperties")):
        return "object"
    return "array" if "items" in schema or "prefixItems" in schema else None


def _of_value(value: Any) -> Shape:
    """The shape of one value of an enumeration."""
    if value is None:
        return _NULL
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return Shape(kinds[type(value)]) if type(value) in kinds else replace(ANY, nullable=False)


def _connect_decimal(schema: dict[str, Any]) -> pa.DataType | None:
    """Of a number that Kafka Connect wrote as a Decimal."""
    if schema.get("title") != "org.apache.kafka.connect.data.Decimal":
        return None
    parameters = _mapping(schema.get("connect.parameters"))
    try:
        scale, precision = int(parameters["scale"]), int(parameters.get("connect.decimal.precision", 38))
        return pa.decimal128(precision, scale) if 0 <= scale <= precision <= 38 else None
    except (KeyError, ValueError, TypeError):
        return None


def _place(named: tuple[str, Any]) -> int:
    """Kafka Connect numbers the fields, because it writes them in any order."""
    index = named[1].get("connect.index", 0) if isinstance(named[1], dict) else 0
    return index if isinstance(index, int) else 0


def _either(one: Shape, other: Shape) -> Shape:
    """What both admit together (anyOf, oneOf, several types)."""
    for first, second in ((one, other), (other, one)):
        if first.kind == "never":
            return second
        if first.kind == "null":
            return replace(second, nullable=True)
    nullable = one.nullable or other.nullable
    if one.kind == other.kind:
        if one.kind == "struct":
            fields = _merged(one, other, _either)
            required, closed = one.required & other.required, one.is_closed and other.is_closed
            return Shape("struct", nullable, fields, required=required, is_closed=closed)
        values = None if one.values is None or other.values is None else one.values | other.values
        required = one.required & other.required
        return Shape(one.kind, nullable, item=_items(one, other, _either), required=required, values=values)
    numbers = [shape.kind for shape in (one, other) if shape.kind in (*_WIDTHS, *_FLOATS.values())]
    if len(numbers) == 2:
        whole = all(kind in _WIDTHS for kind in numbers)
        return Shape(max(numbers, key=_WIDTHS.index) if whole else pa.float64(), nullable)
    return replace(ANY, nullable=nullable)


def _both(one: Shape, other: Shape) -> Shape:
    """What each admits (allOf, $ref and what stands beside it)."""
    nullable = one.nullable and other.nullable
    for first, second in ((one, other), (other, one)):
        if first.kind == "any":
            required = first.required | second.required if second.kind in _OBJECTS else second.required
            return replace(second, nullable=nullable, required=required)
        if first.kind in {"never", "null"}:
            return first
    if one.kind == other.kind == "struct":
        fields = {name: shape for name, shape in _merged(one, other, _both).items() if shape.kind != "never"}
        closed = one.is_closed or other.is_closed
        return Shape("struct", nullable, fields, required=one.required | other.required, is_closed=closed)
    for first, second in ((one, other), (other, one)):
        if first.kind == "struct" and second.kind == "map":
            return replace(first, nullable=nullable, required=first.required | second.required)
        if first.kind == pa.string() and second.kind in (*_TEXTS.values(), pa.binary()):
            return replace(second, nullable=nullable)
        if first.kind in _FLOATS.values() and second.kind in _WIDTHS:
            return replace(second, nullable=nullable)
    if one.kind == other.kind:
        given = [shape.values for shape in (one, other) if shape.values is not None]
        values = frozenset.intersection(*given) if given else None
        return Shape(one.kind, nullable, item=_items(one, other, _both), values=values)
    if one.kind in _WIDTHS and other.kind in _WIDTHS:
        return Shape(min(one.kind, other.kind, key=_WIDTHS.index), nullable)
    return replace(ANY, nullable=nullable)


_Combine = Callable[[Shape, Shape], Shape]


def _merged(one: Shape, other: Shape, combine: _Combine) -> dict[str, Shape]:
    fields = dict(one.fields or {})
    for name, shape in (other.fields or {}).items():
        fields[name] = combine(fields[name], shape) if name in fields else shape
    return fields


def _items(one: Shape, other: Shape, combine: _Combine) -> Shape | None:
    return None if one.item is None or other.item is None else combine(one.item, other.item)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(schema: dict[str, Any], keys: Iterable[str]) -> list[str]:
    return [schema[key] for key in keys if isinstance(schema.get(key), str)]


def _schemas(schema: dict[str, Any], keyword: str) -> list[Any]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


class _Documents:
    """The schemas that a $ref can name: of the document itself, and of those that it refers to by their names."""

    def __init__(self, documents: Mapping[str, Any]) -> None:
        self._named: dict[str, Any] = {}
        """By URI; an anchor behind `#`."""
        self._bases: dict[int, tuple[str, bool]] = {}
        """By the id of a schema: what its references are relative to, and whether the draft is old."""
        for name, document in documents.items():
            self._named.setdefault(name, document)
            draft = str(document.get("$schema")) if isinstance(document, dict) else ""
            old = next((one for one in _OLD if one in draft), "")
            key = "id" if old in {"draft-03", "draft-04"} else "$id"
            self._add(document, name, key, old != "")
        if isinstance(root := documents[""], dict):
            for name in documents:  # a reference is named relative to the document
                self._named.setdefault(_joined(self._bases[id(root)][0], name), documents[name])

    def _add(self, root: Any, base: str, key: str, is_old: bool) -> None:
        waiting = [(root, base)]
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, dict):
                name = node.get(key)
                if isinstance(name, str):
                    if name.startswith("#"):
                        self._named.setdefault(base + name, node)
                    else:
                        base = _joined(base, name).partition("#")[0]
                        self._named.setdefault(base, node)
                for anchor in _texts(node, ("$anchor", "$dynamicAnchor")):
                    self._named.setdefault(f"{base}#{anchor}", node)
                self._bases[id(node)] = base, is_old
                waiting += [(inner, base) for name, inner in node.items() if name not in _NO_SCHEMAS]
            elif isinstance(node, list):
                waiting += [(inner, base) for inner in node]

    def is_old(self, schema: dict[str, Any]) -> bool:
        """Whether the schema is of a draft in which nothing beside a $ref counts."""
        return self._bases[id(schema)][1]

    def target(self, schema: dict[str, Any], ref: str) -> Any:
        """The schema that `ref` in `schema` names. Raises ConfigError."""
        uri = _joined(self._bases[id(schema)][0], ref)
        if uri in self._named:
            return self._named[uri]
        place, _, fragment = uri.partition("#")
        node: Any = self._named.get(place)
        if place in self._named and (not fragment or fragment.startswith("/")):
            try:
                for part in urllib.parse.unquote(fragment).split("/")[1:]:
                    step = part.replace("~1", "/").replace("~0", "~")
                    node = node[int(step)] if isinstance(node, list) else node[step]
            except (KeyError, IndexError, ValueError, TypeError):
                node = None
            if isinstance(node, bool) or (isinstance(node, dict) and id(node) in self._bases):
                return node
        raise ConfigError(
            f"JSON Schema refers to {ref!r:.200}, which is neither in it nor among the schemas that it references"
        )


def _joined(base: str, ref: str) -> str:
    if ref.startswith("#"):
        return base.partition("#")[0] + ref
    try:
        return urllib.parse.urljoin(base, ref)
    except ValueError:
        raise ConfigError(f"JSON Schema refers to {ref!r:.200}, which is no URI") from None
