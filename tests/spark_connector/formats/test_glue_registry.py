"""AWS's Glue Schema Registry, as moto serves it. Starts moto's server once: 1.5 s."""

from __future__ import annotations

import functools
import json
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pyarrow as pa
import pytest
from google.protobuf import wrappers_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from moto.server import ThreadedMotoServer

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats import frames
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.record_encoder import RecordEncoder, loaded
from spark_connector.formats.registries import registry_of
from spark_connector.formats.value_decoder import Decoded
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, ProtobufSchema, RegistrySettings
from spark_connector.formats.write_format import ColumnWrite, SubjectStrategy, WriteFormats

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
WIDER = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
    }
)
REGISTRY = "orders"


@pytest.fixture(scope="module")
def settings() -> Iterator[RegistrySettings]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        made = RegistrySettings((f"http://{host}:{port}",), type="glue", group=REGISTRY, region="eu-west-1")
        glue(made).create_registry(RegistryName=REGISTRY)
        yield made
    server.stop()


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4()}"


@functools.cache
def glue(settings: RegistrySettings) -> Any:
    return boto3.client("glue", settings.region, endpoint_url=settings.urls[0])


def created(settings: RegistrySettings, schema: str, name: str, kind: str = "AVRO") -> str:
    given = {"SchemaName": name, "DataFormat": kind, "Compatibility": "NONE", "SchemaDefinition": schema}
    made = glue(settings).create_schema(RegistryId={"RegistryName": settings.group}, **given)
    return str(made["SchemaVersionId"])


def framed(version: str, data: bytes, *, deflated: bool = False) -> bytes:
    """As AWS's serializer for Java writes it."""
    return bytes([3, 5 if deflated else 0]) + uuid.UUID(version).bytes + (zlib.compress(data) if deflated else data)


def read(settings: RegistrySettings, one: ColumnFormat, *values: bytes | None) -> Decoded:
    return column_decoder(one, registry_of(settings)).decode(pa.array(values, pa.binary()))


def written(settings: RegistrySettings, topic: str, one: ColumnWrite, **columns: Any) -> list[bytes]:
    batch = pa.record_batch({name: pa.array(column) for name, column in columns.items()})
    formats = loaded(WriteFormats(value=one, registry=settings), topic, batch.schema)
    values: list[bytes] = RecordEncoder(formats, topic, 0).encode(batch).rows["value"].to_pylist()
    return values


ROWS = ColumnFormat("avro", AvroSchema(AVRO))


def test_values_of_several_versions_are_read_compressed_or_not(settings: RegistrySettings, topic: str) -> None:
    old = created(settings, AVRO, topic)
    made = glue(settings).register_schema_version(
        SchemaId={"RegistryName": settings.group, "SchemaName": topic}, SchemaDefinition=WIDER
    )
    new = made["SchemaVersionId"]
    values = [framed(old, b"\2"), framed(new, b"\4\0", deflated=True), None, framed(old, b"\6", deflated=True)]
    found = read(settings, ROWS, *values, framed(new, b"\x08\0"))
    assert found.column.to_pylist() == [{"id": 1}, {"id": 2}, None, {"id": 3}, {"id": 4}]
    assert not found.bad
    registry = registry_of(settings)
    assert registry.avro_version(topic) == (new, AvroSchema(WIDER))
    assert registry.avro_version(topic, "1") == (old, AvroSchema(AVRO))


def test_hostile_bytes_make_bad_records(
    settings: RegistrySettings, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "LARGEST", 1 << 20)
    good = created(settings, AVRO, topic)
    unknown = str(uuid.UUID(int=7))
    bomb = framed(good, bytes(2 << 20), deflated=True)
    values = [
        framed(good, b"\2"),
        b"\0\0\0\0\1\2",
        b"",
        framed(good, b"")[:17],
        b"\3\1" + framed(good, b"\2")[2:],
        framed(unknown, b"\2"),
        framed(good, b"\2", deflated=True)[:-5],
        b"\3\5" + framed(good, b"no zlib")[2:],
        bomb,
        framed(good, b""),
    ]
    found = read(settings, ROWS, *values)
    assert found.column.to_pylist() == [{"id": 1}] + [None] * 9
    assert list(found.bad) == list(range(1, 10))
    assert "begins with a byte of 3" in found.bad[1]
    assert "compressed in a way" in found.bad[4]
    assert found.bad[5].startswith(f"schema id {unknown}: EntityNotFoundException")
    assert found.bad[6] == "its compressed data is cut off"
    assert found.bad[7].startswith("its data is not compressed with zlib")
    assert found.bad[8] == "its data has more than 1 MiB when it is inflated"


