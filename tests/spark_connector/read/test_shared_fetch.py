"""Ranges that are read together, by a task or by the driver: the same rows as one by one, and the same errors."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, DataLoss
from spark_connector.options.read_options import Mode, SourceOptions, parse_options
from spark_connector.read.fetch import prefetch, read_range, read_ranges
from spark_connector.read.planning import OffsetRange
from tests.conftest import unique_name
from tests.support.broker_process import BrokerProcess
from tests.support.topics import Topic
from tests.support.waiting import eventually

Read = Callable[[SourceOptions, list[OffsetRange]], list[pa.RecordBatch]]


def together(options: SourceOptions, ranges: list[OffsetRange]) -> list[pa.RecordBatch]:
    return list(read_ranges(options, ranges, {}))


def ahead(options: SourceOptions, ranges: list[OffsetRange]) -> list[pa.RecordBatch]:
    batches = prefetch(options, ranges, {})
    assert batches is not None
    return batches


def one_by_one(options: SourceOptions, ranges: list[OffsetRange]) -> list[pa.RecordBatch]:
    return [batch for one in ranges for batch in read_range(options, one)]


def rows(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def options(topic: Topic, **more: str) -> SourceOptions:
    return parse_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **more}, Mode.STREAM)


def ranges(topic: Topic, *spans: tuple[int, int, int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition(topic.name, partition), first, until) for partition, first, until in spans]


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Partitions of each Fetch request that this process sends."""
    seen: list[list[int]] = []
    send = BrokerConnection.send

    def spy(connection: BrokerConnection, api: ApiKey, body: Mapping[str, Any], **how: Any) -> int:
        if api is ApiKey.FETCH:
            seen.append([row["partition"] for topic in body["topics"] for row in topic["partitions"]])
        return send(connection, api, body, **how)

    monkeypatch.setattr(BrokerConnection, "send", spy)
    return seen


@pytest.fixture
def wide(broker: BrokerProcess, topic: str) -> Topic:
    """Twenty partitions with twenty numbered records each."""
    made = Topic(broker.bootstrap, topic, 20)
    for partition in range(20):
        made.number(20, partition, first=100 * partition)
    return made


@pytest.mark.parametrize("read", [together, ahead])
def test_all_ranges_come_in_one_request_to_each_leader_and_in_one_batch(
    wide: Topic, read: Read, fetches: list[list[int]]
) -> None:
    spans = ranges(wide, *[(partition, partition % 7, 20 - partition % 3) for partition in range(20)])
    batches = read(options(wide), spans)
    assert sorted(map(sorted, fetches)) == by_leader(wide, *range(20))
    assert len(batches) == 1
    assert rows(batches) == rows(one_by_one(options(wide), spans))


def by_leader(topic: Topic, *partitions: int) -> list[list[int]]:
    """The partitions that each broker leads of these."""
    with Cluster(topic.bootstrap) as cluster:
        grouped = cluster.by_leader([TopicPartition(topic.name, partition) for partition in partitions])
    return sorted(sorted(tp.partition for tp in tps) for tps in grouped.values())


SETTINGS: list[dict[str, str]] = [
    {"includeHeaders": "true"},
    {"columns": "offset,partition"},
    {"filterKeyPrefix": "k1", "columns": "value,offset"},
    {"filterHeader": "even=yes"},
    {"valueFormat": "json", "valueSchema": "n INT"},
    {"valueFormat": "json", "valueSchema": "n INT", "mode": "DROPMALFORMED"},
    {"valueFormat": "string", "keyFormat": "string", "filterTimestampFrom": "1700000000003"},
]


@pytest.fixture(scope="module")
def mixed(broker: BrokerProcess) -> Topic:
    """Two partitions of values in JSON, some malformed, with keys, headers and times, compressed."""
    made = Topic(broker.bootstrap, unique_name("mixed"), 2)
    for number in range(12):
        value = b"no json" if number % 5 == 0 else b'{"n": %d}' % number
        headers = [("even", b"yes" if number % 2 == 0 else None)]
        when = 1_700_000_000_000 + number
        made.produce([value], number % 2, key=b"k%d" % number, headers=headers, timestamp=when, codec="zstd")
    return made


@pytest.mark.parametrize("read", [together, ahead])
@pytest.mark.parametrize("more", SETTINGS, ids=",".join)
def test_formats_filters_and_headers_are_those_of_any_read(mixed: Topic, read: Read, more: dict[str, str]) -> None:
    spans = ranges(mixed, (0, 1, 6), (1, 0, 5))
    found = read(options(mixed, **more), spans)
    expected = one_by_one(options(mixed, **more), spans)
    assert rows(found) == rows(expected)
    assert {batch.schema for batch in found} == {batch.schema for batch in expected}


@pytest.mark.parametrize("read", [together, ahead])
def test_aborted_records_are_left_out_where_committed_ones_are_asked_for(wide: Topic, read: Read) -> None:
    producer = Producer({"bootstrap.servers": wide.bootstrap, "transactional.id": wide.name})
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(wide.name, end.__name__.encode(), partition=partition)
        producer.flush(30)  # librdkafka drops what it has not sent when it aborts
        end(30)
    committed = {"kafka.isolation.level": "read_committed", "columns": "partition,value"}
    spans = ranges(wide, (0, 20, 24), (1, 20, 24))
    eventually(lambda: len(rows(together(options(wide, columns="offset"), spans))) == 4)
    assert [tuple(row.values()) for row in rows(read(options(wide, **committed), spans))] == [
        (0, b"commit_transaction"),
        (1, b"commit_transaction"),
    ]


