"""The options of a write: names, defaults, and what is refused how."""

from __future__ import annotations

import pickle

import pytest

from broker.errors import ConfigError
from spark_connector.formats.value_format import RegistrySettings, SchemaFile
from spark_connector.formats.write_format import ALL_COLUMNS, ColumnWrite, JsonText, SubjectStrategy, WriteMode
from spark_connector.options.registry_option_table import AVRO_ENCODING, REGISTRY_ACCESS, REGISTRY_KIND
from spark_connector.options.write_option_table import WRITE_OPTIONS
from spark_connector.options.write_options import WriteOptions, parse_write_options

SERVERS = {"kafka.bootstrap.servers": "host:9092"}


def parse(stream: bool = False, **options: str) -> WriteOptions:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return parse_write_options({**SERVERS, **named}, stream=stream)


def test_defaults_differ_between_batch_and_stream() -> None:
    assert not parse().exactly_once
    assert parse(stream=True).exactly_once
    assert parse(delivery="Exactly-Once").exactly_once
    assert parse().include_headers is None
    assert parse().transactional_id_prefix == "pykafka-sink"
    assert parse().transaction_timeout_ms is None


def test_names_are_taken_in_any_case_and_sparks_own_are_let_through() -> None:
    given = {**SERVERS, "checkpointlocation": "/tmp/x", "TOPIC": "t", "KAFKA.linger.ms": "1"}
    options = parse_write_options(given, stream=True)
    assert options.topic == "t"
    assert options.client.linger_ms == 1


def test_producer_properties_reach_the_client_over_our_defaults() -> None:
    assert 4 * parse().client.batch_size < parse().client.max_request_size, "four to a request"
    assert parse(kafka_batch_size="1000").client.batch_size == 1000
    assert parse(kafka_transaction_timeout_ms="5000").transaction_timeout_ms == 5000


def test_a_write_with_a_name_is_exactly_once_and_a_stream_takes_none() -> None:
    options = parse(txnAppId="copy", txnVersion="7")
    assert (options.exactly_once, options.txn_app_id, options.txn_version) == (True, "copy", 7)
    assert parse(txnAppId="copy").txn_version is None
    with pytest.raises(ConfigError, match="are for batch writes"):
        parse(stream=True, txnAppId="copy")


