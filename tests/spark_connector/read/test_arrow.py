"""What Spark is handed: its schema to the letter, in batches of moderate size, without a copy."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import Columns, decode_columns
from spark_connector.read.arrow import MAX_BYTES, MAX_ROWS, arrow_schema, to_record_batches
from spark_connector.source import spark_schema
from tests.support.record_batches import Row, build

TP = TopicPartition("t", 3)


def columns(*values: bytes | None, headers: bool = False) -> Columns:
    return decode_columns(build([Row(1_700_000_000_000 + i, None, v) for i, v in enumerate(values)]), headers=headers)


@pytest.mark.parametrize("headers", [False, True])
def test_the_arrow_schema_is_the_one_spark_compares_with(headers: bool) -> None:
    assert to_arrow_schema(spark_schema(headers), timezone="UTC").equals(arrow_schema(headers))
    (batch,) = to_record_batches(columns(b"v", headers=headers), TP)
    assert batch.schema.equals(arrow_schema(headers), check_metadata=True)
    batch.validate(full=True)


def test_the_columns_are_those_of_sparks_own_source_in_order_and_nullable() -> None:
    assert spark_schema(True).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in spark_schema(True))
    assert "headers" not in spark_schema(False).names


def test_a_row_holds_what_the_record_held() -> None:
    chunk = build([Row(1_700_000_000_123, b"k", None, (("h", b"1"), ("h", None))), Row(5, None, b"")])
    rows = next(to_record_batches(decode_columns(chunk, headers=True), TP)).to_pylist()
    first, second = rows
    assert first | {"timestamp": first["timestamp"].timestamp()} == {
        "key": b"k",
        "value": None,
        "topic": "t",
        "partition": 3,
        "offset": 0,
        "timestamp": 1_700_000_000.123,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, b"", None)


def test_batches_are_cut_by_rows() -> None:
    batches = list(to_record_batches(columns(*(b"%d" % n for n in range(2 * MAX_ROWS + 7))), TP))
    assert [batch.num_rows for batch in batches] == [MAX_ROWS, MAX_ROWS, 7]
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(2 * MAX_ROWS + 7))


def test_batches_are_cut_by_bytes_however_uneven_the_rows() -> None:
    small, large = b"x" * 1000, b"y" * (MAX_BYTES + 1)
    values = [small] * 5000 + [large] + [small] * 10 + [large, large]
    batches = list(to_record_batches(columns(*values), TP))
    for batch in batches:
        assert batch.num_rows == 1 or sum(len(value.as_py()) for value in batch["value"]) <= MAX_BYTES
    assert pa.Table.from_batches(batches)["value"].to_pylist() == values


def test_cutting_copies_nothing() -> None:
    whole = columns(*(b"value %d" % n for n in range(3 * MAX_ROWS)))
    data = whole.value.buffers()[2].address
    assert {batch["value"].buffers()[2].address for batch in to_record_batches(whole, TP)} == {data}


def test_columns_of_nulls_and_no_rows_at_all_are_fine() -> None:
    assert [batch.num_rows for batch in to_record_batches(columns(None, None), TP)] == [2]
    assert list(to_record_batches(decode_columns(b""), TP)) == []
