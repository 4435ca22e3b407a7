"""Limits by bytes: laws that hold whatever the estimates, and how good the estimates are on a real broker."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import UnknownTopic
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.planning import limit_bytes, limit_offsets
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.read.size_estimator import SizeEstimator
from tests.support.kafka import Kafka
from tests.support.randomness import seeded
from tests.support.spark_versions import since_spark
from tests.support.stream_calls import (
    ALL,
    Document,
    Reader,
    ReaderOf,
    ReadMaxBytes,
    ReadMaxRows,
    as_spark_does,
    planned,
)
from tests.support.topics import Topic

Offsets = dict[TopicPartition, int]

backlogs = st.lists(
    st.tuples(st.integers(0, 10**6), st.integers(0, 500), st.integers(1, 2000)), min_size=1, max_size=20
)


def laid_out(rows: list[tuple[int, int, int]]) -> tuple[Offsets, Offsets, Offsets]:
    """Start, end and bytes per offset."""
    tps = [TopicPartition("t", index) for index in range(len(rows))]
    start = {tp: row[0] for tp, row in zip(tps, rows, strict=True)}
    end = {tp: row[0] + row[1] for tp, row in zip(tps, rows, strict=True)}
    return start, end, {tp: row[2] for tp, row in zip(tps, rows, strict=True)}


def taken(start: Offsets, end: Offsets, sizes: Offsets) -> int:
    return sum((end[tp] - start[tp]) * sizes[tp] for tp in end)


@given(st.integers(1, 10**6), st.none() | st.integers(1, 1000), backlogs)
def test_both_caps_hold_and_there_is_always_progress(
    cap: int, most: int | None, rows: list[tuple[int, int, int]]
) -> None:
    start, end, sizes = laid_out(rows)
    by_count = end if most is None else limit_offsets(most, start, end)
    limited = limit_bytes(cap, sizes, start, by_count)
    assert all(start[tp] <= limited[tp] <= by_count[tp] for tp in end)
    moved = {tp for tp in end if limited[tp] > start[tp]}
    assert bool(moved) == (start != end)
    records = sum(limited.values()) - sum(start.values())
    assert taken(start, limited, sizes) <= cap or records == 1
    assert most is None or records <= most
    if taken(start, by_count, sizes) <= cap:
        assert limited == by_count


@given(st.integers(1, 5000), backlogs)
def test_every_partition_gets_its_turn_however_large_its_records(cap: int, rows: list[tuple[int, int, int]]) -> None:
    start, end, sizes = laid_out([(first, count % 5, size) for first, count, size in rows])
    idle = dict.fromkeys(end, 0)
    while start != end:
        after = limit_bytes(cap, sizes, start, end)
        for tp in end:
            idle[tp] = 0 if after[tp] > start[tp] or start[tp] == end[tp] else idle[tp] + 1
            assert idle[tp] <= len(end), "batches without progress"
        start = after


def fill(topic: Topic, sizes: Iterable[int], partition: int = 0) -> None:
    topic.produce((seeded(size).randbytes(size) for size in sizes), partition)


def batches(reader: Reader) -> list[tuple[int, int]]:
    """(records, bytes of their values) of each micro-batch until nothing is left."""
    start, found = as_spark_does(reader.initialOffset()), []
    while (end := as_spark_does(reader.latestOffset(start, reader.getDefaultReadLimit()))) != start:
        rows = [
            value for task in reader.partitions(start, end) for batch in reader.read(task) for value in batch["value"]
        ]
        found.append((len(rows), sum(len(value.as_py()) for value in rows)))
        start = end
    return found


@pytest.mark.parametrize("told", [True, False])
def test_batches_have_about_the_bytes_asked_for(
    reader_of: ReaderOf, broker: Kafka, topic: str, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of 0 to 2000 bytes, 300 a batch: less than a tenth off by the log's size, than a quarter by samples."""
    if not told:
        monkeypatch.setattr(Admin, "describe_log_dirs", not_authorized)
    made = Topic(broker.bootstrap, topic, 2)
    randomly = seeded(7)
    for partition in (0, 1):
        fill(made, (randomly.randrange(2000) for _ in range(1500)), partition)
    found = batches(reader_of(made, maxBytesPerTrigger="300000"))
    assert sum(records for records, _ in found) == 3000
    allowed = 1.1 if told else 1.25
    assert all(size <= 300_000 * allowed for _, size in found)
    assert all(size >= 300_000 / allowed - 20_000 for _, size in found[:-1])


def not_authorized(*_: object, **__: object) -> list[object]:
    raise BrokerError(ErrorCode.cluster_authorization_failed, "describing the directories of broker 0")