def test_failfast_fails_by_a_task_and_is_left_to_one(mixed: Topic) -> None:
    strict = options(mixed, valueFormat="json", valueSchema="n INT", mode="FAILFAST")
    with pytest.raises(ConnectorError, match="MALFORMED_RECORD_IN_PARSING"):
        together(strict, ranges(mixed, (0, 0, 6), (1, 0, 6)))
    assert prefetch(strict, ranges(mixed, (0, 0, 6), (1, 0, 6)), {}) is None


def test_more_than_an_answer_holds_comes_in_more_answers(wide: Topic, fetches: list[list[int]]) -> None:
    wide.produce([b"x" * 50_000] * 10, 3)
    spans = ranges(wide, (2, 0, 20), (3, 5, 30), (4, 0, 20))
    small = options(wide, **{"kafka.max.partition.fetch.bytes": "100000"})
    found = sorted(rows(together(small, spans)), key=lambda row: (row["partition"], row["offset"]))
    asked = list(fetches)
    assert found == rows(one_by_one(small, spans))
    leaders = by_leader(wide, 2, 3, 4)
    assert sorted(map(sorted, asked[: len(leaders)])) == leaders
    assert not any(2 in fetch for fetch in asked[len(leaders) :]), "what is there already is not asked for again"


def test_too_much_to_prefetch_is_left_to_tasks(wide: Topic, fetches: list[list[int]]) -> None:
    wide.produce([b"x" * 100_000] * 15, 3)
    assert prefetch(options(wide), ranges(wide, (2, 0, 20), (3, 0, 35)), {}) is None
    assert sorted(map(sorted, fetches)) == by_leader(wide, 2, 3)
    wide.produce([bytes(900_000)] * 6, 4, codec="lz4")
    assert prefetch(options(wide), ranges(wide, (2, 0, 20), (4, 0, 26)), {}) is None, "little as it is fetched"


def test_several_ranges_of_a_partition(wide: Topic) -> None:
    spans = ranges(wide, (1, 0, 3), (1, 8, 9), (1, 15, 20), (2, 0, 1))
    found = rows(together(options(wide), spans))
    assert sorted((row["partition"], row["offset"]) for row in found) == [
        (one.tp.partition, offset) for one in spans for offset in range(one.from_offset, one.until_offset)
    ]
    assert rows(ahead(options(wide), spans)) == sorted(found, key=lambda row: (row["partition"], row["offset"]))


def test_a_range_that_is_gone_is_data_loss_or_skipped_alone(wide: Topic, caplog: pytest.LogCaptureFixture) -> None:
    spans = ranges(wide, (0, 0, 20), (1, 50, 60), (2, 18, 20))
    with pytest.raises(DataLoss, match=r"COULD_NOT_READ_OFFSET_RANGE.*offset \[50, 60\)"):
        together(options(wide), spans)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        found = rows(together(options(wide, failOnDataLoss="false"), spans))
    assert [(row["partition"], row["offset"]) for row in found] == [(0, n) for n in range(20)] + [(2, 18), (2, 19)]
    assert "Offsets skipped: 10" in caplog.text
    assert prefetch(options(wide), spans, {}) is None


def test_a_topic_created_anew_after_planning_is_not_read(wide: Topic) -> None:
    spans, ids = ranges(wide, (0, 0, 20), (1, 0, 20)), {wide.name: "00000000-0000-0000-0000-000000000001"}
    with pytest.raises(DataLoss, match="recreated since the batch was planned"):
        list(read_ranges(options(wide), spans, ids))
    assert prefetch(options(wide), spans, ids) is None


def test_a_deleted_topic_is_data_loss(wide: Topic) -> None:
    wide.delete()
    with pytest.raises(DataLoss, match=f"no topic '{wide.name}'"):
        together(options(wide), ranges(wide, (0, 0, 20), (1, 0, 20)))
    assert prefetch(options(wide), ranges(wide, (0, 0, 20)), {}) is None


def test_a_broker_that_goes_away_is_waited_for_by_tasks_only(
    broker_factory: Callable[..., BrokerProcess], topic: str
) -> None:
    own = broker_factory()
    made = Topic(own.bootstrap, topic, 2)
    made.number(5, 0)
    made.number(5, 1)
    spans = ranges(made, (0, 0, 5), (1, 0, 5))
    assert len(rows(ahead(options(made), spans))) == 10
    own.stop()
    patient = options(made, **{"kafka.default.api.timeout.ms": "500"})
    assert prefetch(patient, spans, {}) is None
    own.start()
    assert len(rows(together(options(made), spans))) == 10


def test_rows_of_many_ranges_are_joined_up_to_a_moderate_batch(broker: BrokerProcess, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 3)
    for partition in range(3):
        made.number(9_000, partition)
    batches = together(options(made), ranges(made, *[(partition, 0, 9_000) for partition in range(3)]))
    assert max(batch.num_rows for batch in batches) <= 10_000
    assert sum(batch.num_rows for batch in batches) == 27_000
    left: Iterator[pa.RecordBatch] = read_ranges(options(made), ranges(made, (0, 0, 9_000), (1, 0, 9_000)), {})
    next(left)
    del left
    assert len(rows(together(options(made), ranges(made, (0, 0, 9_000), (1, 0, 9_000))))) == 18_000


def test_bad_records_reach_their_topic_once(mixed: Topic) -> None:
    bad = Topic(mixed.bootstrap, f"{mixed.name}-bad")
    wanted = options(mixed, valueFormat="json", valueSchema="n INT", badRecordsTopic=bad.name)
    ahead(wanted, ranges(mixed, (0, 0, 6), (1, 0, 6)))
    stored = rows(one_by_one(options(bad), ranges(bad, (0, 0, 3))))
    assert sorted(row["key"] for row in stored) == [b"k0", b"k10", b"k5"]
    assert json.loads('"no json"').encode() == stored[0]["value"]
