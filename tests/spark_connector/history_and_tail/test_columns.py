"""Columns that loads make of decoded values: the records of the topics get the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.history_and_tail.conform import common_type, conform_batch, fits
from tests.support.history_loads import HistoryLoads
from tests.support.topics import Topic

JSON = {"valueFormat": "json", "valueSchema": "id BIGINT, name STRING, place STRUCT<x: INT, tags: ARRAY<STRING>>"}


@pytest.fixture
def values(loads: HistoryLoads) -> Topic:
    return Topic(loads.bootstrap, loads.topic, 1)


def send(topic: Topic, *numbers: int) -> None:
    text = '{"id": %d, "name": "n%d", "place": {"x": %d, "tags": ["a", "b"]}}'
    topic.produce([(text % (number, number, number)).encode() for number in numbers])


def row(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "place": {"x": number, "tags": ["a", "b"]}}


def rows(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: int(row["id"]))


def test_values_that_are_decoded_as_a_whole(loads: HistoryLoads, values: Topic) -> None:
    send(values, 1, 2)
    loads.load(options=JSON)
    send(values, 3)
    found = [one["value"] for one in loads.read().sort_by("offset").to_pylist()]
    assert found == [row(1), row(2), row(3)]


def test_columns_of_a_value_and_none_of_its_position(loads: HistoryLoads, values: Topic) -> None:
    send(values, 1, 2)
    loads.load(options=JSON, columns="value.*,offset as at")
    send(values, 3)
    found = loads.read(historyColumn="loaded")
    assert found.column_names == ["id", "name", "place", "at", "loaded"]
    assert rows(found) == [{**row(n), "at": n - 1, "loaded": n < 3} for n in (1, 2, 3)]
    some = loads.read(columns="place,id")
    assert some.column_names == ["place", "id"]
    assert [one["id"] for one in rows(some)] == [1, 2, 3]
    with pytest.raises(ConfigError, match=r"names key; the loads .* make the columns id, name, place, at"):
        loads.fitted(columns="key")


def test_the_layout_of_a_table_does_not_matter(loads: HistoryLoads, values: Topic) -> None:
    send(values, 1, 2)
    loads.load(options=JSON, columns="value.id,value.name,topic,offset", partition_by="topic,bucket(4, id)")
    send(values, 3)
    found = loads.read()
    assert found.column_names == ["id", "name", "topic", "offset"]
    assert [one["topic"] for one in found.to_pylist()] == [values.name] * 3


def test_bad_records_are_on_neither_side_where_loads_keep_them_apart(loads: HistoryLoads, values: Topic) -> None:
    send(values, 1)
    values.produce([b"no json"])
    letters = f"delta:{Path(loads.to).parent}/letters"
    loads.load(options=JSON, columns="value.id,offset", dead_letters=letters)
    values.produce([b"neither"])
    send(values, 3)
    assert rows(loads.read()) == [{"id": 1, "offset": 0}, {"id": 3, "offset": 3}]


def test_types_that_say_the_same() -> None:
    narrow, wide = pa.struct([("a", pa.int32())]), pa.struct([("a", pa.int64()), ("b", pa.large_string())])
    assert fits(narrow, wide)
    assert common_type(wide, narrow) == pa.struct([("a", pa.int64()), ("b", pa.string())])
    assert common_type(pa.string(), pa.int64()) is None
    assert common_type(pa.timestamp("us"), pa.timestamp("us", "UTC")) is None
    assert common_type(pa.large_binary(), pa.binary()) == pa.binary()
    batch = pa.RecordBatch.from_pylist([{"s": {"a": 1}}], pa.schema([("s", narrow)]))
    wanted = pa.schema([("s", wide), ("t", pa.int8())])
    assert conform_batch(batch, wanted).to_pylist() == [{"s": {"a": 1, "b": None}, "t": None}]
