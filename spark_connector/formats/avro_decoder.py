"""Avro data to a typed column: fastavro decodes every value, and Arrow converts the results.

Without a registry a value is plain data of the schema. With a registry it is in Confluent's wire format: a zero byte,
the id of the writer's schema in four bytes, the data. The registry is asked once per worker process for a writer's
schema, which is resolved to ours by Avro's rules. An id that the registry does not know makes a bad record; a registry
that does not answer fails the task in every mode. Records are decoded one by one, at some microseconds per field
(docs/decisions.md lists the alternatives that were tried).

The Arrow type of a schema follows the rules of spark-avro, except that every field is nullable (as in spark-avro's
PERMISSIVE mode), and that a uuid is a string however it is stored. fastavro gets a rewritten schema with the same
encoding. It has no logical types except decimal, because Arrow converts whole columns of numbers to dates and times. A
branch of a union of several types becomes a record with one field, which has the same encoding, so that the result
shows which branch it was: spark-avro's `struct<member0, …>`. Arrays whose items take no bytes are refused, because a
few bytes could announce any number of them.
"""

from __future__ import annotations

import functools
import io
import json
from dataclasses import dataclass, field
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from broker.errors import ConfigError
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_decoder import BadValue, Decoded, one_by_one
from spark_connector.formats.value_format import AvroSchema

__all__ = ["AvroDecoder", "PreparedSchema", "prepare"]

_PREFIX: Final = 5  # magic byte and id


class AvroDecoder:
    """Decodes values of `schema`, or of any writer's schema in `registry` that resolves to it."""

    def __init__(self, schema: AvroSchema, registry: SchemaRegistry | None = None) -> None:
        """Raises ConfigError for a schema without a Spark type."""
        self._schema = schema
        self._reader = prepare(schema)
        self._registry = registry
        self.type = self._reader.type

    def decode(self, values: pa.Array) -> Decoded:
        """Raises ConnectorError if the registry does not answer."""
        decoded = one_by_one(values, self._reader.raw, self._plain if self._registry is None else self._framed)
        if self._reader.raw == self._reader.type:
            return decoded
        try:
            return Decoded(decoded.column.cast(self._reader.type), decoded.bad)
        except pa.ArrowInvalid:
            return self._cast_each(decoded)

    def _cast_each(self, decoded: Decoded) -> Decoded:
        """Cast value by value: some time does not fit into microseconds."""
        parts, bad = [], dict(decoded.bad)
        for row in range(len(decoded.column)):
            try:
                parts.append(decoded.column[row : row + 1].cast(self._reader.type))
            except pa.ArrowInvalid as error:
                parts.append(pa.nulls(1, self._reader.type))
                bad[row] = str(error)
        return Decoded(pa.concat_arrays(parts), dict(sorted(bad.items())))

    def _plain(self, raw: bytes) -> Any:
        return _read(raw, 0, self._reader.parsed, None)

    def _framed(self, raw: bytes) -> Any:
        if len(raw) < _PREFIX or raw[0]:
            raise BadValue(
                "not in the wire format of a schema registry, which begins with a zero byte and the schema's id"
            )
        writer = self._writer(int.from_bytes(raw[1:_PREFIX]))
        return _read(raw, _PREFIX, writer.parsed, None if writer is self._reader else self._reader.parsed)

    def _writer(self, schema_id: int) -> PreparedSchema:
        assert self._registry is not None
        try:
            schema = self._registry.schema(schema_id)
            return self._reader if schema == self._schema else prepare(schema, self._schema)
        except (UnknownSchema, ConfigError) as error:
            raise BadValue(f"schema id {schema_id}: {error}") from None


def _read(raw: bytes, begin: int, writer: Any, reader: Any) -> Any:
    stream = io.BytesIO(raw)
    stream.seek(begin)
    try:
        value = fastavro.schemaless_reader(stream, writer, reader)
    except Exception as error:  # fastavro raises all kinds of errors for bytes that are not Avro
        raise BadValue(f"not Avro of the schema: {type(error).__name__} {error}"[:300]) from None
    if stream.tell() != len(raw):
        raise BadValue(f"{len(raw) - stream.tell()} bytes are left after the Avro data")
    return value


