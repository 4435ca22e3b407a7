"""Which columns a write takes, and what becomes of their values."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions, parse_write_options
from spark_connector.write.input_columns import check_columns, chosen_columns, to_rows

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


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()])
def test_text_and_bytes_of_any_width_are_bytes(kind: pa.DataType) -> None:
    rows = to_rows(pa.record_batch({"value": pa.array(["ä", None], pa.string()).cast(kind)}), options())
    assert rows["value"].type == pa.binary()
    assert rows["value"].to_pylist() == ["ä".encode(), None]


def test_headers_as_spark_sends_them_are_taken_or_left() -> None:
    struct = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
    column = pa.array([[{"key": "k", "value": b"v"}], None, []], pa.list_(pa.field("item", struct, nullable=False)))
    batch = pa.record_batch({"value": pa.array(["a", "b", "c"]), "headers": column})
    assert to_rows(batch, options())["headers"].type == HEADERS_TYPE
    assert to_rows(batch, options())["headers"].to_pylist() == [[{"key": "k", "value": b"v"}], None, []]
    assert "headers" not in to_rows(batch, options(includeHeaders="false")).schema.names


@given(st.lists(st.none() | st.integers(0, 10**15), min_size=1, max_size=20))
def test_timestamps_are_rounded_down_to_milliseconds_and_null_is_now(times: list[int | None]) -> None:
    column = pa.array(times, pa.timestamp("us", "Europe/Berlin"))  # the session's time zone
    batch = pa.record_batch({"value": pa.array(["v"] * len(times)), "timestamp": column})
    found = to_rows(batch, options())["timestamp"]
    assert found.null_count == 0
    for given_us, ms in zip(times, found.to_pylist(), strict=True):
        assert ms == given_us // 1000 if given_us is not None else ms > 1_600_000_000_000


@pytest.mark.parametrize("micros", [-1, -1000, -(10**15)])
def test_a_time_before_1970_is_refused_as_kafkas_producer_does(micros: int) -> None:
    column = pa.array([5_000, micros, None], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"value": pa.array(["a", "b", "c"]), "timestamp": column})
    with pytest.raises(ConfigError, match=f"Invalid timestamp: {micros // 1000}.* non-negative or null"):
        to_rows(batch, options())


def test_a_column_that_is_there_twice_is_named_unless_it_is_not_written() -> None:
    with pytest.raises(ConnectorError, match="There are 2 columns 'value': select one of them"):
        check_columns([("value", "string"), ("key", "string"), ("value", "binary")], options())
    others = [("value", "string"), ("VALUE", "int"), ("x", "int"), ("x", "string")]
    check_columns(others, options())
    names = [name for name, _ in others]
    batch = pa.RecordBatch.from_arrays([pa.array([name]) for name in "abcd"], names=names)
    assert to_rows(batch, options())["value"].to_pylist() == [b"a"]


def test_a_null_topic_is_an_error_only_where_the_column_is_used() -> None:
    batch = pa.record_batch({"value": pa.array(["a", "b"]), "topic": pa.array(["t", None])})
    with pytest.raises(ConnectorError, match="KAFKA_NULL_TOPIC_IN_DATA"):
        to_rows(batch, without_topic())
    assert "topic" not in to_rows(batch, options()).schema.names


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
