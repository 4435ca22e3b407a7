"""Values of each kind of schema that Confluent's serializers write, as a person sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import struct_pb2, wrappers_pb2

from pykafka_ui.records.values import As, Decoder
from spark_connector.formats.schema_registry import SchemaRegistry
from spark_connector.formats.value_format import RegistrySettings
from tests.support.schema_registry import Registry, schema_registry

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "R", "type": "object", "properties": {"id": {"type": "integer"}}})
CONTEXT = SerializationContext("t", MessageField.VALUE)
PROTOBUF: dict[str, Any] = {"use.deprecated.format": False}


@pytest.fixture
def registry() -> Iterator[Registry]:
    with schema_registry() as served:
        yield served


@pytest.fixture
def decoder(registry: Registry) -> Decoder:
    return Decoder(SchemaRegistry(RegistrySettings((registry.url,))))


def test_what_confluents_serializers_write_is_decoded_by_the_kind_of_its_schema(
    registry: Registry, decoder: Decoder
) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    number = ProtobufSerializer(wrappers_pb2.Int32Value, theirs, PROTOBUF)
    values = {
        "avro": AvroSerializer(theirs, AVRO)({"id": 7}, CONTEXT),
        "json": JSONSerializer(JSON, theirs)({"id": 7}, CONTEXT),
        "protobuf": number(wrappers_pb2.Int32Value(value=7), CONTEXT),
    }
    for kind, value in values.items():
        for how in (As.AUTO, As.AVRO):
            shown = decoder.decode(value, how)
            assert (shown.kind, shown.note) == (kind, "")
        assert decoder.data(value) == shown.data, "what filters look into"
    assert decoder.decode(values["json"]).data == {"id": 7}
    assert decoder.decode(values["avro"]).data == {"id": 7}
    asked = len(registry.asked)
    decoder.decode(values["protobuf"])
    assert len(registry.asked) == asked, "a schema is asked for once"


def test_a_message_within_a_file_of_several_is_found_by_its_place(registry: Registry, decoder: Decoder) -> None:
    theirs = SchemaRegistryClient({"url": registry.url})
    text = wrappers_pb2.StringValue(value="<script>")
    assert decoder.decode(ProtobufSerializer(wrappers_pb2.StringValue, theirs, PROTOBUF)(text, CONTEXT)).kind == (
        "protobuf"
    )
    deep = struct_pb2.Value(string_value="x")
    for _ in range(45):
        deep = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[deep]))
    value = ProtobufSerializer(struct_pb2.Value, theirs, PROTOBUF)(deep, CONTEXT)
    assert decoder.decode(value).kind == "protobuf"
    broken = decoder.decode(value[:-3])
    assert (broken.kind, broken.note.startswith("no message google.protobuf.Value")) == ("hex", True)


def test_a_schema_that_is_unknown_and_a_registry_that_is_down_are_said_beside_the_bytes(
    registry: Registry, decoder: Decoder
) -> None:
    assert "404" in decoder.decode(b"\0\0\0\x10\0abc").note
    registry.failures = [500] * 9
    assert "SCHEMA_REGISTRY_UNAVAILABLE" in decoder.decode(b"\0\0\0\x10\1abc").note
    asked = len(registry.asked)
    assert decoder.decode(b"\0\0\0\x10\2abc").note == "the schema registry does not answer"
    assert len(registry.asked) == asked
