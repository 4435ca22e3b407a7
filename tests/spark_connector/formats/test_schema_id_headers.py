"""The id of a schema in a header of the record: Confluent's header serializers and dual deserializers are the judge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import wrappers_pb2

from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.json_decoder import FramedJson, JsonDecoder
from spark_connector.formats.protobuf_decoder import ProtobufDecoder
from spark_connector.formats.protobuf_descriptors import schema_of_registry
from spark_connector.formats.record_decoder import RecordDecoder
from spark_connector.formats.record_encoder import RecordEncoder, loaded, with_header
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, ReadFormats, RegistrySettings
from spark_connector.formats.write_format import ColumnWrite, WriteFormats
from tests.support.schema_registry import Registry

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
WIDER = json.dumps(
    {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": "string"}]}
)
JSON = json.dumps({"title": "R", "type": "object", "properties": {"id": {"type": "integer"}}})
NUMBER = 2**60
"""Confluent's deserializer takes no value of five bytes or fewer."""
VALUE, KEY = "__value_schema_id", "__key_schema_id"
Headers = list[tuple[str, bytes]]


def client(registry: Registry) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings((registry.url,)))


def settings(registry: Registry) -> RegistrySettings:
    return RegistrySettings((registry.url,))


def context(headers: Any, field: Any = MessageField.VALUE) -> SerializationContext:
    return SerializationContext("t", field, headers)


def as_column(*rows: Any) -> pa.Array:
    made = [row and [{"key": name, "value": value} for name, value in row] for row in rows]
    return pa.array(made, HEADERS_TYPE)


def written_by_confluent(
    registry: Registry, schema: str, row: Any, field: Any = MessageField.VALUE
) -> tuple[bytes, Headers]:
    headers: Headers = []
    conf = {"schema.id.serializer": header_schema_id_serializer}
    serialize = AvroSerializer(SchemaRegistryClient({"url": registry.url}), schema, conf=conf)
    return serialize(row, context(headers, field)), headers


def avro(registry: Registry, values: list[bytes | None], headers: pa.Array | None, column: str = "value") -> Decoded:
    return AvroDecoder(AvroSchema(AVRO), client(registry), column=column).decode(pa.array(values, pa.binary()), headers)


def test_confluents_values_are_read_by_header_and_by_prefix(registry: Registry) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    framed = AvroSerializer(theirs, AVRO)({"id": 1}, context(None))
    bare, headers = written_by_confluent(registry, AVRO, {"id": 2})
    other, more = written_by_confluent(registry, WIDER, {"id": 3, "s": "x"})
    assert (bare, headers[0][0], len(headers[0][1])) == (b"\4", VALUE, 17)
    registry.asked.clear()
    rows = [framed, bare, None, other, bare]
    found = avro(registry, rows, as_column(None, headers, headers, [("a", b"b"), *more], [*more, *headers]))
    assert found == Decoded(found.column, {})
    assert found.column.to_pylist() == [{"id": 1}, {"id": 2}, None, {"id": 3}, {"id": 2}], "the last header counts"
    assert sorted(path.rpartition("/")[0] for path in registry.asked) == ["/schemas/guids"] * 2 + ["/schemas/ids"]


def test_a_key_has_a_header_of_its_own(registry: Registry) -> None:
    bare, headers = written_by_confluent(registry, AVRO, {"id": 2}, MessageField.KEY)
    assert headers[0][0] == KEY
    assert avro(registry, [bare], as_column(headers), "key").column.to_pylist() == [{"id": 2}]
    assert list(avro(registry, [bare], as_column(headers)).bad) == [0], "it is not the header of a value"


def test_json_of_confluents_header_serializer(registry: Registry) -> None:
    headers: Headers = []
    conf = {"schema.id.serializer": header_schema_id_serializer}
    value = JSONSerializer(JSON, SchemaRegistryClient({"url": registry.url}), conf=conf)({"id": 7}, context(headers))
    assert json.loads(value) == {"id": 7}
    decoder = FramedJson(JsonDecoder(pa.struct([("id", pa.int64())])), client(registry), is_plain_too=False)
    assert decoder.decode(pa.array([value]), as_column(headers)).column.to_pylist() == [{"id": 7}]
    _, of_avro = written_by_confluent(registry, AVRO, {"id": 2})
    [why] = decoder.decode(pa.array([value]), as_column(of_avro)).bad.values()
    assert why.endswith("it is of type AVRO, not JSON: the format avro reads it")


def test_protobuf_has_its_message_indexes_in_the_header(registry: Registry) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    conf: dict[str, Any] = {"schema.id.serializer": header_schema_id_serializer, "use.deprecated.format": False}
    headers: Headers = []
    serialize = ProtobufSerializer(wrappers_pb2.Int64Value, theirs, conf)
    value = serialize(wrappers_pb2.Int64Value(value=NUMBER), context(headers))
    other: Headers = []
    ProtobufSerializer(wrappers_pb2.StringValue, theirs, conf)(wrappers_pb2.StringValue(value="x"), context(other))
    files = client(registry).protobuf_version("t-value")[1]
    decoder = ProtobufDecoder(schema_of_registry(files, "google.protobuf.Int64Value"), client(registry))
    bare = [(VALUE, headers[0][1][:17])]
    found = decoder.decode(pa.array([value] * 3), as_column(headers, other, bare))
    assert found.column.to_pylist() == [{"value": NUMBER}, None, None]
    assert found.bad[1].endswith("it is a message google.protobuf.StringValue, not google.protobuf.Int64Value")
    assert found.bad[2].startswith(f"its header {VALUE} has no place of a message")
    one = ColumnWrite("protobuf", ("value",), message="google.protobuf.Int64Value", id_in_header=True)
    [row] = encoded(registry, one, pa.record_batch({"value": pa.array([NUMBER])})).to_pylist()
    assert [(one["key"], one["value"]) for one in row["headers"]] == headers
    conf = {"schema.id.deserializer": dual_schema_id_deserializer, "use.deprecated.format": False}
    back = ProtobufDeserializer(wrappers_pb2.Int64Value, conf)(row["value"], context(headers))
    assert back == wrappers_pb2.Int64Value(value=NUMBER)


