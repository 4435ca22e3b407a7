"""JSON Schemas to the types of columns. What is valid is what the package jsonschema says."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.json_decoder import JsonDecoder
from spark_connector.formats.json_schema import json_column
from spark_connector.formats.schema_text import parse_schema_text
from spark_connector.formats.value_format import JsonSchema

UTC = pa.timestamp("us", "UTC")
NODE = {"type": "object", "properties": {"name": {"type": "string"}, "next": {"$ref": "#"}}}


def type_of(schema: Any, *references: tuple[str, Any]) -> pa.DataType:
    texts = tuple((name, json.dumps(one)) for name, one in references)
    return json_column(JsonSchema(json.dumps(schema), texts))


def field(schema: Any, **more: Any) -> pa.DataType:
    """The type of a property with this schema."""
    return type_of({"type": "object", "properties": {"f": schema}, **more}).field("f").type


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


STRING, LONG, DOUBLE = {"type": "string"}, {"type": "integer"}, {"type": "number"}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (STRING, pa.string()),
        (LONG, pa.int64()),
        (DOUBLE, pa.float64()),
        ({"type": "boolean"}, pa.bool_()),
        ({"type": "string", "format": "date-time"}, UTC),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "time"}, pa.string()),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "array", "items": LONG}, pa.list_(pa.int64())),
        ({"type": "array"}, pa.list_(pa.string())),
        ({"items": LONG}, pa.list_(pa.int64())),
        ({"type": "array", "items": [LONG, DOUBLE]}, pa.list_(pa.float64())),
        ({"type": "array", "prefixItems": [LONG, STRING]}, pa.list_(pa.string())),
        ({"type": "array", "prefixItems": [LONG], "items": False}, pa.list_(pa.int64())),
        ({"type": "array", "items": [LONG], "additionalItems": STRING}, pa.list_(pa.string())),
        (record(a=LONG, b=STRING), pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ({"properties": {"a": LONG}}, pa.struct([("a", pa.int64())])),
        (record(a=LONG, b=False), pa.struct([("a", pa.int64())])),
        ({"type": "object"}, pa.string()),
        ({"type": "object", "additionalProperties": LONG}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "additionalProperties": True}, pa.map_(pa.string(), pa.string())),
        ({"type": "object", "additionalProperties": {}}, pa.map_(pa.string(), pa.string())),
        ({"patternProperties": {"^a": LONG, "^b": DOUBLE}}, pa.map_(pa.string(), pa.float64())),
        ({"type": "object", "additionalProperties": False}, pa.map_(pa.string(), pa.string())),
        ({**record(a=LONG), "additionalProperties": STRING}, pa.struct([("a", pa.int64())])),
        ({}, pa.string()),
        (True, pa.string()),
        ({"type": "null"}, pa.string()),
        ({"description": "anything", "minimum": 3}, pa.string()),
    ],
)
def test_what_one_type_becomes(schema: Any, kind: pa.DataType) -> None:
    assert field(schema) == kind


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"type": ["integer", "number"]}, pa.float64()),
        ({"type": ["integer", "string"]}, pa.string()),
        ({"oneOf": [{"type": "null"}, LONG]}, pa.int64()),
        ({"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, UTC),
        ({"anyOf": [{"type": "string", "format": "date-time"}, STRING]}, pa.string()),
        ({"anyOf": [LONG, {"type": "boolean"}]}, pa.string()),
        ({"anyOf": [LONG, {}]}, pa.string()),
        (
            {"oneOf": [record(a=LONG, c=STRING), record(b=STRING, c=LONG)]},
            pa.struct([("a", pa.int64()), ("c", pa.string()), ("b", pa.string())]),
        ),
        (
            {"oneOf": [{"type": "array", "items": LONG}, {"type": "array", "items": DOUBLE}]},
            pa.list_(pa.float64()),
        ),
        ({"oneOf": [record(a=LONG), STRING]}, pa.string()),
        (
            {**record(a=LONG, b=LONG), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        ),
        ({"allOf": [record(a=LONG), record(b=STRING)]}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ({"allOf": [record(a={}), record(a=LONG)]}, pa.struct([("a", pa.int64())])),
        ({"type": "string", "allOf": [{"format": "x"}, {"type": "string", "format": "date"}]}, pa.date32()),
        ({"allOf": [DOUBLE, LONG]}, pa.int64()),
        ({"allOf": [LONG, STRING]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"enum": [1, 2]}, pa.int64()),
        ({"enum": [1, 2.5]}, pa.float64()),
        ({"enum": [1, "a"]}, pa.string()),
        ({"enum": [{"a": 1}]}, pa.string()),
        ({"const": True}, pa.bool_()),
        ({"const": None}, pa.string()),
        ({"type": "string", "enum": []}, pa.string()),
    ],
)
def test_what_several_types_become(schema: Any, kind: pa.DataType) -> None:
    assert field(schema) == kind


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer", "connect.type": "int8"}, pa.int8()),
        ({"type": "integer", "connect.type": "int32"}, pa.int32()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        ({"type": "string", "connect.type": "bytes"}, pa.binary()),
        ({"oneOf": [{"type": "null"}, {"type": "integer", "connect.type": "int16"}]}, pa.int16()),
        (
            {"type": "number", "title": "org.apache.kafka.connect.data.Decimal", "connect.parameters": {"scale": "2"}},
            pa.decimal128(38, 2),
        ),
        ({"type": "number", "title": "org.apache.kafka.connect.data.Decimal"}, pa.float64()),
        ({"type": "object", "connect.type": "map", "additionalProperties": LONG}, pa.map_(pa.string(), pa.int64())),
        (
            record(b={"type": "integer", "connect.index": 1}, a={"type": "integer", "connect.index": 0}),
            pa.struct([("a", pa.int64()), ("b", pa.int64())]),
        ),
    ],
)
def test_what_kafka_connect_writes(schema: Any, kind: pa.DataType) -> None:
    assert field(schema) == kind


@pytest.mark.parametrize("key", ["definitions", "$defs"])
def test_references_within_the_schema(key: str) -> None:
    named = {key: {"a~/b c": LONG, "list": {"type": "array", "items": {"$ref": f"#/{key}/a~0~1b%20c"}}}}
    assert field({"$ref": f"#/{key}/list"}, **named) == pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("draft", "kind"),
    [("http://json-schema.org/draft-07/schema#", pa.int64()), ("https://json-schema.org/draft/2020-12/schema", UTC)],
)
def test_what_stands_beside_a_reference_counts_since_2019(draft: str, kind: pa.DataType) -> None:
    beside = {"$ref": "#/$defs/a", "allOf": [{"type": "string", "format": "date-time"}]}
    named = LONG if kind == pa.int64() else STRING
    assert field(beside, **{"$schema": draft, "$defs": {"a": named}}) == kind


def test_references_by_anchor_and_by_id() -> None:
    made = type_of(
        {
            "$id": "http://x/root.json",
            **record(a={"$ref": "#here"}, b={"$ref": "other.json"}, c={"$ref": "http://x/other.json#/properties/d"}),
            "$defs": {
                "o": {"$id": "other.json", **record(d={"$ref": "#/$defs/l"}), "$defs": {"l": LONG}},
                "h": {"$anchor": "here", "type": "boolean"},
            },
        }
    )
    inner = pa.struct([("d", pa.int64())])
    assert made == pa.struct([("a", pa.bool_()), ("b", inner), ("c", pa.int64())])


def test_ids_of_draft_4() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://x/r",
        **record(a={"$ref": "#b"}),
        "definitions": {"b": {"id": "#b", "type": "integer"}},
    }
    assert type_of(schema) == pa.struct([("a", pa.int64())])
    with pytest.raises(ConfigError, match="refers to"):
        type_of({**schema, "$schema": "http://json-schema.org/draft-07/schema#"})


def test_references_to_other_schemas_of_the_registry() -> None:
    address = {"$id": "http://x/address.json", **record(city={"$ref": "city.json"})}
    city = {"$id": "http://x/city.json", **record(name=STRING)}
    of_city = pa.struct([("name", pa.string())])
    for name in ("address.json", "http://x/address.json"):
        schema = {"$id": "http://x/person.json", **record(home={"$ref": name})}
        made = type_of(schema, (name, address), ("city.json", city))
        assert made == pa.struct([("home", pa.struct([("city", of_city)]))])
    assert type_of(record(c={"$ref": "c"}), ("c", record(n=LONG))) == pa.struct([("c", pa.struct([("n", pa.int64())]))])


def test_an_object_within_itself_is_its_json_text() -> None:
    kind = type_of(NODE)
    assert kind == pa.struct([("name", pa.string()), ("next", pa.string())])
    raw = b'{"name":"a","next":{"name":"b","next":null}}'
    decoded = JsonDecoder(kind).decode(pa.array([raw], pa.binary()))
    assert decoded.column.to_pylist() == [{"name": "a", "next": '{"name":"b","next":null}'}]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "array", "items": LONG}, "but an array"),
        ({"type": "object"}, "does not describe an object with properties, which a column needs, but anything"),
        ({"$ref": "#"}, "does not describe an object"),
        ({"type": "object", "additionalProperties": LONG}, "which a column needs, but an object"),
        (record(a={"type": "long"}), "'long', which is none of JSON Schema"),
        (record(a={"$ref": "#/definitions/b"}), "refers to '#/definitions/b'"),
        (record(a={"$ref": "http://elsewhere/x.json"}), "nor among the schemas that it references"),
        ({"$id": "http://x/y", **record(a={"$ref": "http://["})}, "which is no URI"),
        (record(a=3), "has 3 where a schema should be"),
        ({"type": "object", "properties": [1]}, "properties that are no object"),
    ],
)
def test_what_no_column_can_be_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        type_of(schema)


def test_schemas_that_multiply_or_are_too_deep_are_refused() -> None:
    levels = {f"l{n}": record(**{f"f{i}": {"$ref": f"#/$defs/l{n + 1}"} for i in range(10)}) for n in range(9)}
    with pytest.raises(ConfigError, match="more than 100,000 fields"):
        type_of({**record(a={"$ref": "#/$defs/l0"}), "$defs": {**levels, "l9": LONG}})
    deep: Any = LONG
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ConfigError, match="nested more than 64 deep"):
        type_of(record(a=deep))
    combined: Any = record(a=LONG)
    for _ in range(300):
        combined = {"allOf": [combined]}
    with pytest.raises(ConfigError, match="JSON Schema"):
        type_of(combined)
    with pytest.raises(ConfigError, match="is not JSON"):
        json_column(JsonSchema("[" * 100_000))


def test_the_option_takes_a_json_schema_or_a_type_of_spark() -> None:
    sparks = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    for document in (record(a=LONG), sparks):
        assert parse_schema_text(json.dumps(document), avro=False) == pa.struct([("a", pa.int64())])


class Drawn(NamedTuple):
    schema: Any
    values: st.SearchStrategy[Any]


ATOMS = [
    Drawn({"type": "string"}, st.text(max_size=5)),
    Drawn({"type": "integer"}, st.integers(-(1 << 63), (1 << 63) - 1)),
    Drawn({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    Drawn({"type": "boolean"}, st.booleans()),
    Drawn({"type": "string", "format": "date-time"}, st.datetimes().map(lambda one: one.isoformat() + "Z")),
    Drawn({"type": "string", "format": "date"}, st.dates().map(str)),
    Drawn({"enum": ["a", "b"]}, st.sampled_from(["a", "b"])),
    Drawn({}, st.one_of(st.text(max_size=3), st.integers(-9, 9), st.just([1, "x"]), st.just({"y": None}))),
]


def _wider(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    return st.one_of(
        inner.map(lambda one: Drawn({"type": "array", "items": one.schema}, st.lists(one.values, max_size=2))),
        inner.map(
            lambda one: Drawn(
                {"type": "object", "additionalProperties": one.schema},
                st.dictionaries(st.text(max_size=2), one.values, max_size=2),
            )
        ),
        inner.map(
            lambda one: Drawn({"anyOf": [{"type": "null"}, one.schema]}, st.none() | one.values) if one.schema else one
        ),
        st.lists(inner, min_size=2, max_size=2).map(
            lambda two: Drawn({"anyOf": [one.schema for one in two]}, st.one_of(*(one.values for one in two)))
        ),
        _objects(inner),
    )


def _objects(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    def made(fields: dict[str, Drawn]) -> Drawn:
        schema = record(**{name: one.schema for name, one in fields.items()})
        return Drawn(schema, st.fixed_dictionaries({}, optional={name: one.values for name, one in fields.items()}))

    return st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(made)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_every_valid_value_is_read_and_holds_what_was_written(data: st.DataObject) -> None:
    drawn = data.draw(_objects(st.recursive(st.sampled_from(ATOMS), _wider, max_leaves=5)))
    values = data.draw(st.lists(drawn.values, min_size=1, max_size=4))
    for value in values:
        jsonschema.validate(value, drawn.schema)
    decoder = JsonDecoder(type_of(drawn.schema))
    decoded = decoder.decode(pa.array([json.dumps(value).encode() for value in values], pa.binary()))
    decoded.column.validate(full=True)
    assert not decoded.bad
    for value, row in zip(values, decoded.column.to_pylist(maps_as_pydicts="strict"), strict=True):
        _same(value, row, decoder.type)


def _same(value: Any, row: Any, kind: pa.DataType) -> None:
    """Whether `row` of type `kind` holds the JSON `value`."""
    if value is None:
        assert row is None
    elif pa.types.is_struct(kind):
        for one in kind:
            _same(value.get(one.name), row[one.name], one.type)
    elif pa.types.is_list(kind):
        for item, got in zip(value, row, strict=True):
            _same(item, got, kind.value_type)
    elif pa.types.is_map(kind):
        assert value.keys() == row.keys()
        for key, item in value.items():
            _same(item, row[key], kind.item_type)
    elif pa.types.is_string(kind) and not isinstance(value, str):
        assert json.loads(row) == value
    elif pa.types.is_timestamp(kind):
        assert row.isoformat().replace("+00:00", "Z") == value
    else:
        assert (str(row) if pa.types.is_date(kind) else row) == value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["object", "array", "string", "#", "#/a", "x:y", "%", "http://["]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                "type properties items $ref $id allOf anyOf oneOf enum const additionalProperties patternProperties a "
                "required prefixItems $schema $anchor connect.index title".split()
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(JSON)
def test_any_json_is_a_schema_or_a_clear_error(document: Any) -> None:
    try:
        type_of({"type": "object", "properties": {"f": document, "a": {"type": "integer"}}})
    except ConfigError as error:
        said = str(error)
    else:
        said = "JSON Schema"
    assert "JSON Schema" in said