def test_json_is_read_and_a_schema_of_another_kind_is_not(settings: RegistrySettings, topic: str) -> None:
    version = created(settings, '{"type":"object","properties":{"id":{"type":"integer"}}}', topic, "JSON")
    other = created(settings, AVRO, f"{topic}-avro")
    one = ColumnFormat("json", pa.struct([("id", pa.int64())]))
    found = read(
        settings, one, framed(version, b'{"id":1}'), framed(version, b'{"id":2}', deflated=True), framed(other, b"{}")
    )
    assert found.column.to_pylist() == [{"id": 1}, {"id": 2}, None]
    assert found.bad[2].endswith("it is of type AVRO, not JSON: the format avro reads it")


def test_protobuf_is_read_by_its_number_among_the_messages_in_order(settings: RegistrySettings, topic: str) -> None:
    file = FileDescriptorProto()
    wrappers_pb2.DESCRIPTOR.CopyToProto(file)
    ours = ProtobufSchema(FileDescriptorSet(file=[file]).SerializeToString(), "google.protobuf.Int64Value")
    version = created(settings, 'syntax = "proto3"; message M {}', topic, "PROTOBUF")
    names = sorted(file.package + "." + one.name for one in file.message_type)
    number = names.index("google.protobuf.Int64Value")
    data = wrappers_pb2.Int64Value(value=9).SerializeToString()
    values = [framed(version, bytes([number]) + data), framed(version, b"\0" + data), framed(version, b"\xff" * 9)]
    found = read(settings, ColumnFormat("protobuf", ours), *values)
    assert found.column.to_pylist() == [{"value": 9}, None, None]
    assert found.bad[1].endswith(f"it is the message at 0, not google.protobuf.Int64Value at {number}")


def test_a_schema_is_found_by_its_text_or_registered(settings: RegistrySettings, topic: str) -> None:
    one = ColumnWrite("avro", ("id",), AvroSchema(AVRO))
    with pytest.raises(ConfigError, match=f"not registered under subject '{topic}'"):
        written(settings, topic, one, id=[1])
    [first] = written(settings, topic, replace(one, auto_register=True), id=[1])
    version = str(uuid.UUID(bytes=first[2:18]))
    assert first == framed(version, b"\2")
    assert written(settings, topic, one, id=[1]) == [first]
    wider = replace(one, columns=("id", "s"), schema=AvroSchema(WIDER), auto_register=True)
    [second] = written(settings, topic, wider, id=[2], s=["x"])
    assert second[:18] != first[:18]
    assert read(settings, ROWS, first, second).column.to_pylist() == [{"id": 1}, {"id": 2}]
    assert written(settings, topic, replace(one, schema=None), id=[1]) == [second[:18] + b"\2\0"], "the latest version"
    assert written(settings, topic, replace(one, schema=None, schema_id=version), id=[1]) == [first]
    by_name = replace(one, auto_register=True, strategy=SubjectStrategy.RECORD)
    assert written(settings, topic, by_name, id=[1])[0][:2] == b"\3\0"
    assert registry_of(settings).avro_version("R")[1] == AvroSchema(AVRO)


def test_what_glue_cannot_do_is_said(settings: RegistrySettings, topic: str) -> None:
    one = ColumnWrite("avro", ("id",), AvroSchema(AVRO), auto_register=True)
    for wrong, said in (
        (replace(one, id_in_header=True), "glue has no headers"),
        (replace(one, schema=None, schema_id="7"), "the UUID of a schema version, not '7'"),
        (replace(one, schema=None, schema_id=str(uuid.UUID(int=7))), "EntityNotFoundException"),
    ):
        with pytest.raises(ConfigError, match=said):
            written(settings, topic, wrong, id=[1])


def test_a_registry_that_does_not_answer_is_no_bad_record(settings: RegistrySettings) -> None:
    gone = replace(settings, urls=("http://127.0.0.1:1",), timeout_ms=200)
    with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE.*glue 'orders'"):
        read(gone, ROWS, framed(str(uuid.UUID(int=1)), b"\2"))


def test_a_profile_that_is_not_there_is_said(settings: RegistrySettings) -> None:
    with pytest.raises(ConfigError, match=r"profile.*schema.registry.profile"):
        registry_of(replace(settings, profile="no-such-profile"))
