"""What Spark is handed: its schema to the letter, in batches of moderate size, without a copy."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import Columns, decode_columns
from spark_connector.options.read_options import COLUMNS
from spark_connector.read.arrow_batches import (
    DECODED_BYTES,
    DECODED_ROWS,
    MAX_BYTES,
    MAX_ROWS,
    BatchMaker,
    arrow_schema,
)
from spark_connector.read.schema import spark_schema
from tests.support.record_batches import Row, build

TP = TopicPartition("t", 3)


def columns(*values: bytes | None, headers: bool = False) -> Columns:
    return decode_columns(build([Row(1_700_000_000_000 + i, None, v) for i, v in enumerate(values)]), headers=headers)


def batches_of(decoded: Columns, tp: TopicPartition) -> Iterator[pa.RecordBatch]:
    """All columns there are."""
    return BatchMaker(COLUMNS if decoded.headers is not None else COLUMNS[:-1]).batches(decoded, tp)


@pytest.mark.parametrize("names", [COLUMNS[:-1], COLUMNS, ("headers", "value"), ("partition",), ("timestamp",)])
def test_the_arrow_schema_is_the_one_spark_compares_with(names: tuple[str, ...]) -> None:
    # Up to Spark 4.2 UTC goes without saying.
    in_utc: Any = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    assert to_arrow_schema(spark_schema(names), **in_utc).equals(arrow_schema(names))
    (batch,) = BatchMaker(names).batches(columns(b"v", headers="headers" in names), TP)
    assert batch.schema.equals(arrow_schema(names), check_metadata=True)
    batch.validate(full=True)


def test_the_columns_are_those_of_sparks_own_source_in_order_and_nullable() -> None:
    assert spark_schema(COLUMNS).simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert all(field.nullable for field in spark_schema(COLUMNS))
    assert "headers" not in spark_schema().names


def test_a_row_holds_what_the_record_held() -> None:
    chunk = build([Row(1_700_000_000_123, b"k", None, (("h", b"1"), ("h", None))), Row(5, None, b"")])
    rows = next(batches_of(decode_columns(chunk, headers=True), TP)).to_pylist()
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
    batches = list(batches_of(columns(*(b"%d" % n for n in range(2 * MAX_ROWS + 7))), TP))
    assert [batch.num_rows for batch in batches] == [MAX_ROWS, MAX_ROWS, 7]
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == list(range(2 * MAX_ROWS + 7))


def test_batches_are_cut_by_bytes_however_uneven_the_rows() -> None:
    small, large = b"x" * 1000, b"y" * (MAX_BYTES + 1)
    values = [small] * 5000 + [large] + [small] * 10 + [large, large]
    batches = list(batches_of(columns(*values), TP))
    for batch in batches:
        assert batch.num_rows == 1 or sum(len(value.as_py()) for value in batch["value"]) <= MAX_BYTES
    assert pa.Table.from_batches(batches)["value"].to_pylist() == values


def test_cutting_copies_nothing() -> None:
    whole = columns(*(b"value %d" % n for n in range(3 * MAX_ROWS)))
    data = whole.value.buffers()[2].address
    assert {batch["value"].buffers()[2].address for batch in batches_of(whole, TP)} == {data}


def test_columns_of_nulls_and_no_rows_at_all_are_fine() -> None:
    assert [batch.num_rows for batch in batches_of(columns(None, None), TP)] == [2]
    assert list(batches_of(decode_columns(b""), TP)) == []


def test_batches_are_cut_by_the_bytes_of_headers_too() -> None:
    rows = [Row(0, None, None, (("h", b"x" * (MAX_BYTES // 4)),) if n % 2 else ()) for n in range(16)]
    made = list(BatchMaker(("headers",)).batches(decode_columns(build(rows), headers=True), TP))
    assert [batch.num_rows for batch in made] == [7, 6, 3]
    assert sum(row["headers"] is not None for batch in made for row in batch.to_pylist()) == 8


def test_only_what_is_given_or_needed_is_asked_of_the_decoder() -> None:
    assert BatchMaker(("topic", "partition")).fields == set()
    assert BatchMaker(("timestampType", "value")).fields == {"timestamp_type", "value"}
    assert BatchMaker(("offset",), decoder=LENGTHS).fields == {"value"}


class Lengths:
    """A decoder as a format is one: bytes to a typed column, bad rows left out."""

    needs: tuple[str, ...] = ("value", "topic")

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        good = batch.filter(pc.greater(pc.binary_length(batch["value"]), 0))
        return pa.RecordBatch.from_arrays([pc.binary_length(good["value"])], ["length"])


LENGTHS: Any = Lengths()


def test_a_decoder_makes_of_the_columns_what_spark_gets() -> None:
    (batch,) = BatchMaker(("value",), decoder=LENGTHS).batches(columns(b"ab", b"", None, b"c"), TP)
    assert batch.to_pydict() == {"length": [2, 1]}
    assert list(BatchMaker(("value",), decoder=LENGTHS).batches(columns(b"", b""), TP)) == [], "no empty batch"


class Wide:
    """A decoder whose rows take `width` bytes."""

    needs: tuple[str, ...] = ("value", "topic")

    def __init__(self, width: int) -> None:
        self._width = width

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert batch["topic"].to_pylist() == ["t"] * len(batch)
        zeros = pa.py_buffer(bytes(len(batch) * self._width))
        made = pa.Array.from_buffers(pa.binary(self._width), len(batch), [None, zeros])
        return pa.RecordBatch.from_arrays([made], ["wide"])


def test_decoded_batches_have_as_many_rows_as_what_they_decode_to_allows() -> None:
    rows, fitting = 2 * DECODED_ROWS, DECODED_BYTES // 200
    whole = columns(*[b""] * rows)

    def sizes(width: int) -> list[int]:
        decoder: Any = Wide(width)
        return [batch.num_rows for batch in BatchMaker(("wide",), decoder=decoder).batches(whole, TP)]

    assert sizes(8) == [MAX_ROWS, DECODED_ROWS, rows - DECODED_ROWS - MAX_ROWS]
    assert MAX_ROWS < fitting < DECODED_ROWS
    assert sizes(200)[:3] == [MAX_ROWS, fitting, fitting]
    assert set(sizes(1000)) == {MAX_ROWS}, "rows that take much have no larger batches than others"
