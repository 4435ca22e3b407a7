"""Rows of a write against a JSON Schema. What is valid is what the package jsonschema says of the JSON written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.json_check import CheckedJson
from spark_connector.formats.record_encoder import RecordEncoder, column_encoder, loaded
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import JsonSchema, RegistrySettings, SchemaSubject
from spark_connector.formats.write_format import ALL_COLUMNS, ColumnWrite, JsonText, SubjectStrategy, WriteFormats
from spark_connector.options.write_options import parse_write_options
from tests.support.schema_registry import Registry

ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "state": {"enum": ["new", "done"]},
        "lines": {
            "type": "array",
            "items": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
        },
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["id", "state"],
    "additionalProperties": False,
}
KIND = pa.struct(
    [
        ("id", pa.int64()),
        ("note", pa.string()),
        ("state", pa.string()),
        ("lines", pa.list_(pa.struct([("n", pa.float64())]))),
        ("tags", pa.map_(pa.string(), pa.string())),
    ]
)
GOOD: dict[str, Any] = {"id": 1, "note": None, "state": "new", "lines": [{"n": 1.5}], "tags": {"a": "b"}}


def encode(schema: Any, kind: pa.DataType, rows: list[Any], *, omits: bool = True) -> Encoded:
    encoder = CheckedJson(JsonSchema(json.dumps(schema)), kind, JsonText(ignore_null_fields=omits), b"\0\0\0\0\7")
    made = encoder.encode(pa.array(rows, kind))
    assert all(made.values[row].as_py() is None for row in made.bad)
    assert all(value is None or value.startswith(b"\0\0\0\0\7{") for value in made.values.to_pylist())
    return made


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"id": None}, "field id is null, but the JSON Schema requires it"),
        ({"state": "old"}, "field state is none of the values that the JSON Schema lists"),
        ({"lines": [{"n": 1.0}, {"n": None}]}, "field lines[].n is null, but the JSON Schema requires it"),
        ({"lines": [None]}, "field lines[] is null, where the JSON Schema asks for an object"),
        ({"lines": [{"n": math.nan}]}, "field lines[].n is NaN or infinite"),
        ({"tags": {"a": None}}, "field tags[] is null, where the JSON Schema asks for a string"),
        ({"note": "x", "lines": None, "tags": None}, None),
        ({"lines": [], "tags": {}}, None),
    ],
)
def test_a_row_that_the_schema_refuses_is_bad_and_says_why(change: dict[str, Any], why: str | None) -> None:
    made = encode(ORDER, KIND, [GOOD, {**GOOD, **change}, GOOD])
    assert list(made.bad) == ([] if why is None else [1])
    assert why is None or made.bad[1].startswith(why)


def test_a_map_has_the_keys_that_the_schema_requires() -> None:
    schema = {
        "type": "object",
        "properties": {"m": {"type": "object", "required": ["a"], "additionalProperties": True}},
    }
    kind = pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
    rows: list[Any] = [{"m": [("a", 1)]}, {"m": [("b", 1)]}, {"m": []}, {"m": None}, {"m": [("b", 1), ("a", None)]}]
    why = "field m has no key 'a', but the JSON Schema requires it"
    assert encode(schema, kind, rows).bad == {1: why, 2: why}
    with pytest.raises(ConfigError, match="field m has keys of type int64"):
        encode(schema, pa.struct([("m", pa.map_(pa.int64(), pa.int64()))]), [])


NO_KEYS = {"type": "object", "properties": {}, "additionalProperties": False}
TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}


@pytest.mark.parametrize(
    "schema",
    [
        NO_KEYS,
        {"type": "object", "additionalProperties": False},
        {"type": "object", "additionalProperties": False, "patternProperties": {"^w": False}},
        {"allOf": [NO_KEYS, TEXTS]},
        {"anyOf": [NO_KEYS, {**NO_KEYS, "type": ["object", "null"]}]},
        {"anyOf": [NO_KEYS, TEXTS]},
        {"type": "object", "additionalProperties": {}},
        {"type": "object", "patternProperties": {"^q": False}},
    ],
)
@pytest.mark.parametrize("omits", [True, False])
def test_an_object_that_admits_no_keys_has_none(schema: dict[str, Any], omits: bool) -> None:
    whole = {"type": "object", "properties": {"a": schema}}
    kind = pa.struct([("a", pa.map_(pa.string(), pa.string()))])
    rows: list[Any] = [{"a": []}, {"a": [("w", None)]}, {"a": [("w", "x")]}]
    validator = jsonschema.Draft202012Validator(whole)
    expected = [row for row, value in enumerate(rows) if not validator.is_valid({"a": dict(value["a"])})]
    made = encode(whole, kind, rows, omits=omits)
    assert list(made.bad) == expected
    closed = "field a has a key that the JSON Schema does not admit"
    assert len(expected) < 2 or set(made.bad.values()) == {closed}


def test_nulls_that_are_written_must_be_admitted() -> None:
    rows = [{**GOOD, "lines": None}, {**GOOD, "note": None}]
    assert encode(ORDER, KIND, rows, omits=False).bad == {
        0: "field lines is null, where the JSON Schema asks for an array"
    }
    required = {**ORDER, "required": ["note"]}
    assert "set option 'ignoreNullFields' to false" in encode(required, KIND, rows[1:]).bad[0]
    assert not encode(required, KIND, rows[1:], omits=False).bad


@pytest.mark.parametrize(
    ("schema", "kind", "said"),
    [
        (ORDER, pa.struct([("id", pa.int64())]), "requires the field state, which no column has"),
        (ORDER, pa.struct([*KIND, ("more", pa.int64())]), "has no field more and admits no others"),
        (ORDER, pa.struct([("id", pa.string()), *list(KIND)[1:]]), "field id is string, where .* asks for an integer"),
        (ORDER, pa.struct([("id", pa.float64()), *list(KIND)[1:]]), "field id is double, where .* an integer"),
        ({"type": "object", "additionalProperties": False}, KIND, "has no field id and admits no others"),
        ({"type": "array"}, KIND, "the value is struct.* asks for an array"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, pa.struct([("a", pa.bool_())]), "a is bool"),
    ],
)
def test_columns_that_no_row_can_fill_are_refused_at_once(schema: Any, kind: pa.DataType, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CheckedJson(JsonSchema(json.dumps(schema)), kind)


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"title": "x", "required": ["no"]}])
def test_a_schema_that_says_little_admits_all(schema: Any) -> None:
    assert not encode(schema, KIND, [GOOD]).bad


class Drawn(NamedTuple):
    schema: dict[str, Any]
    kind: pa.DataType
    values: st.SearchStrategy[Any]


ATOMS = [
    Drawn({"type": "string"}, pa.string(), st.text(max_size=3)),
    Drawn({"type": "integer"}, pa.int64(), st.integers(-5, 5)),
    Drawn({"type": "number"}, pa.float64(), st.sampled_from([0.5, math.inf, math.nan, -1e300])),
    Drawn({"type": "number"}, pa.int32(), st.integers(-5, 5)),
    Drawn({"type": "boolean"}, pa.bool_(), st.booleans()),
    Drawn({"type": ["string", "null"]}, pa.string(), st.text(max_size=3)),
    Drawn({"enum": ["a", "b"]}, pa.string(), st.sampled_from(["a", "b", "c"])),
    Drawn({"enum": ["a", None]}, pa.string(), st.sampled_from(["a", "b"])),
    Drawn({}, pa.int64(), st.integers(0, 5)),
]


def _wider(inner: st.SearchStrategy[Drawn]) -> st.SearchStrategy[Drawn]:
    nulls = st.none()
    return st.one_of(
        inner.map(
            lambda one: Drawn(
                {"type": "array", "items": one.schema}, pa.list_(one.kind), st.lists(nulls | one.values, max_size=3)
            )
        ),
        inner.map(
            lambda one: Drawn(
                {"type": "object", "additionalProperties": one.schema},
                pa.map_(pa.string(), one.kind),
                st.dictionaries(st.sampled_from("xyz"), nulls | one.values, max_size=2).map(lambda d: list(d.items())),
            )
        ),
        _maps(inner),
        _objects(inner),
    )


@st.composite
def _maps(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    """Of an object with named fields and others, which a map of one type writes."""
    value = draw(inner)
    named = draw(st.dictionaries(st.sampled_from("xy"), st.just(value) | inner, max_size=2))
    schema = {
        "type": "object",
        "properties": {name: one.schema for name, one in named.items()},
        "required": draw(st.lists(st.sampled_from("xyz"), unique=True)),
        "additionalProperties": draw(st.booleans() | st.just(value.schema)),
    }
    keys = st.dictionaries(st.sampled_from("wxyz"), st.none() | value.values, max_size=3)
    return Drawn(schema, pa.map_(pa.string(), value.kind), keys.map(lambda d: list(d.items())))


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Drawn]) -> Drawn:
    fields = draw(st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3))
    schema = {
        "type": draw(st.sampled_from(["object", ["object", "null"]])),
        "properties": {name: one.schema for name, one in fields.items()},
        "required": draw(st.lists(st.sampled_from(sorted(fields)), unique=True)),
        "additionalProperties": draw(st.booleans()),
    }
    kind = pa.struct([(name, one.kind) for name, one in fields.items()])
    return Drawn(schema, kind, st.fixed_dictionaries({name: st.none() | one.values for name, one in fields.items()}))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data(), st.booleans())
def test_the_rows_that_are_bad_are_those_that_are_not_valid(data: st.DataObject, omits: bool) -> None:
    drawn = data.draw(_objects(st.recursive(st.sampled_from(ATOMS), _wider, max_leaves=5)))
    rows = data.draw(st.lists(drawn.values, min_size=1, max_size=6))
    array = pa.array([*rows[:1], *rows], drawn.kind)[1:]  # a slice
    text = JsonText(ignore_null_fields=omits)
    written = column_encoder(ColumnWrite("json", json=text), drawn.kind).encode(array).values
    made = CheckedJson(JsonSchema(json.dumps(drawn.schema)), drawn.kind, text).encode(array)
    validator = jsonschema.Draft202012Validator(drawn.schema)
    expected = [row for row, value in enumerate(written.to_pylist()) if not validator.is_valid(json.loads(value))]
    assert list(made.bad) == expected
    assert [value for row, value in enumerate(written.to_pylist()) if row not in expected] == [
        value for row, value in enumerate(made.values.to_pylist()) if row not in expected
    ]


def written(registry: Registry, topic: str | None = "orders", **more: Any) -> list[bytes | None]:
    one = replace(ColumnWrite("json", tuple(field.name for field in KIND)), **more)
    formats = WriteFormats(value=one, registry=RegistrySettings((registry.url,)))
    made = loaded(formats, topic, pa.schema(list(KIND)))
    assert made.registry is None
    batch = pa.RecordBatch.from_struct_array(pa.array([GOOD], KIND))
    return RecordEncoder(made, topic, 0).encode(batch).rows["value"].to_pylist()


def test_values_are_framed_as_by_confluents_serializer(registry: Registry, tmp_path: Path) -> None:
    text = json.dumps(ORDER)
    client = SchemaRegistryClient({"url": registry.url})
    context = SerializationContext("orders", MessageField.VALUE)
    registry.register("another", "{}", schemaType="JSON")
    (theirs,) = (JSONSerializer(text, client)({**GOOD, "tags": {"a": "b"}}, context),)
    (ours,) = written(registry)
    assert theirs is not None
    assert ours is not None
    assert ours[:5] == theirs[:5] == b"\0\0\0\0\2"
    assert json.loads(ours[5:]) == {name: value for name, value in json.loads(theirs[5:]).items() if value is not None}
    (tmp_path / "s.json").write_text(text)
    for more in (
        {"schema_id": "2"},
        {"schema": SchemaSubject("orders-value", "1")},
        {"schema": JsonSchema(text)},
        {"schema": parsed(str(tmp_path / "s.json"))},
    ):
        assert written(registry, **more) == [ours]
    assert written(registry, None, schema_id="2") == [ours]


def parsed(schema: str) -> Any:
    """The schema of the options of a write."""
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "valueFormat": "json", "valueSchema": schema}
    made = parse_write_options({**options, "schema.registry.url": "http://h"}, stream=False)
    assert made.formats.value.columns == ALL_COLUMNS
    return made.formats.value.schema


def test_a_schema_that_is_given_is_looked_up_or_registered_under_its_title(registry: Registry) -> None:
    text = json.dumps(ORDER)
    given: dict[str, Any] = {"schema": parsed(text), "strategy": SubjectStrategy.RECORD}
    with pytest.raises(ConfigError, match="not registered under subject 'Order'"):
        written(registry, **given)
    (ours,) = written(registry, auto_register=True, **given)
    conf = {"auto.register.schemas": False, "subject.name.strategy": record_subject_name_strategy}
    theirs = JSONSerializer(text, SchemaRegistryClient({"url": registry.url}), conf=conf)
    value = theirs(GOOD, SerializationContext("orders", MessageField.VALUE))
    assert ours is not None
    assert value is not None
    assert (ours[:5], registry.subjects) == (value[:5], {"Order": [1]})
    with pytest.raises(ConfigError, match="or a JSON Schema with a title"):
        written(registry, schema=JsonSchema("{}"), strategy=SubjectStrategy.RECORD)


def test_what_cannot_be_is_refused_on_the_driver(registry: Registry) -> None:
    with pytest.raises(ConfigError, match="'valueFormat'=json: the schema registry says: .*'orders-value' not found"):
        written(registry)
    registry.register("orders-value", '"int"')
    with pytest.raises(ConfigError, match="of type AVRO, not JSON"):
        written(registry)
    number = registry.register(
        "j", json.dumps({"type": "object", "required": ["x"], "properties": {"x": {}}}), schemaType="JSON"
    )
    with pytest.raises(ConfigError, match="requires the field x, which no column has"):
        written(registry, schema_id=str(number))
    with pytest.raises(ConfigError, match="set one of 'valueSchema' and 'valueSchemaId'"):
        written(registry, schema_id=str(number), schema=JsonSchema("{}"))
    with pytest.raises(ConfigError, match="'autoRegister' needs 'valueSchema': a JSON Schema"):
        written(registry, auto_register=True)
    options = {"kafka.bootstrap.servers": "h:1", "topic": "t", "valueFormat": "json", "valueSchema": "{}"}
    with pytest.raises(ConfigError, match="'valueSchema' has no effect on format json: it needs 'schema.registry.url'"):
        parse_write_options(options, stream=False)
