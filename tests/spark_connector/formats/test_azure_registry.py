"""Azure Schema Registry: Avro with the id of its schema in the content type of the record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import RequestsTransport
from azure.schemaregistry import MessageContent, SchemaRegistryClient
from azure.schemaregistry.encoder.avroencoder import AvroEncoder

from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.formats.record_decoder import column_decoder
from spark_connector.formats.record_encoder import RecordEncoder, loaded
from spark_connector.formats.registries import registry_of
from spark_connector.formats.value_decoder import Decoded, FramedDecoder
from spark_connector.formats.value_format import AvroSchema, ColumnFormat, JsonSchema, RegistrySettings
from spark_connector.formats.write_format import ColumnWrite, SubjectStrategy, WriteFormats
from tests.support.azure_schemas import AzureSchemas, azure_schemas

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
ROWS = ColumnFormat("avro", AvroSchema(AVRO))


@pytest.fixture(scope="module")
def server() -> Iterator[AzureSchemas]:
    with azure_schemas() as running:
        yield running


@pytest.fixture
def settings(server: AzureSchemas) -> RegistrySettings:
    server.versions.clear()
    return RegistrySettings((server.url,), bearer_token="t0ken", type="azure", group="shop")


def read(settings: RegistrySettings, values: list[bytes | None], *headers: Any) -> Decoded:
    decoder = column_decoder(ROWS, registry_of(settings))
    assert isinstance(decoder, FramedDecoder)
    made = [row and [{"key": name, "value": value} for name, value in row] for row in headers]
    return decoder.decode(pa.array(values, pa.binary()), pa.array(made, HEADERS_TYPE))


def content_type(text: str) -> list[tuple[str, bytes]]:
    return [("a", b""), ("content-type", text.encode())]


def test_values_are_read_by_their_content_type(server: AzureSchemas, settings: RegistrySettings) -> None:
    old, new = server.add("R", AVRO), server.add("other", '{"type":"record","name":"X","fields":[]}')
    headers = [
        content_type(f"avro/binary+{old}"),
        None,
        content_type("application/json"),
        [("content-type", b"\xff")],
        content_type("avro/binary+"),
        content_type(f"avro/binary+{new}"),
        content_type("avro/binary+../../x?y"),
    ]
    found = read(settings, [b"\2"] * 7, *headers)
    assert found.column.to_pylist() == [{"id": 1}] + [None] * 6
    assert all("no header content-type that begins with avro/binary+" in found.bad[row] for row in (1, 2, 3))
    assert found.bad[4] == "its header content-type has no id of a schema: avro/binary+"
    assert "was written without field id" in found.bad[5]
    assert found.bad[6].startswith("schema id ../../x?y: HTTP 404")
    assert set(server.tokens) == {"Bearer t0ken"}


def test_a_schema_is_found_or_registered_and_named_in_the_header(
    server: AzureSchemas, settings: RegistrySettings
) -> None:
    def written(one: ColumnWrite) -> Any:
        batch = pa.record_batch({"id": pa.array([1])})
        formats = loaded(WriteFormats(value=one, registry=settings), "t", batch.schema)
        return RecordEncoder(formats, "t", 0).encode(batch).rows.to_pylist()[0]

    one = ColumnWrite("avro", ("id",), AvroSchema(AVRO), strategy=SubjectStrategy.RECORD)
    with pytest.raises(ConfigError, match="not registered under subject 'R'"):
        written(one)
    row = written(replace(one, auto_register=True))
    [(key, _)] = server.versions["shop", "R"]
    assert row == {"value": b"\2", "headers": [{"key": "content-type", "value": f"avro/binary+{key}".encode()}]}
    assert written(one) == row
    assert written(replace(one, schema=None, schema_id=key)) == row
    server.versions["shop", "t-value"] = [("0", '"int"'), (key, AVRO)]
    assert written(ColumnWrite("avro", ("id",))) == row, "the latest version"
    assert registry_of(settings).avro_version("t-value", "1") == ("0", AvroSchema('"int"'))


def test_a_list_of_versions_that_goes_on_elsewhere_tells_no_latest_one(
    server: AzureSchemas, settings: RegistrySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add("t-value", AVRO)
    monkeypatch.setattr(server, "is_paged", True)
    formats = WriteFormats(value=ColumnWrite("avro", ("id",)), registry=settings)
    with pytest.raises(ConfigError, match="too many versions for one answer"):
        loaded(formats, "t", pa.schema([("id", pa.int64())]))


def test_only_values_of_avro(settings: RegistrySettings) -> None:
    for column, format in (("key", "avro"), ("value", "json")):
        with pytest.raises(ConfigError, match="values of format avro only"):
            registry_of(settings).framing(column, format)
    one = ColumnWrite("json", ("id",), JsonSchema('{"type":"object"}'), auto_register=True)
    with pytest.raises(ConfigError, match="values of format avro only"):
        loaded(WriteFormats(value=one, registry=settings), "t", pa.schema([("id", pa.int64())]))


class AnyCredential:
    """Of a client that may be told anything about who it is."""

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return AccessToken("t0ken", 2**40)


@pytest.fixture
def encoder(server: AzureSchemas) -> Iterator[AvroEncoder]:
    """Azure's own client and encoder."""
    host = server.url.partition("://")[2]
    with (
        RequestsTransport(connection_timeout=30) as transport,
        SchemaRegistryClient(host, AnyCredential(), transport=OverHttp(transport), enforce_https=False) as client,
    ):
        yield AvroEncoder(client=client, group_name="shop", auto_register=True)


class OverHttp:
    """Azure's client speaks https, which the server of the test does not."""

    def __init__(self, transport: RequestsTransport) -> None:
        self._transport = transport

    def __enter__(self) -> OverHttp:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def send(self, request: Any, **options: Any) -> Any:
        request.url = request.url.replace("https://", "http://")
        return self._transport.send(request, **options)


def test_azures_encoder_reads_what_is_written_and_writes_what_is_read(
    settings: RegistrySettings, encoder: AvroEncoder
) -> None:
    theirs = encoder.encode({"id": 7}, schema=AVRO)
    found = read(settings, [theirs["content"]], content_type(theirs["content_type"]))
    assert found.column.to_pylist() == [{"id": 7}]

    batch = pa.record_batch({"id": pa.array([8])})
    one = ColumnWrite("avro", ("id",), AvroSchema(AVRO), strategy=SubjectStrategy.RECORD, auto_register=True)
    formats = loaded(WriteFormats(value=one, registry=settings), "t", batch.schema)
    [ours] = RecordEncoder(formats, "t", 0).encode(batch).rows.to_pylist()
    [header] = ours["headers"]
    message = MessageContent(content=ours["value"], content_type=header["value"].decode())
    assert encoder.decode(message) == {"id": 8}
