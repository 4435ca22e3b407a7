"""JSON behind the prefix of a schema registry, as Confluent's serializer writes it."""

from __future__ import annotations

import json
import socket

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from spark_connector.errors import ConnectorError
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.json_decoder import FramedJson, JsonDecoder
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, RegistrySettings
from tests.support.schema_registry import Registry

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]})
JSON = json.dumps({"title": "R", "type": "object", "properties": {"id": {"type": "integer"}}})
KIND = pa.struct([("id", pa.int64()), ("name", pa.string())])
CONTEXT = SerializationContext("t", MessageField.VALUE)


def ours(registry: Registry) -> SchemaRegistry:
    return SchemaRegistry(RegistrySettings((registry.url,)))


def decode(registry: Registry, *values: bytes | None, is_plain_too: bool = False) -> Decoded:
    decoder = FramedJson(JsonDecoder(KIND), ours(registry), is_plain_too=is_plain_too)
    decoded = decoder.decode(pa.array(values, pa.binary()))
    decoded.column.validate(full=True)
    assert len(decoded.column) == len(values)
    assert all(decoded.column[row].as_py() is None for row in decoded.bad)
    return decoded


def serialized(registry: Registry, *rows: dict[str, object]) -> list[bytes]:
    theirs = JSONSerializer(JSON, SchemaRegistryClient({"url": registry.url}))
    return [theirs(row, CONTEXT) for row in rows]


def test_what_confluents_serializer_wrote(registry: Registry) -> None:
    values = serialized(registry, {"id": 1}, {"id": 2, "name": "x\n\u00e9"})
    registry.asked.clear()
    decoded = decode(registry, values[0], None, values[1])
    assert decoded.column.to_pylist() == [{"id": 1, "name": None}, None, {"id": 2, "name": "x\n\u00e9"}]
    assert not decoded.bad
    assert registry.asked == ["/schemas/ids/1"], "once"


def test_what_has_no_prefix_or_an_unknown_id_is_bad(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    avro = registry.register("a", AVRO)
    values = [
        good,
        b'{"id":2}',
        b"\0\0\0\0\x63{}",
        bytes([0, 0, 0, 0, avro, 2]),
        b"\0\0\0",
        b"",
        good[:5] + b"\2",
        good,
    ]
    decoded = decode(registry, *values)
    assert [row for row, value in enumerate(decoded.column.to_pylist()) if value is not None] == [0, 7]
    assert "not in the wire format of a schema registry" in decoded.bad[1]
    assert decoded.bad[2] == "schema id 99: HTTP 404 Schema 99 not found"
    assert decoded.bad[3] == f"schema id {avro}: it is of type AVRO, not JSON: the format avro reads it"
    assert all("wire format" in decoded.bad[row] for row in (4, 5))
    assert "not JSON" in decoded.bad[6], "Avro data behind the id of a JSON schema"
    assert list(decoded.bad) == [1, 2, 3, 4, 5, 6]


def test_nothing_but_the_prefix_is_a_null_row_as_empty_text_is(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    assert decode(registry, good[:5]) == Decoded(pa.nulls(1, KIND), {})
    assert decode(registry).column.to_pylist() == []


def test_beside_avro_json_may_have_no_prefix(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    decoded = decode(registry, good, b'{"id":2}', b" ", b"{", b"\0\0\0\0\x63{}", is_plain_too=True)
    assert decoded.column.to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": None}, None, None, None]
    assert list(decoded.bad) == [3, 4]


def test_many_values_of_many_schemas_keep_their_places(registry: Registry) -> None:
    ids = [registry.register(f"s{n}", json.dumps({"title": str(n)}), schemaType="JSON") for n in range(5)]
    values = [
        b"\0" + (ids[n % 5] if n % 7 else 99).to_bytes(4, "big") + json.dumps({"id": n}).encode() for n in range(1000)
    ]
    decoded = decode(registry, *values)
    expected = [{"id": n, "name": None} if n % 7 else None for n in range(1000)]
    assert decoded.column.to_pylist() == expected
    assert list(decoded.bad) == list(range(0, 1000, 7))


def test_a_registry_that_is_down_is_no_bad_record(registry: Registry) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        down = SchemaRegistry(RegistrySettings((f"http://127.0.0.1:{closed.getsockname()[1]}",)))
        decoder = FramedJson(JsonDecoder(KIND), down, is_plain_too=False)
        with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
            decoder.decode(pa.array([b"\0\0\0\0\1{}"], pa.binary()))


def test_the_format_of_a_read_chooses_it(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    with_registry = column_decoder(ColumnFormat("json", KIND), ours(registry))
    assert with_registry.decode(pa.array([good])).column.to_pylist() == [{"id": 1, "name": None}]


def test_without_the_option_the_reason_says_what_to_set(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    avro = AvroSerializer(SchemaRegistryClient({"url": registry.url}), AVRO)({"id": 1}, CONTEXT)
    for decoder, value in (
        (column_decoder(ColumnFormat("json", KIND)), good),
        (column_decoder(ColumnFormat("avro", AvroSchema(AVRO))), avro),
    ):
        (why,) = decoder.decode(pa.array([value])).bad.values()
        assert "set the option 'schema.registry.url'" in why


def test_json_read_as_avro(registry: Registry) -> None:
    (good,) = serialized(registry, {"id": 1})
    decoded = AvroDecoder(AvroSchema(AVRO), ours(registry)).decode(pa.array([good]))
    assert decoded.bad == {0: "schema id 1: it is of type JSON, not AVRO: the format json reads it"}
