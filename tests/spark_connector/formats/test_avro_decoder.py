"""Avro to columns: the types of spark-avro, resolution of schemas, and bytes that are none."""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, cast

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.schema_registry import SchemaRegistry, UnknownSchema
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema

US = pa.timestamp("us", "UTC")


class Schemas:
    """Stands for a registry."""

    def __init__(self, schemas: Mapping[int, Any]) -> None:
        self._schemas = schemas

    def schema(self, schema_id: int) -> AvroSchema:
        if schema_id not in self._schemas:
            raise UnknownSchema(f"HTTP 404 Schema {schema_id} not found")
        return AvroSchema(json.dumps(self._schemas[schema_id]))


def record(*fields: tuple[Any, ...], name: str = "R") -> dict[str, Any]:
    """Of (name, type) or (name, type, default)."""
    made = [{"name": one[0], "type": one[1], **({"default": one[2]} if len(one) > 2 else {})} for one in fields]
    return {"type": "record", "name": name, "fields": made}


def write(schema: Any, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def decode(schema: Any, *values: bytes | None) -> Decoded:
    return AvroDecoder(AvroSchema(json.dumps(schema))).decode(pa.array(values, pa.binary()))


def resolve(writer: Any, reader: Any, value: Any) -> Any:
    """`value` written as `writer` and read as `reader`; "bad"."""
    registry = cast(SchemaRegistry, Schemas({7: writer}))
    decoder = AvroDecoder(AvroSchema(json.dumps(reader)), registry)
    decoded = decoder.decode(pa.array([b"\0\0\0\0\7" + write(writer, value)], pa.binary()))
    return "bad" if decoded.bad else decoded.column[0].as_py()


MOMENT = dt.datetime(2024, 1, 2, 3, 4, 5, 678000, tzinfo=dt.UTC)
INNER = record(("q", "int"), name="com.x.Inner")
NEWER = {**INNER, "name": "com.x.Newer", "aliases": ["Inner"]}


@pytest.mark.parametrize(
    ("avro", "kind", "value", "expected"),
    [
        ("boolean", pa.bool_(), True, True),
        ("int", pa.int32(), -5, -5),
        ("long", pa.int64(), 2**40, 2**40),
        ("float", pa.float32(), 1.5, 1.5),
        ("double", pa.float64(), 1.1, 1.1),
        ("bytes", pa.binary(), b"\xff", b"\xff"),
        ("string", pa.string(), "é", "é"),
        (["null", "int"], pa.int32(), None, None),
        (["int", "null"], pa.int32(), 4, 4),
        (["int", "long"], pa.int64(), 2**40, 2**40),
        (["null", "float", "double"], pa.float64(), 1.1, 1.1),
        ({"type": "array", "items": ["null", "int"]}, pa.list_(pa.int32()), [1, None], [1, None]),
        ({"type": "map", "values": "string"}, pa.map_(pa.string(), pa.string()), {"a": "b"}, [("a", "b")]),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, pa.string(), "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, pa.binary(), b"ab", b"ab"),
        (INNER, pa.struct([("q", pa.int32())]), {"q": 1}, {"q": 1}),
        ({"type": "int", "logicalType": "date"}, pa.date32(), dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
        ({"type": "long", "logicalType": "timestamp-millis"}, US, MOMENT, MOMENT),
        ({"type": "long", "logicalType": "timestamp-micros"}, US, MOMENT, MOMENT),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            pa.timestamp("us"),
            MOMENT.replace(tzinfo=None),
            MOMENT.replace(tzinfo=None),
        ),
        ({"type": "int", "logicalType": "time-millis"}, pa.int32(), dt.time(0, 0, 1), 1000),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            pa.decimal128(6, 2),
            Decimal("-12.34"),
            Decimal("-12.34"),
        ),
        (
            {"type": "fixed", "name": "D", "size": 4, "logicalType": "decimal", "precision": 6, "scale": 2},
            pa.decimal128(6, 2),
            Decimal("12.34"),
            Decimal("12.34"),
        ),
        ({"type": "string", "logicalType": "uuid"}, pa.string(), uuid.UUID(int=5), str(uuid.UUID(int=5))),
        (
            ["null", "int", "string", INNER],
            pa.struct([("member0", pa.int32()), ("member1", pa.string()), ("member2", pa.struct([("q", pa.int32())]))]),
            ("com.x.Inner", {"q": 3}),
            {"member0": None, "member1": None, "member2": {"q": 3}},
        ),
    ],
)
def test_types(avro: Any, kind: pa.DataType, value: Any, expected: Any) -> None:
    schema = record(("a", avro), ("z", {"type": "array", "items": avro}) if not named(avro) else ("z", "int"))
    raw = write(schema, {"a": value, "z": [value, value] if not named(avro) else 1})
    decoded = decode(schema, raw, None)
    assert not decoded.bad
    assert decoded.column.type.field("a").type == kind
    row, tombstone = decoded.column.to_pylist()
    assert row == {"a": expected, "z": 1 if named(avro) else [expected, expected]}
    assert tombstone is None


