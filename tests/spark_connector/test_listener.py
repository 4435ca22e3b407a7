"""`LagListener` in a real Spark: lag of real queries, and the last batch told to the offset store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from spark_connector.listener import LagListener, LastCommit, PrometheusLag
from spark_connector.progress.stream_lag import QueryLag
from tests.support.all_available import take_all
from tests.support.kafka import Kafka
from tests.support.spark_versions import since_spark
from tests.support.topics import Topic
from tests.support.waiting import eventually


@contextmanager
def listening(spark: SparkSession, listener: LagListener) -> Iterator[None]:
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)


class Streams:
    """Queries of one topic that count their rows and throw them away."""

    def __init__(self, spark: SparkSession, topic: Topic, checkpoint: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.checkpoint = checkpoint
        self.options = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name}

    def writer(self, **options: str) -> DataStreamWriter:
        given = {**self.options, "startingOffsets": "earliest", **options}
        writer = self.spark.readStream.format("pykafka").options(**given).load().writeStream.format("noop")
        name = self.topic.name.replace("-", "_")
        return writer.queryName(name).option("checkpointLocation", str(self.checkpoint))

    def start(self, trigger: dict[str, Any], **options: str) -> StreamingQuery:
        return self.writer(**options).trigger(**trigger).start()

    def run(self, **options: str) -> None:
        take_all(self.writer(**options))

    def committed(self, group: str) -> dict[int, int]:
        """What the group has committed, as Kafka's C client sees it; -1001 is nothing."""
        consumer = Consumer({"bootstrap.servers": self.topic.bootstrap, "group.id": group, "log_level": 0})
        found = consumer.committed([TopicPartition(self.topic.name, partition) for partition in (0, 1)], 30)
        consumer.close()
        return {one.partition: one.offset for one in found}


@pytest.fixture
def streams(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path) -> Streams:
    made = Topic(broker.bootstrap, topic, 2)
    made.number(30, 0)
    made.number(20, 1)
    return Streams(spark, made, tmp_path / "checkpoint")


def test_lag_shrinks_batch_by_batch_and_the_metrics_go_with_the_query(streams: Streams) -> None:
    """One of the publishers fails at every call, which disturbs nobody."""
    lags: list[QueryLag] = []
    registry = CollectorRegistry()
    seen: list[float | None] = []
    name = streams.topic.name.replace("-", "_")

    def scrape(lag: QueryLag) -> None:
        lags.append(lag)
        labels = {"query": name, "source": "0", "topic": streams.topic.name}
        seen.append(registry.get_sample_value("pykafka_stream_offsets_behind_latest", labels))

    def fail(lag: QueryLag) -> None:
        raise RuntimeError("no thanks")

    listener = LagListener(fail, PrometheusLag(registry), scrape, sizes_from=streams.options)
    with listening(streams.spark, listener):
        streams.run(maxOffsetsPerTrigger="20")
        eventually(lambda: len(lags) == 3 and not any(family.samples for family in registry.collect()), 60)
    assert seen == [30, 10, 0]
    first = lags[0].sources[0].metrics()
    assert {key: first[key] for key in first if key != "estimatedTotalBytesBehindLatest"} == {
        "minOffsetsBehindLatest": 12,
        "maxOffsetsBehindLatest": 18,
        "avgOffsetsBehindLatest": 15.0,
    }
    sizes = [lag.sources[0].bytes_behind or 0 for lag in lags]
    assert sizes[0] > sizes[1] > sizes[2] == 0
    assert [lag.sources[0].num_input_rows for lag in lags] == [20, 20, 10]


def test_an_uncommitted_batch_is_reported_with_unknown_lag_and_the_next_one_with_known(streams: Streams) -> None:
    streams.run(maxOffsetsPerTrigger="25")
    for name in ("1", ".1.crc"):
        (streams.checkpoint / "commits" / name).unlink()
    streams.topic.number(4, 0)
    lags: list[QueryLag] = []
    with listening(streams.spark, LagListener(lags.append)):
        query = streams.start({"processingTime": "0 seconds"})
        eventually(lambda: len(lags) == 2 or not query.isActive, 60)
        query.stop()
    assert [(lag.batch_id, lag.sources[0].metrics().get("maxOffsetsBehindLatest")) for lag in lags] == [
        (1, None),
        (2, 0),
    ]


@since_spark("4.2", "Trigger.AvailableNow that asks once more at the end")
def test_available_now_tells_the_group_its_very_last_batch(streams: Streams, group: str) -> None:
    streams.run(offsetStore="group", group=group, maxOffsetsPerTrigger="20")
    assert streams.committed(group) == {0: 30, 1: 20}


def test_a_stopped_query_has_told_its_last_batch_with_a_listener(streams: Streams, group: str) -> None:
    store = {"offsetStore": "group", "group": group}
    with listening(streams.spark, LagListener(LastCommit(streams.options | store))):
        query = streams.start({"processingTime": "1 hour"}, **store)
        eventually(lambda: query.lastProgress is not None, 60)
        assert streams.committed(group) == {0: -1001, 1: -1001}  # Spark will ask for the next batch in an hour
        query.stop()
        eventually(lambda: streams.committed(group) == {0: 30, 1: 20}, 60)


def test_a_once_query_has_told_its_batch_with_a_listener(streams: Streams, group: str) -> None:
    store = {"offsetStore": "group", "group": group}
    with listening(streams.spark, LagListener(LastCommit(streams.options | store))):
        assert streams.start({"once": True}, **store).awaitTermination(100)
        eventually(lambda: streams.committed(group) == {0: 30, 1: 20}, 60)