@pytest.mark.parametrize(
    "header",
    [b"", b"\0", b"\1", b"\2\0\0\0\1", b"\0\0\0\0\1\0", b"\1" + bytes(15), b"\1" + bytes(17), b"\0" * 4, b"\xff" * 300],
)
def test_a_header_that_nobody_writes_makes_a_bad_record(registry: Registry, header: bytes) -> None:
    bare, headers = written_by_confluent(registry, AVRO, {"id": 2})
    found = avro(registry, [bare, bare], as_column([(VALUE, header)], headers))
    assert found.column.to_pylist() == [None, {"id": 2}]
    assert found.bad[0].startswith(f"its header {VALUE} is ")


def test_a_guid_that_the_registry_does_not_know_makes_a_bad_record(registry: Registry) -> None:
    found = avro(registry, [b"\2"], as_column([(VALUE, b"\1" + bytes(16))]))
    assert found.bad == {
        0: "schema id 00000000-0000-0000-0000-000000000000: HTTP 404 Schema 00000000-0000-0000-0000-000000000000 "
        "not found"
    }


def test_an_id_in_a_header_is_read_too(registry: Registry) -> None:
    number = registry.register("s", AVRO)
    assert avro(registry, [b"\2"], as_column([(VALUE, b"\0" + number.to_bytes(4))])).column.to_pylist() == [{"id": 1}]


def test_a_read_takes_the_headers_that_it_needs(registry: Registry) -> None:
    bare, headers = written_by_confluent(registry, AVRO, {"id": 2})
    formats = ReadFormats(value=ColumnFormat("avro", AvroSchema(AVRO)), registry=settings(registry))
    source = pa.schema([("value", pa.binary())])
    decoder = RecordDecoder(formats, source, ("t", 0))  # type: ignore[arg-type]
    assert decoder.needs == ("value", "offset", "headers")
    batch = pa.record_batch({"value": pa.array([bare]), "offset": pa.array([0]), "headers": as_column(headers)})
    made = decoder.decode(batch)
    assert made.schema.names == ["value", "_corrupt_record"]
    assert made["value"].to_pylist() == [{"id": 2}]
    plain = replace(formats, registry=None)
    assert RecordDecoder(plain, source, ("t", 0)).needs == ("value", "offset")  # type: ignore[arg-type]


PLAIN = ColumnWrite()


def encoded(registry: Registry, one: ColumnWrite, batch: pa.RecordBatch, key: ColumnWrite = PLAIN) -> pa.RecordBatch:
    chosen = WriteFormats(key, one, registry=settings(registry))
    return RecordEncoder(loaded(chosen, "t", batch.schema), "t", 0).encode(batch).rows


WRITE = ColumnWrite("avro", ("id",), auto_register=True, schema=AvroSchema(AVRO), id_in_header=True)


def test_confluents_deserializer_reads_what_we_write(registry: Registry) -> None:
    before = as_column([("a", b"1")], None)
    batch = pa.record_batch({"id": pa.array([NUMBER, NUMBER + 1]), "headers": before})
    rows = encoded(registry, WRITE, batch, key=replace(WRITE, name="avro"))
    conf = {"schema.id.deserializer": dual_schema_id_deserializer}
    deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry.url}), conf=conf)
    for row, number in zip(rows.to_pylist(), (NUMBER, NUMBER + 1), strict=True):
        headers = [(one["key"], one["value"]) for one in row["headers"]]
        assert [name for name, _ in headers] == [*(["a"] if number == NUMBER else []), KEY, VALUE]
        assert row["value"] == row["key"]
        assert deserialize(row["value"], context(headers)) == {"id": number}
        assert deserialize(row["key"], context(headers, MessageField.KEY)) == {"id": number}
    _, theirs = written_by_confluent(registry, AVRO, {"id": 5})
    assert theirs[0] in headers, "the same GUID"


def test_a_tombstone_has_no_schema(registry: Registry) -> None:
    one = replace(WRITE, schema=AvroSchema('"string"'), columns=("s",))
    rows = encoded(registry, one, pa.record_batch({"s": pa.array(["a", None, "b"])}))
    assert [[one["key"] for one in row or ()] for row in rows["headers"].to_pylist()] == [[VALUE], [], [VALUE]]


def test_a_registry_without_guids_is_said(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchemaRegistry, "_answer", lambda *_: {"schema": AVRO})
    with pytest.raises(ConfigError, match="gives no GUIDs, as Confluent Platform 8 .* 'schemaIdLocation'"):
        encoded(registry, WRITE, pa.record_batch({"id": pa.array([5])}))


def test_headers_of_a_slice_stay_with_their_rows() -> None:
    own = as_column([("x", b"0")], [("a", b"1"), ("b", None)], None, [], [("c", b"2")])[1:]
    made = with_header(own, pa.array([True, False, True, True]), "n", b"v")
    assert made.type == HEADERS_TYPE
    assert [[(one["key"], one["value"]) for one in row] for row in made.to_pylist()] == [
        [("a", b"1"), ("b", None), ("n", b"v")],
        [],
        [("n", b"v")],
        [("c", b"2"), ("n", b"v")],
    ]
    assert with_header(None, pa.array([], pa.bool_()), "n", b"v").to_pylist() == []
