"""Which columns a write takes."""

from __future__ import annotations

import pytest

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions, parse_write_options
from spark_connector.write.column_choice import check_columns, chosen_columns

HEADERS = "array<struct<key:string,value:binary>>"


def options(**given: str) -> WriteOptions:
    return parse_write_options({"kafka.bootstrap.servers": "host:1", "topic": "t", **given}, stream=False)


def without_topic() -> WriteOptions:
    return parse_write_options({"kafka.bootstrap.servers": "host:1"}, stream=False)


def test_sparks_columns_and_others_are_taken() -> None:
    every = {"key": "string", "value": "binary", "topic": "varchar(9)", "partition": "int", "headers": HEADERS}
    check_columns(
        [*every.items(), ("timestamp", "timestamp"), ("offset", "bigint"), ("x", "map<int,int>")], without_topic()
    )
    check_columns([("value", "string")], options())
    check_columns([("value", "string"), ("headers", "int")], options(includeHeaders="false"))


@pytest.mark.parametrize(
    ("types", "said"),
    [
        ({}, "Required attribute 'value' not found"),
        ({"VALUE": "string"}, "Required attribute 'value' not found; there are: VALUE"),
        ({"value": "int"}, "value attribute unsupported type int. value must be a string or binary"),
        ({"value": "string", "key": "bigint"}, "key attribute unsupported type bigint"),
        ({"value": "string", "topic": "int"}, "topic attribute unsupported type int"),
        ({"value": "string", "partition": "bigint"}, "partition attribute unsupported type bigint"),
        ({"value": "string", "headers": "array<string>"}, "headers attribute unsupported type"),
        ({"value": "string", "timestamp": "bigint"}, "timestamp attribute unsupported type bigint"),
    ],
)
def test_wrong_columns_bear_sparks_condition(types: dict[str, str], said: str) -> None:
    with pytest.raises(ConnectorError, match=said) as raised:
        check_columns(list(types.items()), options())
    assert raised.value.condition == "_LEGACY_ERROR_TEMP_3080"


def test_a_topic_is_needed_from_somewhere_and_headers_where_they_are_asked_for() -> None:
    with pytest.raises(ConnectorError, match="topic option required when no 'topic' attribute is present"):
        check_columns([("value", "string")], without_topic())
    with pytest.raises(ConnectorError, match="includeHeaders=true needs a column headers"):
        check_columns([("value", "string")], options(includeHeaders="true"))


def chosen(*names: str, **given: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    formats = chosen_columns(names, options(**given)).formats
    return formats.key.columns, formats.value.columns


def test_all_columns_are_those_without_a_role() -> None:
    every = ("key", "id", "value", "topic", "partition", "headers", "timestamp", "offset")
    assert chosen(*every, valueFormat="json") == ((), ("id", "value", "offset"))
    assert chosen(*every, valueFormat="json", keyColumns="id") == (("id",), ("key", "id", "value", "offset"))
    assert chosen(*every, valueFormat="json", valueColumns="timestamp,id") == ((), ("timestamp", "id"))
    assert chosen("key", "id", valueFormat="string") == ((), ("id",))
    assert chosen(*every) == ((), ())


@pytest.mark.parametrize(
    ("names", "given", "said"),
    [
        (["id", "name"], {"valueColumns": "nmae"}, "no column 'nmae'. Did you mean 'name'\\? Columns are: id, name"),
        (["ID"], {"valueColumns": "id"}, "no column 'id'. Did you mean 'ID'\\?"),
        (["id", "id"], {"valueColumns": "id"}, "there are 2 columns 'id'"),
        (["id", "id"], {}, "there are 2 columns 'id'"),
        (["id"], {"keyColumns": "nr"}, "'keyColumns': no column 'nr'"),
        (["topic", "key"], {}, "there are only columns that have a role: topic, key"),
        (["a", "b"], {"valueFormat": "string"}, "takes one column, but there are 2: name one in 'valueColumns'"),
    ],
)
def test_columns_that_cannot_be_encoded_are_named(names: list[str], given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        chosen(*names, **{"valueFormat": "json", **given})


def test_only_columns_with_a_role_have_types_to_obey() -> None:
    typed = options(valueFormat="json", valueColumns="timestamp,id")
    check_columns([("timestamp", "string"), ("id", "int"), ("value", "int"), ("key", "binary")], typed)
    with pytest.raises(ConnectorError, match="key attribute unsupported type int"):
        check_columns([("timestamp", "string"), ("id", "int"), ("key", "int")], typed)
    check_columns([("id", "int"), ("key", "int")], options(valueFormat="json", valueColumns="id", keyColumns="id"))
    with pytest.raises(ConnectorError, match="timestamp attribute unsupported type string"):
        check_columns([("id", "int"), ("timestamp", "string")], options(valueFormat="json", valueColumns="id"))
    with pytest.raises(ConnectorError, match="To write typed columns, set option 'valueFormat'"):
        check_columns([("id", "int")], options(keyColumns="id"))