def named(avro: Any) -> bool:
    return "name" in json.dumps(avro)


def test_named_types_may_be_used_again() -> None:
    schema = record(("a", INNER), ("b", ["null", "com.x.Inner"]), ("c", {"type": "map", "values": "com.x.Inner"}))
    raw = write(schema, {"a": {"q": 1}, "b": {"q": 2}, "c": {"x": {"q": 3}}})
    assert decode(schema, raw).column.to_pylist() == [{"a": {"q": 1}, "b": {"q": 2}, "c": [("x", {"q": 3})]}]


def test_a_schema_may_refer_to_others() -> None:
    outer = json.dumps(record(("a", "com.x.Inner")))
    decoder = AvroDecoder(AvroSchema(outer, (json.dumps(INNER),)))
    assert decoder.type == pa.struct([("a", pa.struct([("q", pa.int32())]))])
    with pytest.raises(ConfigError, match=r"com\.x\.Inner"):
        AvroDecoder(AvroSchema(outer))


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type":"record"}', "Not an Avro schema"),
        ("{", "Not an Avro schema"),
        ('"strin"', "Not an Avro schema"),
        (json.dumps(record(("next", ["null", "R"]))), "recursive in R"),
        (json.dumps({"type": "array", "items": "null"}), "take no bytes"),
        (json.dumps({"type": "array", "items": record()}), "take no bytes"),
        ('{"type":"bytes","logicalType":"decimal","precision":40,"scale":2}', "38 at most"),
    ],
)
def test_schemas_that_cannot_be_read(schema: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        AvroDecoder(AvroSchema(schema))


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        (record(("a", "int")), record(("a", "int"), ("b", "string", "new")), {"a": 1}, {"a": 1, "b": "new"}),
        (record(("a", "int")), record(("a", "int"), ("b", "bytes", "\u00ff")), {"a": 1}, {"a": 1, "b": b"\xff"}),
        (record(("a", "int")), record(("a", "int"), ("b", ["null", "int"], None)), {"a": 1}, {"a": 1, "b": None}),
        (record(("a", "int")), record(("a", "int"), ("b", "string")), {"a": 1}, "bad"),
        (record(("a", "int"), ("gone", "string")), record(("a", "int")), {"a": 1, "gone": "x"}, {"a": 1}),
        (record(("a", "int")), record(("a", "double")), {"a": 1}, {"a": 1.0}),
        (record(("a", "string")), record(("a", "int")), {"a": "x"}, "bad"),
        (record(("a", "int")), record(("a", ["null", "int"])), {"a": 1}, {"a": 1}),
        (record(("a", ["null", "int"])), record(("a", "int")), {"a": None}, "bad"),
        (record(("a", "int")), record(("a", ["int", "string"])), {"a": 1}, {"a": {"member0": 1, "member1": None}}),
        (
            record(("a", ["null", "int"])),
            record(("a", ["null", "string", "int"])),
            {"a": 1},
            {"a": {"member0": None, "member1": 1}},
        ),
        (
            record(("a", ["int", "string"])),
            record(("a", ["string", "int"])),
            {"a": 1},
            {"a": {"member0": None, "member1": 1}},
        ),
        (record(("a", ["int", "string"])), record(("a", ["null", "string"])), {"a": "x"}, {"a": "x"}),
        (
            record(),
            record(("a", ["string", "int"], "old")),
            {},
            {"a": {"member0": "old", "member1": None}},
        ),
        (
            record(("a", {"type": "long", "logicalType": "timestamp-millis"})),
            record(("a", {"type": "long", "logicalType": "timestamp-millis"}), ("b", "int", 3)),
            {"a": MOMENT},
            {"a": MOMENT, "b": 3},
        ),
    ],
)
def test_evolution(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    assert resolve(writer, reader, value) == expected


@pytest.mark.parametrize(
    ("writer", "reader", "value", "expected"),
    [
        ("int", ["null", "long", "string"], 7, {"member0": 7, "member1": None}),
        ("int", ["null", "double", "int"], 7, {"member0": None, "member1": 7}),
        (["int", "long", "string"], ["long", "bytes"], "x", {"member0": None, "member1": b"x"}),
        (["int", "long", "string"], ["long", "bytes"], 7, {"member0": 7, "member1": None}),
        ([INNER, "int"], ["long", NEWER], {"q": 1}, {"member0": None, "member1": {"q": 1}}),
        ("long", ["null", "int", "string"], 7, "bad"),
    ],
)
def test_a_type_that_can_be_promoted_or_was_renamed_finds_its_branch_of_a_union(
    writer: Any, reader: Any, value: Any, expected: Any
) -> None:
    found = resolve(record(("f", writer)), record(("f", reader)), {"f": value})
    assert found == (expected if expected == "bad" else {"f": expected})


def test_renamed_fields_are_found_by_alias() -> None:
    reader = record(("new", "int"))
    reader["fields"][0]["aliases"] = ["old"]
    assert resolve(record(("old", "int")), reader, {"old": 4}) == {"new": 4}


SCHEMA = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": "string"}),
    ("m", {"type": "map", "values": "double"}),
    ("t", {"type": "long", "logicalType": "timestamp-millis"}),
    ("u", ["int", "bytes"]),
)
GOOD = write(SCHEMA, {"id": 1, "name": "x", "tags": ["a"], "m": {"k": 1.5}, "t": MOMENT, "u": b"q"})