def test_options_travel_and_show_no_password() -> None:
    options, same = (
        parse(kafka_sasl_password="geheim", kafka_sasl_mechanism="PLAIN", kafka_sasl_username="me") for _ in range(2)
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(same)
    assert "geheim" not in repr(options)


REGISTRY = {"schema.registry.url": "https://r", "schema.registry.ssl.ca.location": "ca.pem"}
TYPED = {
    "valueFormat": "protobuf",
    "valueColumns": "a,b",
    "valueSchema": "x.desc",
    "valueMessage": "m.V",
    "valueSchemaId": "7",
    "schemaIdLocation": "header",
    "valueSubjectStrategy": "record",
    "autoRegister": "true",
    "badRowsTopic": "bad",
    "keyFormat": "protobuf",
    "keyColumns": "k",
    "keySchema": "y.desc",
    "keyMessage": "m.K",
    "keySchemaId": "8",
    "keySubjectStrategy": "topic-record",
    "mode": "DropMalformed",
}
JSON = {"ignoreNullFields": "false", "timestampFormat": "yyyy", "timestampNTZFormat": "MM", "dateFormat": "dd"}


def without(options: dict[str, str], names: set[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in names}


def test_every_declared_option_is_read() -> None:
    values = {"delivery": "exactly-once", "includeHeaders": "true", "transactionalIdPrefix": "x", "topic": "t"}
    values |= {"txnAppId": "a", "txnVersion": "1", "delegationToken": "auto"}
    logins = {"schema.registry.basic.auth.user.info", "schema.registry.bearer.auth.token"}
    elsewhere = {option.name for option in (*REGISTRY_ACCESS, REGISTRY_KIND, *AVRO_ENCODING)}
    declared = {option.name for option in WRITE_OPTIONS}
    assert declared == {*values, *SERVERS, *TYPED, *JSON, *REGISTRY, *elsewhere}
    changed = parse_write_options({**SERVERS, **values}, stream=False)
    assert changed.delegation_token == "auto"
    assert (changed.topic, changed.include_headers, changed.transactional_id_prefix) == ("t", True, "x")
    by_subject, by_id = {"valueSubjectStrategy", "keySubjectStrategy", "autoRegister"}, {"valueSchemaId", "keySchemaId"}
    typed = parse_write_options({**SERVERS, **REGISTRY, **without(TYPED, by_id)}, stream=False).formats
    assert (typed.mode, typed.bad_rows_topic) == (WriteMode.DROPMALFORMED, "bad")
    assert typed.registry == RegistrySettings(("https://r",), ca_location="ca.pem")
    record, both = SubjectStrategy.RECORD, SubjectStrategy.TOPIC_RECORD
    assert typed.value == ColumnWrite(
        "protobuf", ("a", "b"), SchemaFile("x.desc"), "m.V", None, record, True, id_in_header=True
    )
    assert typed.key == ColumnWrite(
        "protobuf", ("k",), SchemaFile("y.desc"), "m.K", None, both, True, id_in_header=True
    )
    typed = parse_write_options({**SERVERS, **REGISTRY, **without(TYPED, by_subject)}, stream=False).formats
    assert (typed.value.schema_id, typed.key.schema_id) == ("7", "8")
    json = parse_write_options({**SERVERS, **JSON, "valueFormat": "json"}, stream=False).formats.value
    assert json == ColumnWrite("json", ALL_COLUMNS, json=JsonText(False, "yyyy", "MM", "dd"))
    for login, field in zip(sorted(logins), ("user_info", "bearer_token"), strict=True):
        given = {**SERVERS, **REGISTRY, **without(TYPED, by_id), login: "geheim"}
        registry = parse_write_options(given, stream=False).formats.registry
        assert getattr(registry, field) == "geheim"


def test_a_key_of_one_column_is_text_and_of_several_json() -> None:
    assert parse(keyColumns="id").formats.key == ColumnWrite("string", ("id",))
    assert parse(keyColumns="id, `a, ``b`").formats.key == ColumnWrite("json", ("id", "a, `b"))
    assert parse(keyColumns="id", keyFormat="binary").formats.key == ColumnWrite("binary", ("id",))
    assert parse().formats.columns == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"valueFormat": "json", "timestampFormat": ""}, "'timestampFormat' is empty"),
        ({"valueFormat": "json", "dateFormat": ""}, "'dateFormat' is empty"),
        (
            {"valueFormat": "avro", **REGISTRY, "valueSchemaId": "7", "autoRegister": "true"},
            "'autoRegister' has no effect beside the id of a schema",
        ),
        (
            {"valueFormat": "avro", "valueSchema": "https://r/subjects/s/versions/1", "autoRegister": "true"},
            "'autoRegister' has no effect beside the id of a schema or its address",
        ),
        (
            {"valueFormat": "avro", **REGISTRY, "valueSchemaId": "7", "valueSubjectStrategy": "record"},
            "'valueSubjectStrategy' has no effect: it chooses a subject, but 'valueSchemaId' names the schema",
        ),
        (
            {"valueFormat": "json", "valueSchema": "https://r/subjects/s/versions/1", "valueSubjectStrategy": "topic"},
            "'valueSubjectStrategy' has no effect: it chooses a subject, but 'valueSchema' names the schema",
        ),
        ({"valueFormat": "csv"}, "'valueFormat' must be binary or string or json or avro or protobuf, not 'csv'"),
        ({"valueColumns": "a"}, "'valueColumns' has no effect: it needs 'valueFormat'"),
        ({"valueFormat": "json", "valueColumns": "a,a"}, "names a column twice"),
        ({"valueFormat": "json", "valueColumns": "*,a"}, "must be '\\*' alone"),
        ({"valueFormat": "json", "valueColumns": "a,"}, "must be names separated by commas"),
        ({"valueFormat": "json", "valueColumns": ""}, "must be names separated by commas"),
        ({"valueFormat": "string", "valueColumns": "a,b"}, "takes one column, but 'valueColumns' names 2: a, b"),
        ({"valueFormat": "binary", "valueColumns": "*"}, "takes one column: name it"),
        ({"keyColumns": "*"}, "must name the columns of the key"),
        ({"keyFormat": "json"}, "'keyFormat'=json needs option 'keyColumns'"),
        ({"valueFormat": "avro"}, "needs option 'valueSchema', or the registry"),
        ({"valueFormat": "string", "valueSchema": "a INT"}, "'valueSchema' has no effect: it needs"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueMessage": "m"}, "needs 'valueFormat' to be protobuf"),
        ({"valueFormat": "avro", "valueSchema": "{"}, "Option 'valueSchema': "),
        ({"valueFormat": "avro", "valueSchema": "http://me:x@r/subjects/s/versions/1"}, "a user and a password"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueSchemaId": "1"}, "needs 'schema.registry.url'"),
        ({"valueFormat": "string", "ignoreNullFields": "false"}, "needs 'valueFormat' or 'keyFormat' to be json"),
        ({"schema.registry.url": "http://r"}, "needs 'valueFormat' or 'keyFormat' to be json, avro or protobuf"),
        ({"mode": "FAILFAST"}, "'mode' has no effect: it needs 'valueFormat' or 'keyFormat'"),
        ({"valueFormat": "json", "mode": "PERMISSIVE"}, "must be FAILFAST or DROPMALFORMED, not 'PERMISSIVE'"),
        ({"valueFormat": "json", "mode": "DROPMALFORMED"}, "needs 'badRowsTopic': a write loses no row"),
        ({"valueFormat": "json", "mode": "FAILFAST", "badRowsTopic": "b"}, "no effect in mode FAILFAST"),
        ({"valueFormat": "json", "topic": "t", "badRowsTopic": "t"}, "a topic other than the write's"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_write_options({**SERVERS, **given}, stream=False)
