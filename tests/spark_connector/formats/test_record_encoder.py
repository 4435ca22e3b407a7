"""Rows to the columns of records: which columns have which role, and what becomes of rows that cannot be encoded."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from broker.errors import ConfigError
from spark_connector.errors import ConnectorError
from spark_connector.formats import record_encoder
from spark_connector.formats.record_encoder import RecordEncoder, loaded
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.write_format import ColumnWrite, WriteFormats, WriteMode

JSON = ColumnWrite("json", ("id", "name"))
BAD = WriteFormats(value=JSON, mode=WriteMode.DROPMALFORMED, bad_rows_topic="bad")


class OddOnly:
    """Stands for a schema that takes odd ids only."""

    def __init__(self, kind: pa.StructType) -> None:
        assert kind.field(0).name == "id"

    def encode(self, rows: pa.StructArray) -> Encoded:
        ids = rows.field("id")
        bad = {row: f"field id: {one} is even" for row, one in enumerate(ids.to_pylist()) if one % 2 == 0}
        values = pc.if_else(pc.equal(pc.bit_wise_and(ids, 1), 1), ids.cast(pa.string()).cast(pa.binary()), None)
        return Encoded(values, bad)


@pytest.fixture
def odd_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_encoder, "column_encoder", lambda one, kind: OddOnly(kind))


def batch(*ids: int, **columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "name": pa.array([f"n{one}" for one in ids]), **columns})


def test_columns_keep_their_role_unless_they_are_encoded() -> None:
    stamp = pa.array([1], pa.timestamp("us", "UTC"))
    rows = batch(1, topic=pa.array(["t"]), timestamp=stamp, key=pa.array([b"k"]), value=pa.array([1.5]))
    made, bad = RecordEncoder(WriteFormats(value=JSON), None, 0).encode(rows)
    assert bad is None
    assert made.to_pylist() == [
        {"key": b"k", "topic": "t", "timestamp": stamp[0].as_py(), "value": b'{"id":1,"name":"n1"}'}
    ]
    every = ColumnWrite("json", ("value", "topic", "timestamp"))
    made, _ = RecordEncoder(WriteFormats(ColumnWrite("string", ("id",)), every), "other", 0).encode(rows)
    text = b'{"value":1.5,"topic":"t","timestamp":"1970-01-01T00:00:00.000Z"}'
    assert made.to_pylist() == [{"value": text, "key": b"1"}]


def test_a_key_is_encoded_beside_a_value_that_is_written_as_it_is() -> None:
    rows = batch(1, value=pa.array(["v"]))
    key = ColumnWrite("json", ("name", "id"))
    made, _ = RecordEncoder(WriteFormats(key), "t", 0).encode(rows)
    assert made.to_pylist() == [{"value": "v", "key": b'{"name":"n1","id":1}'}]


@pytest.mark.usefixtures("odd_only")
def test_a_bad_row_fails_the_write_and_is_named() -> None:
    encoder = RecordEncoder(WriteFormats(value=JSON), "t", 3)
    made, _ = encoder.encode(batch(1, 3, 5))
    assert made["value"].to_pylist() == [b"1", b"3", b"5"]
    said = (
        r"row 4 \(counted from 0\) of task partition 3 cannot be written: value: field id: 2 is even\. "
        r'The row: \{"id":2,"name":"n2"\}\. .*badRowsTopic'
    )
    with pytest.raises(ConnectorError, match=said) as raised:
        encoder.encode(batch(7, 2, 4))
    assert raised.value.condition == "PYKAFKA_SINK_MALFORMED_ROW"


@pytest.mark.usefixtures("odd_only")
def test_the_row_in_an_error_is_not_longer_than_a_message() -> None:
    with pytest.raises(ConnectorError) as raised:
        RecordEncoder(WriteFormats(value=JSON), "t", 0).encode(batch(2, text=pa.array(["x" * 1000])))
    assert len(str(raised.value)) < 600


@pytest.mark.usefixtures("odd_only")
def test_bad_rows_are_records_of_their_own() -> None:
    encoder = RecordEncoder(BAD, None, 0)
    topics, keys = pa.array(["a", "b", "c"]), pa.array([b"1", None, b"3"])
    left = pa.array([1, 2, 3], pa.duration("us"))  # JSON has no such type
    made, bad = encoder.encode(batch(1, 2, 4, topic=topics, key=keys, left=left))
    assert made.to_pylist() == [{"key": b"1", "topic": "a", "value": b"1"}]
    assert bad is not None
    assert bad["key"].to_pylist() == [None, b"3"]
    assert [json.loads(one) for one in bad["value"].to_pylist()] == [
        {"id": 2, "name": "n2", "topic": "b"},
        {"id": 4, "name": "n4", "topic": "c", "key": "Mw=="},
    ]
    assert [{one["key"]: one["value"] for one in row} for row in bad["headers"].to_pylist()] == [
        {"pykafka.origin.topic": b"b", "pykafka.error": b"value: field id: 2 is even"},
        {"pykafka.origin.topic": b"c", "pykafka.error": b"value: field id: 4 is even"},
    ]
    made, bad = encoder.encode(batch(2))
    assert made.num_rows == 0
    assert bad is not None
    assert bad.schema.names == ["value", "headers"]


@pytest.mark.usefixtures("odd_only")
def test_a_bad_row_is_shown_whatever_its_other_columns_are() -> None:
    """Two of one name, as after a join, or none that JSON can show."""
    names, columns = ["id", "name", "x", "x"], [pa.array([2]), pa.array(["n"]), pa.array([1]), pa.array([5])]
    twice = pa.record_batch(columns, names=names)
    _, bad = RecordEncoder(BAD, "t", 0).encode(twice)
    assert bad is not None
    assert bad["value"].to_pylist() == [b'{"id":2,"name":"n","x":1,"x":5}']
    with pytest.raises(ConnectorError, match='The row: {"id":2,"name":"n","x":1,"x":5}'):
        RecordEncoder(WriteFormats(value=JSON), "t", 0).encode(twice)
    odd = pa.record_batch({"d": pa.array([1, 2], pa.duration("us"))})
    assert record_encoder._as_json(odd).to_pylist() == [b"{}", b"{}"]


def test_columns_that_a_format_cannot_write_are_refused_on_the_driver() -> None:
    columns = pa.schema([("id", pa.int64()), ("name", pa.large_string()), ("for", pa.duration("us"))])
    assert loaded(WriteFormats(value=JSON), "t", columns) == WriteFormats(value=JSON)
    with pytest.raises(ConfigError, match=r"Option 'valueFormat'=json: column 'for' of type duration\[us\]"):
        loaded(WriteFormats(value=ColumnWrite("json", ("for",))), "t", columns)
    with pytest.raises(ConfigError, match="Option 'keyFormat'=binary: column 'id' of type int64 is neither text"):
        loaded(WriteFormats(ColumnWrite("binary", ("id",))), "t", columns)