_PRIMITIVES: Final[dict[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UTC_US: Final = pa.timestamp("us", "UTC")
_LOGICAL: Final[dict[tuple[str, str], tuple[pa.DataType, pa.DataType]]] = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("long", "timestamp-millis"): (pa.timestamp("ms", "UTC"), _UTC_US),
    ("long", "timestamp-micros"): (_UTC_US, _UTC_US),
    ("long", "local-timestamp-millis"): (pa.timestamp("ms"), pa.timestamp("us")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
}
"""(Arrow type of the stored numbers, type of the column)."""

_WIDENED: Final[tuple[set[str], ...]] = ({"int", "long"}, {"float", "double"})
_PROMOTED: Final[dict[str, tuple[str, ...]]] = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Reader's type → writer's types that Avro promotes to it."""

_DEEPEST: Final = 64
_MOST_BRANCHES: Final = 32
_UNION: Final = "pykafka.union"


@dataclass(frozen=True)
class PreparedSchema:
    """`parsed`: for fastavro; `raw`: the Arrow type of its objects; `type`: the type to cast these to."""

    parsed: Any = field(repr=False)
    raw: pa.DataType
    type: pa.DataType


@functools.lru_cache(maxsize=512)
def prepare(schema: AvroSchema, reader: AvroSchema | None = None) -> PreparedSchema:
    """For values written with `schema` and read as `reader`, or as `schema` itself.

    Raises ConfigError if it is not an Avro schema or has no Spark type.
    """
    try:
        document, named = _parse(schema)
        guide, guides = (None, {}) if reader is None else _parse(reader)
        node, raw, kind = _Walk(named, guides).visit(document, (), guide)
        parsed = fastavro.parse_schema(node)
        _encode_defaults(parsed)
        return PreparedSchema(parsed, raw, kind)
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"Not an Avro schema: {type(error).__name__} {error}, in: {schema.text[:200]}") from None


def _parse(schema: AvroSchema) -> tuple[Any, dict[str, Any]]:
    """The schema with full names, and the named types."""
    named: dict[str, Any] = {}
    for reference in schema.references:
        fastavro.parse_schema(json.loads(reference), named)
    return fastavro.parse_schema(json.loads(schema.text), named), named


_Visited = tuple[Any, pa.DataType, pa.DataType]


class _Walk:
    """One pass over a parsed schema. A named type is written in full the first time, and then by its name.

    A reader's schema (`guide` is None) determines which unions become structs. A writer's schema follows the reader's:
    a value is treated as a branch of a union only where the reader has a union of several types.
    """

    def __init__(self, named: dict[str, Any], guides: dict[str, Any]) -> None:
        self._named = named
        self._guides = guides
        self._written: set[str] = set()
        self._unions = 0

    def visit(self, node: Any, inside: tuple[str, ...], guide: Any = None) -> _Visited:
        """(node for fastavro, raw type, type). `inside`: the enclosing named types. `guide`: the reader's node."""
        if len(inside) > _DEEPEST:
            raise ConfigError(f"Avro schema is nested more than {_DEEPEST} deep")
        if isinstance(guide, list):
            several = _several(guide)
            if several is not None and not isinstance(node, list):
                (member,), raw, kind = self._union([node], inside, several)
                return member, raw, kind
            guide = several or next((branch for branch in guide if branch != "null"), "null")
        elif isinstance(guide, str) and guide in self._guides:
            guide = self._guides[guide]
        if isinstance(node, list):
            return self._union(node, inside, guide)
        name = node if isinstance(node, str) else node["type"]
        if isinstance(name, dict | list):
            return self.visit(name, inside, guide)
        if name in _PRIMITIVES:
            return self._primitive(name, {} if isinstance(node, str) else node)
        if isinstance(node, str):
            return self._defined(node, self._named[node], inside, guide)
        inner = guide if isinstance(guide, dict) else {}
        if name == "array":
            return self._array(node, inside, inner.get("items"))
        if name == "map":
            item, raw, kind = self.visit(node["values"], (*inside, "{}"), inner.get("values"))
            return {"type": "map", "values": item}, pa.map_(pa.string(), raw), pa.map_(pa.string(), kind)
        return self._defined(node["name"], node, inside, guide)

    def _primitive(self, name: str, node: dict[str, Any]) -> _Visited:
        logical = node.get("logicalType")
        if logical == "decimal" and name == "bytes" and (kind := _decimal(node)) is not None:
            return _plain(node, "type", "logicalType", "precision", "scale"), kind, kind
        raw, kind = _LOGICAL.get((name, str(logical)), (_PRIMITIVES[name], _PRIMITIVES[name]))
        return name, raw, kind

    def _array(self, node: dict[str, Any], inside: tuple[str, ...], guide: Any) -> _Visited:
        item, raw, kind = self.visit(node["items"], (*inside, "[]"), guide)
        if _takes_no_bytes(node["items"], self._named):
            raise ConfigError("Avro schema has an array of items that take no bytes, so its length cannot be trusted")
        return {"type": "array", "items": item}, pa.list_(raw), pa.list_(kind)

    def _defined(self, name: str, node: dict[str, Any], inside: tuple[str, ...], guide: Any) -> _Visited:
        if name in inside:
            raise ConfigError(f"Avro schema is recursive in {name}: Spark has no type for it")
        first = name not in self._written
        self._written.add(name)
        if node["type"] == "enum":
            return _plain(node, "type", "name", "symbols", "default", "aliases") if first else name, *[pa.string()] * 2
        if node["type"] == "fixed":
            kind = _decimal(node) if node.get("logicalType") == "decimal" else None
            extra = () if kind is None else ("logicalType", "precision", "scale")
            kind = pa.binary() if kind is None else kind
            return _plain(node, "type", "name", "size", "aliases", *extra) if first else name, kind, kind
        fields, raws, kinds = [], [], []
        for one in node["fields"]:
            inner, raw, kind = self.visit(one["type"], (*inside, name), _field_of(guide, one["name"]))
            fields.append({**_plain(one, "name", "aliases"), **_default(one, inner), "type": inner})
            raws.append((one["name"], raw))
            kinds.append((one["name"], kind))
        record = {"type": "record", **_plain(node, "name", "aliases"), "fields": fields}
        return record if first else name, pa.struct(raws), pa.struct(kinds)

    def _union(self, branches: list[Any], inside: tuple[str, ...], guide: Any) -> _Visited:
        some = [branch for branch in branches if branch != "null"]
        led = bool(self._guides) or guide is not None
        several = (guide if isinstance(guide, list) else None) if led else _several(branches)
        if several is None:
            visited = [self.visit(branch, inside, guide) for branch in some]
            _, raw, kind = visited[0] if visited else ("null", pa.null(), pa.null())
            if {str(branch) for branch in some} in _WIDENED:
                raw = kind = pa.float64() if "double" in some else pa.int64()
            nodes = iter(node for node, _, _ in visited)
            return ["null" if branch == "null" else next(nodes) for branch in branches], raw, kind
        self._unions += 1
        number = self._unions
        kinds_of = {_branch_name(branch): branch for branch in several if branch != "null"}
        visited = [self.visit(branch, inside, kinds_of.get(_branch_name(branch)) if led else None) for branch in some]
        members = iter(enumerate(visited))
        known = {_branch_name(branch) for branch in some}
        rewritten = [
            "null" if branch == "null" else _member(branch, number, *next(members), self._other_names(branch, known))
            for branch in branches
        ]
        raws, kinds = ([(f"member{n}", one[part]) for n, one in enumerate(visited)] for part in (1, 2))
        return rewritten, pa.struct(raws), pa.struct(kinds)

    def _other_names(self, branch: Any, known: set[str]) -> list[str]:
        """The names of writer's branches that resolve to this branch of a reader, without those the union has
        itself."""
        node = self._named.get(branch, branch) if isinstance(branch, str) else branch
        aliases = node.get("aliases", ()) if isinstance(node, dict) else ()
        names = [*(_branch_name(alias) for alias in aliases), *_PROMOTED.get(_branch_name(branch), ())]
        return [f"branch_{name}" for name in dict.fromkeys(names) if name not in known]


def _several(branches: list[Any]) -> list[Any] | None:
    """The branches of a union of several types; None for a union of one type and perhaps null."""
    some = [branch for branch in branches if branch != "null"]
    return None if len(some) <= 1 or {str(branch) for branch in some} in _WIDENED else branches


def _branch_name(branch: Any) -> str:
    """The name by which branches of two unions match: the type, or the name of a named type without namespace."""
    return str(branch if isinstance(branch, str) else branch.get("name", branch["type"])).rpartition(".")[2]


def _field_of(guide: Any, name: str) -> Any:
    """The type of the reader's field with the name or alias `name`."""
    for one in guide.get("fields", ()) if isinstance(guide, dict) else ():
        if one["name"] == name or name in one.get("aliases", ()):
            return one["type"]
    return None


def _member(branch: Any, union: int, index: int, visited: _Visited, other_names: list[str]) -> dict[str, Any]:
    """The branch as a record with one field. A writer's branch matches ours by its type, not by its index: the record
    has the name of the type, and the field has the names of all indexes as aliases."""
    others = [f"member{other}" for other in range(_MOST_BRANCHES) if other != index]
    inner = {"name": f"member{index}", "aliases": others, "type": visited[0]}
    name = f"{_UNION}{union}.branch_{_branch_name(branch)}"
    return {"type": "record", "name": name, "aliases": other_names, "fields": [inner]}


def _default(node: dict[str, Any], inner: Any) -> dict[str, Any]:
    """The default of a field; the default of a union belongs to its first branch."""
    default = _plain(node, "default")
    first = inner[0] if default and isinstance(inner, list) else None
    if isinstance(first, dict) and str(first.get("name")).startswith(_UNION):
        return {"default": {first["fields"][0]["name"]: default["default"]}}
    return default


def _encode_defaults(node: Any) -> None:
    """Schemas write defaults of bytes as text, one character per byte, and fastavro would return the text."""
    for branch in node if isinstance(node, list) else [node]:
        if not isinstance(branch, dict):
            continue
        for one in branch.get("fields", ()):
            kind = one["type"][0] if isinstance(one["type"], list) else one["type"]
            kind = kind["type"] if isinstance(kind, dict) else kind
            if kind in {"bytes", "fixed"} and isinstance(one.get("default"), str):
                one["default"] = one["default"].encode("iso-8859-1")
            _encode_defaults(one["type"])
        for inner in ("items", "values"):
            _encode_defaults(branch.get(inner))


def _plain(node: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: node[key] for key in keys if key in node}


def _decimal(node: dict[str, Any]) -> pa.DataType | None:
    """None if the attributes are invalid, which Avro says to ignore."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return None
    if precision > 38:
        raise ConfigError(f"Avro schema has a decimal of {precision} digits: Spark's have 38 at most")
    return pa.decimal128(precision, scale)


def _takes_no_bytes(node: Any, named: dict[str, Any], inside: tuple[str, ...] = ()) -> bool:
    if isinstance(node, list):
        return False  # the index of the branch takes one
    name = node if isinstance(node, str) else node["type"]
    if isinstance(name, dict | list):
        return _takes_no_bytes(name, named, inside)
    if name == "null":
        return True
    if isinstance(node, str):
        if node in _PRIMITIVES or node in inside:
            return False
        return _takes_no_bytes(named[node], named, (*inside, node))
    if name == "fixed":
        return bool(node["size"] == 0)
    if name == "record":
        return all(_takes_no_bytes(one["type"], named, (*inside, node["name"])) for one in node["fields"])
    return False