@pytest.mark.parametrize(
    "value", [b"", GOOD[:-1], GOOD + b"\0", b"\xff" * 50, b"\2\2\xff\xff\xff\xff\xff\xff\xff\xff\x7f"]
)
def test_bytes_that_are_no_avro(value: bytes) -> None:
    decoded = decode(SCHEMA, GOOD, value, GOOD)
    assert list(decoded.bad) == [1]
    assert decoded.column[1].as_py() is None
    assert decoded.column[0].as_py() == decoded.column[2].as_py() == decode(SCHEMA, GOOD).column[0].as_py()


def test_a_time_that_fits_into_no_timestamp_is_bad() -> None:
    schema = record(("t", {"type": "long", "logicalType": "timestamp-millis"}))
    decoded = decode(schema, write(schema, {"t": MOMENT}), write(record(("t", "long")), {"t": 2**62}))
    assert list(decoded.bad) == [1]
    assert decoded.column.to_pylist() == [{"t": MOMENT}, None]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_bytes_are_bad_or_a_value(data: st.DataObject) -> None:
    spoiled = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
        spoiled = spoiled or bytearray(b"\0")
    decoded = decode(SCHEMA, GOOD, bytes(spoiled), data.draw(st.binary(max_size=30)))
    decoded.column.validate(full=True)
    assert decoded.column[0].as_py()["id"] == 1
    for row in decoded.bad:
        assert decoded.column[row].as_py() is None


def test_the_wire_format_of_registries() -> None:
    registry = cast(SchemaRegistry, Schemas({7: SCHEMA, 8: {"type": "array", "items": "null"}}))
    decoder = AvroDecoder(AvroSchema(json.dumps(SCHEMA)), registry)
    values = [b"\0\0\0\0\7" + GOOD, b"\1\0\0\0\7" + GOOD, b"\0\0\0", b"", b"\0\0\0\0\6" + GOOD, b"\0\0\0\0\x08\2", None]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoded.column[0].as_py() == decode(SCHEMA, GOOD).column[0].as_py()
    assert list(decoded.bad) == [1, 2, 3, 4, 5]
    assert "wire format" in decoded.bad[1]
    assert decoded.bad[4] == "schema id 6: HTTP 404 Schema 6 not found"
    assert decoded.bad[5] == "array was written, which cannot be read as record R"
