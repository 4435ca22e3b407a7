"""Where a batch query starts and ends, looked up on a real broker, and what it refuses; no Spark runs here."""

from __future__ import annotations

import json
import logging
import pickle
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql.datasource import InputPartition

from broker.client.cluster_metadata import UnknownTopic
from broker.errors import ConfigError, ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.offset_store.base import open_store
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.read.readers import KafkaBatchReader
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.metadata_requests import record_metadata_requests
from tests.support.stream_calls import ranges_of
from tests.support.topics import Topic

MINUTE = 60_000
NOON = 1_700_000_000_000

Plan = list[tuple[int, int, int]]
"""(partition, from, until) of each range"""


@pytest.fixture
def timed(broker: Kafka, topic: str) -> Topic:
    """Two partitions with a record a minute: ten from noon on, and five."""
    made = Topic(broker.bootstrap, topic, 2)
    for partition, count in ((0, 10), (1, 5)):
        for minute in range(count):
            made.produce([b"%d" % minute], partition, timestamp=NOON + minute * MINUTE)
    return made


def options(topic: Topic, **more: str) -> SourceOptions:
    base = {"kafka.bootstrap.servers": topic.bootstrap, "fetchOffset.retryIntervalMs": "20"}
    if not {"assign", "subscribePattern"} & more.keys():
        base["subscribe"] = topic.name
    return parse_options({**base, **more}, Mode.BATCH)


def plan(topic: Topic, **more: str) -> Plan:
    return ranges_of(KafkaBatchReader(options(topic, **more)).partitions())


def per_partition(topic: Topic, *values: int) -> str:
    return json.dumps({topic.name: {str(partition): value for partition, value in enumerate(values)}})


def test_all_there_is_by_default(timed: Topic) -> None:
    assert plan(timed) == [(0, 0, 10), (1, 0, 5)]


def test_start_and_end_by_offset(timed: Topic) -> None:
    start, end = per_partition(timed, 3, -2), per_partition(timed, -1, 2)
    assert plan(timed, startingOffsets=start, endingOffsets=end) == [(0, 3, 10), (1, 0, 2)]


def test_start_and_end_by_one_timestamp(timed: Topic) -> None:
    assert plan(timed, startingTimestamp=str(NOON + 1), endingTimestamp=str(NOON + 4 * MINUTE)) == [
        (0, 1, 4),
        (1, 1, 4),
    ]


def test_start_and_end_by_timestamps(timed: Topic) -> None:
    start = per_partition(timed, NOON + 2 * MINUTE, NOON)
    end = per_partition(timed, NOON + 7 * MINUTE, NOON + 99 * MINUTE)
    ranges = plan(timed, startingOffsetsByTimestamp=start, endingOffsetsByTimestamp=end)
    assert ranges == [(0, 2, 7), (1, 0, 5)], "no record that young ends at latest"


def test_no_record_that_young_is_an_error_or_the_end(timed: Topic) -> None:
    young = str(NOON + 7 * MINUTE)
    with pytest.raises(ConfigError, match=rf"No offset matched .*{timed.name}-1 and timestamp {young}.*Strategy"):
        plan(timed, startingTimestamp=young)
    assert plan(timed, startingTimestamp=young, startingOffsetsByTimestampStrategy="latest") == [(0, 7, 10)]


def test_patterns_and_assignments(timed: Topic) -> None:
    Topic(timed.bootstrap, f"{timed.name}-2").number(1)
    assert plan(timed, subscribePattern=timed.name) == [(0, 0, 10), (1, 0, 5)], "the whole name"
    assert len(plan(timed, subscribePattern=f"{timed.name}.*")) == 3
    assert plan(timed, subscribePattern="no such topic") == []
    assert plan(timed, assign=json.dumps({timed.name: [1]})) == [(1, 0, 5)]


def test_internal_topics_match_no_pattern(timed: Topic) -> None:
    store = open_store("group", {"kafka.bootstrap.servers": timed.bootstrap})
    store.commit(f"{timed.name}-group", {TopicPartition(timed.name, 0): 1})  # has the broker make its offsets topic
    store.close()
    tasks = KafkaBatchReader(options(timed, subscribePattern=".*")).partitions()
    topics = {one.tp.topic for task in tasks for one in task.value}
    assert "__consumer_offsets" not in topics


