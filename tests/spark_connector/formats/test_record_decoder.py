"""Reads with formats from a real broker, without Spark: every format in every mode, and the topic of bad records."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa
import pytest

from broker.errors import BrokerError, ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.fetch import read_range
from spark_connector.read.planning import OffsetRange
from tests.support.kafka import Kafka
from tests.support.topics import Topic

# Format: its options, a good value, what that becomes, a bad value.
FORMATS: dict[str, tuple[dict[str, str], bytes, Any, bytes]] = {
    "string": ({}, "é".encode(), "é", b"\xff"),
    "json": ({"Schema": "a INT"}, b'{"a":1}', {"a": 1}, b"{"),
    "csv": ({"Schema": "a INT, b STRING"}, b"1,x", {"a": 1, "b": "x"}, b"1"),
    "avro": ({"Schema": '"long"'}, b"\x02", 1, b""),
}
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")


def read(topic: Topic, first: int = 0, partition: int = 0, /, **options: str) -> list[dict[str, Any]]:
    parsed = parse_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **options}, Mode.BATCH)
    planned = OffsetRange(TopicPartition(topic.name, partition), first, 4)
    batches = list(read_range(parsed, planned))
    return pa.Table.from_batches(batches).to_pylist() if batches else []


def of(column: str, name: str) -> dict[str, str]:
    return {f"{column}Format": name, **{column + option: value for option, value in FORMATS[name][0].items()}}


@pytest.fixture
def made(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic, 2)


@pytest.mark.parametrize("name", FORMATS)
def test_values_in_every_mode(made: Topic, name: str, caplog: pytest.LogCaptureFixture) -> None:
    _, good, expected, bad = FORMATS[name]
    made.produce([good, bad, None, good])
    options = {**of("value", name), "columns": "value,offset"}
    rows = read(made, **options)
    assert rows == [
        {"value": expected, "offset": 0, "_corrupt_record": None},
        {"value": None, "offset": 1, "_corrupt_record": bad},
        {"value": None, "offset": 2, "_corrupt_record": None},
        {"value": expected, "offset": 3, "_corrupt_record": None},
    ]
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        dropped = read(made, **options, mode="DROPMALFORMED")
    assert dropped == [{"value": row["value"], "offset": row["offset"]} for row in rows if row["offset"] != 1]
    assert f"topic '{made.name}', partition 0: 1 malformed records dropped, the first at offset 1" in caplog.text
    with pytest.raises(
        ConnectorError, match=rf"Malformed record at offset 1 of topic '{made.name}', partition 0: value"
    ):
        read(made, **options, mode="FAILFAST")
    assert [row["value"] for row in read(made, 2, **options, mode="FAILFAST")] == [None, expected]


def test_keys_and_values_each_have_their_column_of_raw_bytes(made: Topic) -> None:
    made.produce([b'{"a":1}', b"{"], key=b"\xff")
    made.produce([b"{"], key=b"k")
    made.produce([b'{"a":2}'], key=None)
    options = {**of("key", "string"), **of("value", "json"), "columns": "key,value"}
    assert [tuple(row.values()) for row in read(made, **options)] == [
        (None, {"a": 1}, b"\xff", None),
        (None, None, b"\xff", b"{"),
        ("k", None, None, b"{"),
        (None, {"a": 2}, None, None),
    ]
    assert read(made, **options, mode="DROPMALFORMED") == [{"key": None, "value": {"a": 2}}]
    with pytest.raises(ConnectorError, match=r"offset 1 .*: key: not UTF-8.*; value: not JSON"):
        read(made, 1, **options, mode="FAILFAST")


@pytest.mark.parametrize("mode", MODES[:2])
def test_bad_records_go_to_their_topic_as_they_were(made: Topic, mode: str) -> None:
    target = Topic(made.bootstrap, f"{made.name}-bad")
    made.produce([b"1"], partition=1, key=b"before")
    made.produce([b"\xff\0{", b'{"a":1}'], partition=1, key=b"\0k", timestamp=1_700_000_000_123, headers=[("h", b"v")])
    made.produce([None], partition=1)
    options = {**of("value", "json"), "mode": mode, "badRecordsTopic": target.name, "columns": "value"}
    rows = read(made, 1, 1, **options)
    assert [row["value"] for row in rows if row["value"]] == [{"a": 1}]
    (sent,) = read_all(target)
    headers = {header["key"]: header["value"] for header in sent["headers"]}
    assert (sent["key"], sent["value"]) == (b"\0k", b"\xff\0{")
    assert int(sent["timestamp"].timestamp() * 1000) == 1_700_000_000_123
    assert headers.pop("pykafka.error").startswith(b"value: not JSON")
    assert headers == {
        "pykafka.origin.topic": made.name.encode(),
        "pykafka.origin.partition": b"1",
        "pykafka.origin.offset": b"1",
        "pykafka.origin.timestamp": b"1700000000123",
    }
    read(made, 1, 1, **options)
    assert len(read_all(target, 2)) == 2, "at least once: reading again writes again"


def read_all(topic: Topic, count: int = 1) -> list[dict[str, Any]]:
    parsed = parse_options(
        {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, "includeHeaders": "true"}, Mode.BATCH
    )
    batches = list(read_range(parsed, OffsetRange(TopicPartition(topic.name, 0), 0, count)))
    return pa.Table.from_batches(batches).to_pylist()


def test_the_topic_of_bad_records_must_exist(made: Topic) -> None:
    made.produce([b'{"a":1}'] * 4)
    with pytest.raises(ConfigError, match="'badRecordsTopic': create the topic before the read"):
        read(made, **of("value", "json"), badRecordsTopic=f"{made.name}-none")


def test_a_bad_record_that_cannot_be_written_is_not_passed_over(made: Topic) -> None:
    target = Topic(made.bootstrap, f"{made.name}-small", max_message_bytes="200")
    made.produce([b"x" * 1000] * 4)
    with pytest.raises(BrokerError, match="(?i)message_too_large|larger"):
        read(made, **of("value", "json"), badRecordsTopic=target.name)


def test_many_bad_records(made: Topic) -> None:
    target = Topic(made.bootstrap, f"{made.name}-bad")
    made.produce([b"x" * 30_000] * 4)
    assert read(made, **of("value", "json"), mode="DROPMALFORMED", badRecordsTopic=target.name) == []
    assert [row["value"] for row in read_all(target, 4)] == [b"x" * 30_000] * 4


def test_filters_come_before_decoding(made: Topic) -> None:
    made.produce([b"bad"], key=b"no")
    made.produce([b'{"a":1}'] * 3, key=b"yes")
    rows = read(made, **of("value", "json"), mode="FAILFAST", filterKeyPrefix="yes", columns="value")
    assert rows == [{"value": {"a": 1}}] * 3