def test_sizes_that_drift_are_off_by_as_much_and_nothing_stalls(reader_of: ReaderOf, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    fill(made, [10] * 1000)
    fill(made, [5000] * 1000)
    found = batches(reader_of(made, maxBytesPerTrigger="500k"))
    assert sum(records for records, _ in found) == 2000
    assert max(size for _, size in found) <= 2.1 * (500 << 10), "the average is half of the larger size"


def test_a_record_larger_than_the_cap_is_read_alone(reader_of: ReaderOf, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    fill(made, [900] * 5, 0)
    fill(made, [900] * 5, 1)
    assert [records for records, _ in batches(reader_of(made, maxBytesPerTrigger="1"))] == [1] * 10


@since_spark("4.2", "admission control")
def test_bytes_and_offsets_are_capped_together(reader_of: ReaderOf, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    fill(made, [1000] * 100)
    few = reader_of(made, maxBytesPerTrigger="1m", maxOffsetsPerTrigger="7")
    assert few.getDefaultReadLimit() == ReadMaxRows(7)
    assert max(records for records, _ in batches(few)) == 7
    small = reader_of(made, maxBytesPerTrigger="5k", maxOffsetsPerTrigger="70", minOffsetsPerTrigger="2")
    assert max(records for records, _ in batches(small)) in {4, 5}, "less where batches are small: headers count"
    alone = reader_of(made, maxBytesPerTrigger="5k")
    assert alone.getDefaultReadLimit() == ReadMaxBytes(5 << 10)
    start = alone.initialOffset()
    assert planned(alone, start, alone.latestOffset(start, ALL)) == [(0, 0, 100)], "Trigger.Once takes all"


def test_tasks_are_cut_by_bytes_in_batch_and_stream(reader_of: ReaderOf, broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    fill(made, [1000] * 100, 0)
    fill(made, [10] * 100, 1)
    options = {"kafka.bootstrap.servers": made.bootstrap, "subscribe": topic, "maxBytesPerPartition": "30k"}
    tasks = KafkaBatchReader(parse_options(options, Mode.BATCH)).partitions()
    cut = [(one.tp.partition, one.size) for task in tasks for one in task.value]
    assert cut == [(0, 25), (0, 25), (0, 25), (0, 25), (1, 100)]
    reader = reader_of(made, maxBytesPerPartition="30k", maxRecordsPerPartition="60")
    start: Document = as_spark_does(reader.initialOffset())
    sizes = [(p, until - first) for p, first, until in planned(reader, start, reader.latestOffset(start, ALL))]
    assert sizes == [(0, 25), (0, 25), (0, 25), (0, 25), (1, 50), (1, 50)]


class TestEstimates:
    """SizeEstimator by itself."""

    def test_brokers_are_asked_once_a_minute_and_at_once_for_a_new_topic(
        self, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[list[str]] = []
        ask = Admin.describe_log_dirs

        def counted(admin: Admin, brokers: Iterable[int] = (), topics: Iterable[str] = ()) -> object:
            asked.append(list(topics))
            return ask(admin, brokers, topics)

        monkeypatch.setattr(Admin, "describe_log_dirs", counted)
        names = [topic, f"{topic}-2"]
        for name in names:
            fill(Topic(broker.bootstrap, name), [100] * 10)
        now, cluster = [0.0], Cluster(broker.bootstrap)
        sizes = SizeEstimator(cluster, lambda: now[0])
        first, second = (TopicPartition(name, 0) for name in names)
        for seconds, tps, expected in (
            (0.0, [first], [[topic]]),
            (59.0, [first], []),
            (59.0, [first, second], [[names[1]]]),
            (61.0, [first], [[topic]]),
        ):
            now[0] = seconds
            found = sizes.estimate(dict.fromkeys(tps, 0), dict.fromkeys(tps, 10))
            assert found.keys() == set(tps)
            assert all(100 < size < 180 for size in found.values())
            assert asked == expected
            asked.clear()
        cluster.close()

    def test_only_the_longest_backlogs_are_sampled_and_stand_for_the_rest(
        self, broker: Kafka, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Admin, "describe_log_dirs", not_authorized)
        made = Topic(broker.bootstrap, topic, 20)
        for partition in range(20):
            fill(made, [300] * (20 if partition < 16 else 10), partition)
        ends = {TopicPartition(topic, p): 20 if p < 16 else 10 for p in range(20)}
        cluster = Cluster(broker.bootstrap)
        found = SizeEstimator(cluster).estimate(dict.fromkeys(ends, 0), ends)
        assert found.keys() == ends.keys()
        assert all(300 < size < 380 for size in found.values())
        cluster.close()

    def test_what_is_gone_is_taken_for_something(self, broker: Kafka, topic: str) -> None:
        cluster = Cluster(broker.bootstrap, create_topics=False)
        gone = TopicPartition(topic, 0)
        with pytest.raises(UnknownTopic):
            cluster.topic(topic)
        assert SizeEstimator(cluster).estimate({gone: 0}, {gone: 5}) == {gone: 1024}
        cluster.close()
