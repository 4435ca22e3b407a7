"""What becomes of the values of the columns that a write takes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.errors import ConfigError
from broker.records.columns import HEADERS_TYPE
from spark_connector.errors import ConnectorError
from spark_connector.options.write_options import WriteOptions, parse_write_options
from spark_connector.write.column_choice import check_columns
from spark_connector.write.input_columns import to_rows


def options(**given: str) -> WriteOptions:
    return parse_write_options({"kafka.bootstrap.servers": "host:1", "topic": "t", **given}, stream=False)


def without_topic() -> WriteOptions:
    return parse_write_options({"kafka.bootstrap.servers": "host:1"}, stream=False)


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
