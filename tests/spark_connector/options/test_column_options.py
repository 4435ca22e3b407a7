"""Options of value formats, one by one and against each other."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.formats.record_decoder import decoded_schema, loaded
from spark_connector.formats.value_format import (
    AvroSchema,
    ColumnFormat,
    ParseMode,
    ReadFormats,
    SchemaFile,
    SchemaSubject,
)
from spark_connector.options.read_options import Mode, parse_options, subscribed_topics
from tests.support.schema_registry import schema_registry

URL = "schema.registry.url"
USER = "schema.registry.basic.auth.user.info"
JSON = {"valueFormat": "json", "valueSchema": "a INT"}
AVRO = {"valueFormat": "avro", "valueSchema": '"long"'}


def parse(options: dict[str, str], **subscription: str) -> ReadFormats:
    servers = {"kafka.bootstrap.servers": "h:1", **(subscription or {"subscribe": "t"})}
    return parse_options({**servers, **options}, Mode.ANY).formats


def test_defaults() -> None:
    assert parse({}) == ReadFormats()
    assert parse({"valueFormat": "BINARY"}) == ReadFormats()
    formats = parse(JSON)
    assert formats.value == ColumnFormat("json", pa.struct([("a", pa.int32())]))
    assert (formats.mode, formats.corrupt_columns) == (ParseMode.PERMISSIVE, {"value": "_corrupt_record"})


def test_all_of_them_and_pickled() -> None:
    formats = parse(
        {
            "keyFormat": "csv",
            "keySchema": "a INT, b STRING",
            "sep": "\\t",
            "valueFormat": "avro",
            "mode": "DropMalformed",
            "badRecordsTopic": "bad",
            URL: "HTTP://reg:8081/, https://me:h%75sh@other/base/",
            "schema.registry.ssl.ca.location": "/ca.pem",
        }
    )
    assert formats.key.separator == "\t"
    assert formats.value.schema == SchemaSubject()
    assert (formats.mode, formats.bad_records_topic) == (ParseMode.DROPMALFORMED, "bad")
    assert formats.registry is not None
    assert formats.registry.urls == ("http://reg:8081", "https://other/base")
    assert formats.registry.user_info == "me:hush"
    assert "hush" not in repr(formats)
    assert formats.corrupt_columns == {}
    assert pickle.loads(pickle.dumps(formats)) == formats


def test_a_schema_in_a_registry_names_the_registry() -> None:
    formats = parse({**AVRO, "valueSchema": "http://reg:8081/subjects/orders%2Fx/versions/3"})
    assert formats.value.schema == SchemaSubject("orders/x", "3")
    assert formats.registry is not None
    assert (formats.registry.urls, formats.registry.user_info) == (("http://reg:8081",), None)
    with_login = parse({**AVRO, "valueSchema": "http://reg:8081/subjects/s/versions/3", URL: "http://me:hush@reg:8081"})
    assert with_login.registry is not None
    assert (with_login.registry.urls, with_login.registry.user_info) == (("http://reg:8081",), "me:hush")
    both = parse({**AVRO, "valueSchema": "http://reg/subjects/s/versions/latest", URL: "http://reg"})
    assert both.registry is not None
    assert both.registry.urls == ("http://reg",)


def test_the_corrupt_columns_have_names_of_their_own() -> None:
    formats = parse({**JSON, "keyFormat": "string", "columnNameOfCorruptRecord": "oops"})
    assert formats.corrupt_columns == {"key": "oops_key", "value": "oops"}
    schema = decoded_schema(formats, pa.schema([("value", pa.binary()), ("key", pa.binary())]))
    assert schema.names == ["value", "key", "oops_key", "oops"]
    assert schema.types == [pa.struct([("a", pa.int32())]), pa.string(), pa.binary(), pa.binary()]


def test_a_record_that_contains_itself_needs_a_depth() -> None:
    node = (
        '{"type":"record","name":"Node","fields":[{"name":"id","type":"int"},{"name":"next","type":["null","Node"]}]}'
    )
    for depth in ({}, {"recursiveFieldMaxDepth": "-1"}, {"recursiveFieldMaxDepth": "0"}):
        with pytest.raises(ConfigError, match="recursive in Node: set the option 'recursiveFieldMaxDepth' to 1 to 15"):
            parse({**AVRO, "valueSchema": node, **depth})
    formats = parse({**AVRO, "valueSchema": node, "recursiveFieldMaxDepth": "2"})
    kind = pa.struct([("id", pa.int32()), ("next", pa.struct([("id", pa.int32())]))])
    assert decoded_schema(formats, pa.schema([("value", pa.binary())])).field("value").type == kind


def test_json_with_a_registry_has_a_prefix_and_beside_avro_it_may_have_one() -> None:
    formats = parse({**JSON, URL: "http://h"})
    assert formats.registry is not None
    assert not formats.value.is_plain_too
    both = parse({**JSON, "keyFormat": "avro", URL: "http://h"})
    assert both.value.is_plain_too
    assert not both.key.is_plain_too


def test_bad_records_never_go_where_they_are_read_from() -> None:
    options = {**JSON, "badRecordsTopic": "orders-bad"}
    for subscription in ({"subscribePattern": "orders.*"}, {"assign": '{"orders-bad":[3]}'}):
        with pytest.raises(ConfigError, match="not itself read"):
            parse(options, **subscription)
    assert parse(options, subscribePattern="orders").bad_records_topic == "orders-bad"


def test_schemas_in_files_are_loaded_on_the_driver(tmp_path: Path) -> None:
    ddl, avsc = tmp_path / "s.ddl", tmp_path / "s.avsc"
    ddl.write_text("a INT\n", encoding="utf-8")
    avsc.write_text('{"type":"long"}', encoding="utf-8")
    formats = parse(
        {"valueFormat": "json", "valueSchema": str(ddl), "keyFormat": "avro", "keySchema": f"file://{avsc}"}
    )
    assert formats.value.schema == SchemaFile(str(ddl))
    with_schemas = loaded(formats, ("t",))
    assert with_schemas.value.schema == pa.struct([("a", pa.int32())])
    assert with_schemas.key.schema == AvroSchema('{"type":"long"}')
    ddl.unlink()
    with pytest.raises(ConfigError, match="Cannot read the schema in"):
        loaded(formats, ("t",))
    ddl.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="Cannot read the schema in"):
        loaded(formats, ("t",))


def test_a_json_schema_may_be_in_a_file_or_a_registry(tmp_path: Path) -> None:
    text = json.dumps({"type": "object", "properties": {"a": {"type": ["null", "integer"]}}})
    (tmp_path / "s.json").write_text(text, encoding="utf-8")
    kind = pa.struct([("a", pa.int64())])
    with schema_registry() as registry:
        registry.register("t-value", text, schemaType="JSON")
        registry.register("avro", '"long"')
        for options in (
            {"valueSchema": text},
            {"valueSchema": str(tmp_path / "s.json")},
            {URL: registry.url},
            {"valueSchema": f"{registry.url}/subjects/t-value/versions/1"},
        ):
            assert loaded(parse({"valueFormat": "json", **options}), ("t",)).value.schema == kind
        wrong = parse({"valueFormat": "json", "valueSchema": f"{registry.url}/subjects/avro/versions/latest"})
        with pytest.raises(ConfigError, match="it is of type AVRO, not JSON"):
            loaded(wrong, ("t",))
    with pytest.raises(ConfigError, match="'valueSchema'.*does not describe an object"):
        parse({"valueFormat": "json", "valueSchema": '{"type": "array"}'})


def test_the_subject_of_the_topic_needs_one_topic() -> None:
    formats = parse({"valueFormat": "avro", URL: "http://127.0.0.1:1"})
    for topics in (None, ("a", "b")):
        with pytest.raises(ConfigError, match="'valueSchema' must be set unless the read has exactly one topic"):
            loaded(formats, topics)


def test_topics_of_a_read() -> None:
    servers = {"kafka.bootstrap.servers": "h:1"}
    for subscription, topics in (
        ({"subscribe": "a,b"}, ("a", "b")),
        ({"assign": '{"a":[0,1]}'}, ("a",)),
        ({"subscribePattern": "a"}, None),
    ):
        assert subscribed_topics(parse_options({**servers, **subscription}, Mode.ANY).selection) == topics