@pytest.mark.parametrize("kind", ["files", "group", "zookeeper"])
def test_a_start_from_committed_offsets(timed: Topic, kind: str, group: str, tmp_path: Path, zookeeper: str) -> None:
    store = {
        "kafka.bootstrap.servers": timed.bootstrap,
        "offsetStore": kind,
        "offsetStore.path": str(tmp_path),
        "offsetStore.zookeeper.connect": zookeeper,
    }
    opened = open_store(kind, store)
    opened.commit(group, {TopicPartition(timed.name, 0): 6})
    opened.close()
    ranges = plan(timed, startingOffsets="committed", group=group, **store)
    assert ranges == [(0, 6, 10), (1, 0, 5)], "a partition that was never committed starts at earliest"


def test_an_end_beyond_the_end_reads_what_there_is_when_losses_are_allowed(
    timed: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    beyond = {"startingOffsets": per_partition(timed, 3, 7), "endingOffsets": per_partition(timed, 1000, 9)}
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        assert plan(timed, failOnDataLoss="false", **beyond) == [(0, 3, 10)]
    first, second = (record.getMessage() for record in caplog.records)
    assert f"[10, 1000) for topic partition {timed.name}-0" in first
    assert "ends at 10." in first
    assert f"[7, 9) for topic partition {timed.name}-1" in second
    assert plan(timed, **beyond) == [(0, 3, 1000), (1, 7, 9)], "else the tasks wait, and fail"


def test_tasks_by_min_partitions_and_max_records(timed: Topic) -> None:
    assert plan(timed, minPartitions="4") == [(0, 0, 3), (0, 3, 6), (0, 6, 10), (1, 0, 5)]
    assert plan(timed, maxRecordsPerPartition="5") == [(0, 0, 5), (0, 5, 10), (1, 0, 5)]


def test_partitions_is_a_list_and_tasks_survive_the_way_to_an_executor(timed: Topic) -> None:
    reader = KafkaBatchReader(options(timed))
    tasks = reader.partitions()
    assert type(tasks) is list
    remote, remote_tasks = pickle.loads(pickle.dumps((reader, tasks)))
    assert sum(batch.num_rows for task in remote_tasks for batch in remote.read(task)) == 15


def test_the_placeholder_for_no_partitions_reads_nothing(timed: Topic) -> None:
    empty = Topic(timed.bootstrap, f"{timed.name}-empty")
    reader = KafkaBatchReader(options(empty))
    assert reader.partitions() == []
    rows = reader.read(InputPartition(None))
    assert next(rows, None) is None


def test_partitions_that_do_not_match_the_json_are_named(timed: Topic) -> None:
    short = json.dumps({timed.name: {"0": 1}})
    with pytest.raises(
        ConnectorError, match=rf"KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED.*\[{timed.name}-0\].*-0, {timed.name}-1\]"
    ):
        plan(timed, startingOffsets=short)
    with pytest.raises(ConnectorError, match="KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        plan(timed, startingOffsetsByTimestamp=short)


def test_a_start_after_the_end_is_refused(timed: Topic) -> None:
    with pytest.raises(
        ConnectorError, match=r"RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET.* 11 .* 10 .* partition 0"
    ):
        plan(timed, startingOffsets=per_partition(timed, 11, 0))


@pytest.mark.parametrize("more", [{}, {"assign": '{"no-such-topic":[0]}'}])
def test_a_missing_topic_is_named(timed: Topic, more: dict[str, str]) -> None:
    where = {"kafka.bootstrap.servers": timed.bootstrap, **(more or {"subscribe": f"{timed.name},no-such-topic"})}
    with pytest.raises(UnknownTopic, match="no topic 'no-such-topic'"):
        KafkaBatchReader(parse_options(where, Mode.BATCH)).partitions()


def test_a_missing_partition_is_named(timed: Topic) -> None:
    with pytest.raises(UnknownTopic, match=rf"'{timed.name}' has 2 partitions, option 'assign' names partition 7"):
        plan(timed, assign=json.dumps({timed.name: [1, 7]}))


def test_an_unreachable_broker_is_named_after_the_time_that_the_client_gives_it() -> None:
    with refused_port() as port:
        address = f"127.0.0.1:{port}"
        options = {"kafka.bootstrap.servers": address, "subscribe": "t", "kafka.default.api.timeout.ms": "500"}
        reader = KafkaBatchReader(parse_options(options, Mode.BATCH))
        started = time.monotonic()
        with pytest.raises(ConnectionFailed, match=rf"bootstrap\.servers.*{address}"):
            reader.partitions()
        assert time.monotonic() - started < 45


def test_reading_never_creates_a_topic(timed: Topic) -> None:
    for _ in range(2):
        with pytest.raises(UnknownTopic):
            KafkaBatchReader(
                parse_options(
                    {"kafka.bootstrap.servers": timed.bootstrap, "subscribe": f"{timed.name}-typo"}, Mode.BATCH
                )
            ).partitions()


def test_partitions_are_filtered_and_a_start_names_what_is_left(timed: Topic) -> None:
    assert plan(timed, filterPartitions="1-7") == [(1, 0, 5)]
    assert plan(timed, filterPartitions=json.dumps({timed.name: "0"})) == [(0, 0, 10)]
    start = json.dumps({timed.name: {"1": 3}})
    assert plan(timed, filterPartitions="1", startingOffsets=start) == [(1, 3, 5)]
    with pytest.raises(ConfigError, match=rf"'filterPartitions' excludes all of \[{timed.name}-0, {timed.name}-1\]"):
        plan(timed, filterPartitions="2-")


def test_offsets_are_filtered_while_planning(timed: Topic) -> None:
    assert plan(timed, filterOffsets="8-,2-3") == [(0, 2, 4), (0, 8, 10), (1, 2, 4)]
    assert plan(timed, filterOffsets=json.dumps({timed.name: {"1": "-1"}})) == [(1, 0, 2)]
    assert plan(timed, filterOffsets="50-60") == []
    assert plan(timed, filterOffsets="2-3", startingOffsets=per_partition(timed, 3, 4)) == [(0, 3, 4)]


def rows(topic: Topic, columns: str, **more: str) -> list[tuple[object, ...]]:
    reader = KafkaBatchReader(options(topic, columns=columns, **more))
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_timestamps_narrow_the_start_and_are_exact_though_they_run_backwards(timed: Topic) -> None:
    timed.produce([b"late", b"later"], 1, timestamp=NOON - 5 * MINUTE)
    timed.produce([b"on time"], 1, timestamp=NOON + 3 * MINUTE)
    window = {"filterTimestampFrom": str(NOON + 2 * MINUTE), "filterTimestampUntil": str(NOON + 4 * MINUTE)}
    assert plan(timed, **window) == [(0, 2, 10), (1, 2, 8)], "the end stays: younger records may come before older ones"
    assert rows(timed, "partition,value", **window) == [
        (0, b"2"),
        (0, b"3"),
        (1, b"2"),
        (1, b"3"),
        (1, b"on time"),
    ]
    assert plan(timed, filterTimestampFrom=str(NOON + 7 * MINUTE)) == [(0, 7, 10)], "nothing that young in the other"
    start = per_partition(timed, 5, 0)
    assert plan(timed, startingOffsets=start, **window) == [(0, 5, 10), (1, 2, 8)], "never before the start"


def test_keys_and_headers_are_filtered_and_need_not_be_asked_for(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b"1"], key=b"user-1", headers=[("type", b"click"), ("x", None)])
    made.produce([b"2"], key=b"user-2")
    made.produce([b"3"], key=b"order-3", headers=[("type", b"clack")])
    made.produce([b"4"])
    assert rows(made, "value", filterKeyPrefix="user-") == [(b"1",), (b"2",)]
    assert rows(made, "offset", filterHeader="type") == [(0,), (2,)]
    assert rows(made, "offset", filterHeader="type=cli") == [(0,)]
    assert rows(made, "key", filterHeader="type=cl", filterKeyPrefix="order") == [(b"order-3",)]
    assert rows(made, "key", filterHeader="x") == [(b"user-1",)]


def test_all_topics_of_a_plan_are_asked_about_at_once(
    broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [Topic(broker.bootstrap, f"{topic}-{number}", 1) for number in range(4)]
    for one in made:
        one.number(3, 0)
    names = [one.name for one in made]
    asked = record_metadata_requests(monkeypatch)
    assert len(ranges_of(KafkaBatchReader(options(made[0], subscribe=",".join(names))).partitions())) == 4
    assert asked == [set(names)]


def test_where_leaves_out_partitions_and_offsets_while_planning(timed: Topic) -> None:
    assert plan(timed, where="partition IN (1, 7)") == [(1, 0, 5)]
    assert plan(timed, where="offset BETWEEN 2 AND 3 AND partition = 0") == [(0, 2, 4)]
    assert plan(timed, where="offset >= 4", filterOffsets="3-7") == [(0, 4, 8), (1, 4, 5)]
    assert plan(timed, where=f"timestamp >= {NOON + 7 * MINUTE}") == [(0, 7, 10)]
    assert plan(timed, where="timestamp >= '1969-12-31T00:00Z'") == [(0, 0, 10), (1, 0, 5)], "an offset of no time"


def test_offsets_may_name_the_partitions_that_where_leaves_out(timed: Topic) -> None:
    start = per_partition(timed, 3, 4)
    assert plan(timed, where="partition = 1", startingOffsets=start) == [(1, 4, 5)]
    assert plan(timed, where="partition = 1", startingOffsets=json.dumps({timed.name: {"1": 3}})) == [(1, 3, 5)]
    with pytest.raises(ConnectorError, match="KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"):
        plan(timed, where="partition = 1", startingOffsets=json.dumps({timed.name: {"0": 3}}))


@pytest.mark.parametrize(
    "options",
    [
        {"where": "partition = 7"},
        {"where": "partition = 1", "filterPartitions": "0"},
        {"where": "offset > 5 AND offset < 4"},
        {"where": "timestamp > 5 AND timestamp < 6"},
        {"where": "key = 'a' AND key LIKE 'b%'"},
        {"where": "key = 'a'", "filterKey": "b", "filterKeyPartitioner": "murmur2"},
    ],
)
def test_what_cannot_be_is_an_empty_read(timed: Topic, options: dict[str, str]) -> None:
    assert plan(timed, **options) == []


def test_only_the_partition_of_a_key_is_read(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 4)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2_random"})
    for number in range(40):
        producer.produce(topic, b"%d" % number, b"user-%d" % (number % 8))
    assert producer.flush(60) == 0
    expected = [(b"%d" % number,) for number in range(3, 40, 8)]
    by_key = {"filterKeyPartitioner": "murmur2"}
    for options in (
        {"filterKey": "user-3"},
        {"where": "key = 'user-3'"},
        {"filterKey": "user-3", "filterKeyPrefix": "u"},
    ):
        assert len(plan(made, **options)) == 4
        assert len(plan(made, **options, **by_key)) == 1
        assert rows(made, "value", **options) == rows(made, "value", **options, **by_key) == expected
    several = {"where": "key IN ('user-3', 'user-4', X'757365722d35', 'nobody')"}
    assert sorted(rows(made, "value", **several)) == sorted(rows(made, "value", **several, **by_key))


def test_timestamps_that_grow_narrow_the_end(timed: Topic) -> None:
    window = {"where": f"timestamp >= {NOON + 2 * MINUTE} AND timestamp < {NOON + 4 * MINUTE}"}
    assert plan(timed, **window) == [(0, 2, 10), (1, 2, 5)], "producers set them, and nobody said that they grow"
    assert plan(timed, **window, timestampsGrow="true") == [(0, 2, 4), (1, 2, 4)]
    assert plan(timed, filterTimestampUntil=str(NOON), timestampsGrow="true") == []
    assert plan(timed, filterTimestampUntil=str(NOON + 7 * MINUTE), timestampsGrow="true") == [(0, 0, 7), (1, 0, 5)]
    assert plan(timed, **window, timestampsGrow="true", endingOffsets=per_partition(timed, 3, 1)) == [(0, 2, 3)]
