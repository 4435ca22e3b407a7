"""Apicurio's own API and serializers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.errors import ConnectorError
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.record_encoder import RecordEncoder, loaded
from spark_connector.formats.registries import registry_of
from spark_connector.formats.value_decoder import Decoded, FramedDecoder
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, RegistrySettings
from spark_connector.formats.write_format import ColumnWrite, WriteFormats
from tests.support.apicurio import Apicurio, apicurio

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
WIDER = json.dumps(
    {**json.loads(AVRO), "fields": [{"name": "id", "type": "long"}, {"name": "s", "type": ["null", "string"]}]}
)
JSON = json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}})
ROWS = ColumnFormat("avro", AvroSchema(AVRO))


@pytest.fixture(scope="module")
def server() -> Iterator[Apicurio]:
    with apicurio() as running:
        running.add("other", '"int"')
        running.add("t-value", AVRO)
        running.add("t-value", WIDER)
        running.add("json-value", JSON, "JSON")
        yield running


@pytest.fixture
def settings(server: Apicurio) -> RegistrySettings:
    return RegistrySettings((server.url,), type="apicurio")


def read(settings: RegistrySettings, one: ColumnFormat, values: Sequence[bytes | None], *headers: Any) -> Decoded:
    decoder = column_decoder(one, registry_of(settings))
    assert isinstance(decoder, FramedDecoder)
    made = [row and [{"key": name, "value": value} for name, value in row] for row in headers] or [None] * len(values)
    return decoder.decode(pa.array(values, pa.binary()), pa.array(made, HEADERS_TYPE))


def content(number: int) -> tuple[str, bytes]:
    return "apicurio.value.contentId", number.to_bytes(8)


def version(number: int) -> tuple[str, bytes]:
    return "apicurio.value.globalId", number.to_bytes(8)


def test_ids_of_four_bytes_are_those_of_contents(settings: RegistrySettings) -> None:
    found = read(settings, ROWS, [b"\0\0\0\0\2\2", b"\0\0\0\0\3\4\0", None, b"\0\0\0\0\x09\2", b"\0\0\0", b"\2"])
    assert found.column.to_pylist() == [{"id": 1}, {"id": 2}, None, None, None, None]
    assert found.bad[3].startswith("schema id contentIds/9: HTTP 404")
    assert all("wire format of Apicurio's serializers" in found.bad[row] for row in (4, 5))


def test_ids_of_eight_bytes_are_those_of_versions_where_it_is_said(settings: RegistrySettings) -> None:
    old = replace(settings, use_id="globalid", id_bytes=8)
    found = read(old, ROWS, [b"\0" + (102).to_bytes(8) + b"\2", b"\0" + (2).to_bytes(8) + b"\2"])
    assert found.column.to_pylist() == [{"id": 1}, None]
    version_2 = replace(old, urls=(settings.urls[0].replace("/v3", "/v2"),))
    assert read(version_2, ROWS, [b"\0" + (102).to_bytes(8) + b"\2"]).column.to_pylist() == [{"id": 1}]
    with pytest.raises(ConfigError, match="API version 2 only ids are read"):
        registry_of(version_2).avro_version("t-value")


def test_ids_in_headers(settings: RegistrySettings) -> None:
    encoding = ("apicurio.value.encoding", b"BINARY")
    values = [b"\2", b"\4\0", b'{"id":3}', b"\2", b"\2"]
    rows = (
        [content(2)],
        [encoding, version(103)],
        [content(2), ("apicurio.value.encoding", b"JSON")],
        None,
        [content(7)],
    )
    found = read(settings, ROWS, values, *rows)
    assert found.column.to_pylist() == [{"id": 1}, {"id": 2}, None, None, None]
    assert found.bad[2] == "its header says that it is encoded as JSON; BINARY is read"
    short = read(settings, ROWS, [b"\2"], [("apicurio.value.contentId", b"\0\0\0\1")])
    assert short.bad == {0: "its header contentId has not 8 bytes but 4"}


def test_json_and_schemas_of_another_kind(settings: RegistrySettings) -> None:
    one = ColumnFormat("json", pa.struct([("id", pa.int64())]))
    found = read(settings, one, [b'{"id":1}'] * 3, [content(4)], [version(104)], [content(2)])
    assert found.column.to_pylist() == [{"id": 1}, {"id": 1}, None]
    assert found.bad[2].endswith("it is of type AVRO, not JSON: the format avro reads it")
    with pytest.raises(ConfigError, match=r"no format protobuf: use /apis/ccompat/v7"):
        registry_of(settings).framing("value", "protobuf")


def written(settings: RegistrySettings, one: ColumnWrite, topic: str = "t") -> dict[str, Any]:
    batch = pa.record_batch({"id": pa.array([1])})
    formats = loaded(WriteFormats(value=one, registry=settings), topic, batch.schema)
    row: dict[str, Any] = RecordEncoder(formats, topic, 0).encode(batch).rows.to_pylist()[0]
    return row


def test_a_schema_is_found_or_registered_and_written(server: Apicurio, settings: RegistrySettings) -> None:
    one = ColumnWrite("avro", ("id",), AvroSchema(AVRO))
    assert written(settings, one) == {"value": b"\0\0\0\0\2\2"}
    assert written(replace(settings, use_id="globalid", id_bytes=8), one) == {
        "value": b"\0" + (102).to_bytes(8) + b"\2"
    }
    in_header = replace(one, id_in_header=True)
    assert [tuple(each.values()) for each in written(settings, in_header)["headers"]] == [content(2)]
    assert written(settings, replace(one, schema=None, schema_id="2")) == {"value": b"\0\0\0\0\2\2"}
    assert written(settings, replace(one, schema=None))["value"] == b"\0\0\0\0\3\2\0", "the latest version"
    with pytest.raises(ConfigError, match="not registered under subject 'new-value'"):
        written(settings, one, "new")
    grouped = replace(settings, group="a/b")
    assert written(grouped, replace(one, auto_register=True), "new") == {"value": b"\0\0\0\0\2\2"}
    assert server.versions[-1] == ("a/b", "new-value", 2, "AVRO")


def test_a_registry_that_does_not_answer_is_no_bad_record(settings: RegistrySettings) -> None:
    gone = replace(settings, urls=("http://127.0.0.1:1/apis/registry/v3",))
    with pytest.raises(ConnectorError, match="SCHEMA_REGISTRY_UNAVAILABLE"):
        read(gone, ROWS, [b"\0\0\0\0\2\2"])
