"""`spark.readStream.format("pykafka")` in a real Spark: checkpoints, restarts, triggers, new partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import spark_partition_id
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.all_available import take_all
from tests.support.kafka import Kafka
from tests.support.spark_versions import before_spark, since_spark
from tests.support.topics import Topic
from tests.support.waiting import eventually


class Stream:
    """A query from a topic to parquet files, which may be started again on its checkpoint."""

    def __init__(self, spark: SparkSession, topic: Topic, home: Path) -> None:
        self.spark = spark
        self.topic = topic
        self.output = home / "output"
        self.checkpoint = home / "checkpoint"
        self.query: StreamingQuery | None = None

    def writer(self, **options: str) -> DataStreamWriter:
        source = self.spark.readStream.format("pykafka").option("kafka.bootstrap.servers", self.topic.bootstrap)
        where = {} if {"assign", "subscribePattern"} & options.keys() else {"subscribe": self.topic.name}
        frame = source.options(**{"startingOffsets": "earliest", **where, **options}).load()
        return frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))

    def start(self, *, available_now: bool = False, **options: str) -> StreamingQuery:
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        self.query = self.writer(**options).trigger(**trigger).start(str(self.output))
        return self.query

    def run(self, **options: str) -> StreamingQuery:
        """All there is now, then stop."""
        self.query = take_all(self.writer(**options), str(self.output))
        return self.query

    def rows(self) -> list[tuple[int, int]]:
        """(partition, offset) of all rows that finished batches wrote, sorted."""
        if not (self.output / "_spark_metadata").exists():
            return []
        frame = self.spark.read.schema("partition INT, offset BIGINT").parquet(str(self.output))
        return sorted((row.partition, row.offset) for row in frame.collect())

    def logged(self) -> list[dict[str, Any]]:
        """The end offset of each batch in the checkpoint."""
        files = sorted(
            (f for f in (self.checkpoint / "offsets").iterdir() if f.name.isdigit()), key=lambda f: int(f.name)
        )
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


@pytest.fixture
def stream(spark: SparkSession, broker: Kafka, topic: str, tmp_path: Path) -> Any:
    made = Topic(broker.bootstrap, topic, 2)
    made.number(30, 0)
    made.number(20, 1)
    result = Stream(spark, made, tmp_path)
    yield result
    if result.query is not None:
        result.query.stop()


def expected(*counts: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, count in enumerate(counts) for offset in range(count)]


def test_a_run_over_all_there_is_reads_it_in_capped_batches_and_ends(stream: Stream) -> None:
    query = stream.run(maxOffsetsPerTrigger="15")
    assert stream.rows() == expected(30, 20)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [15, 15, 15, 5]


def test_a_restart_goes_on_where_the_checkpoint_ends(stream: Stream) -> None:
    stream.run()
    stream.topic.number(7, 0)
    stream.run(startingOffsets="latest")
    stream.run()
    assert stream.rows() == expected(37, 20)


def test_a_running_query_takes_what_comes_and_new_partitions(stream: Stream) -> None:
    query = stream.start(startingOffsets="latest")
    eventually(lambda: query.lastProgress is not None, 60)
    stream.topic.number(5, 0)
    eventually(lambda: len(stream.rows()) == 5, 60)
    stream.topic.grow(3)
    stream.topic.number(4, 2)
    eventually(lambda: len(stream.rows()) == 9, 60)
    query.stop()
    assert stream.rows() == [(0, offset) for offset in range(30, 35)] + [(2, offset) for offset in range(4)]


def test_latest_is_the_same_after_a_restart_before_any_data(stream: Stream) -> None:
    query = stream.start(startingOffsets="latest")
    eventually((stream.checkpoint / "commits" / "0").exists, 60)
    query.stop()
    stream.topic.number(3, 1)
    stream.run(startingOffsets="latest")
    assert stream.rows() == [(1, 20), (1, 21), (1, 22)]


def test_a_batch_that_was_logged_but_not_committed_is_read_again_exactly(stream: Stream) -> None:
    stream.run(startingOffsets="latest")
    stream.topic.number(5, 0)
    stream.run()
    (stream.checkpoint / "commits" / "1").unlink()
    (stream.checkpoint / "commits" / ".1.crc").unlink(missing_ok=True)
    stream.topic.number(5, 0)
    stream.run()
    assert stream.rows() == [(0, offset) for offset in range(30, 40)]


def test_batch_0_is_read_again_exactly_though_latest_has_moved(stream: Stream) -> None:
    query = stream.start(startingOffsets="latest")
    eventually((stream.checkpoint / "commits" / "0").exists, 60)
    query.stop()
    (stream.checkpoint / "commits" / "0").unlink()
    (stream.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    before = stream.logged()[0]
    stream.topic.number(4, 1)
    stream.run(startingOffsets="latest")
    assert stream.logged()[0] == before
    assert stream.rows() == [(1, offset) for offset in range(20, 24)]


def test_an_idle_query_writes_no_batches(stream: Stream) -> None:
    query = stream.start()
    eventually(lambda: len(stream.rows()) == 50, 60)
    assert len(stream.logged()) == 1
    eventually(lambda: query.status["message"] == "Waiting for data to arrive", 60)
    query.stop()
    assert len(stream.logged()) == 1


def test_a_union_of_a_busy_and_an_idle_topic(stream: Stream, broker: Kafka, topic: str) -> None:
    idle = Topic(broker.bootstrap, f"{topic}-idle")
    frames = [
        stream.spark.readStream.format("pykafka")
        .options(startingOffsets="earliest", subscribe=name, **{"kafka.bootstrap.servers": broker.bootstrap})
        .load()
        for name in (topic, idle.name)
    ]
    writer = frames[0].union(frames[1]).writeStream.format("parquet")
    options = {"checkpointLocation": str(stream.checkpoint)}
    take_all(writer.options(**options), str(stream.output))
    assert stream.rows() == expected(30, 20)


@since_spark("4.2", "reportLatestOffset")
def test_progress_tells_offsets_and_the_latest_ones(stream: Stream) -> None:
    query = stream.run(maxOffsetsPerTrigger="40")
    (source,) = query.recentProgress[0].sources
    assert json.loads(source.endOffset)["topics"] == stream.logged()[0]["topics"]
    assert json.loads(source.latestOffset)["topics"] == {stream.topic.name: {"0": 30, "1": 20}}


def test_an_option_of_batches_fails_the_start(stream: Stream) -> None:
    query = stream.start(endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match=r"ending offset not valid in streaming queries") as raised:
        query.awaitTermination(60)
    assert "Traceback" not in str(raised.value)
    assert "UnboundLocalError" not in str(raised.value)  # of PySpark, which would stop the reader that it has not got


def test_a_deleted_topic_fails_the_query_by_name(stream: Stream) -> None:
    stream.run()
    stream.topic.delete()
    query = stream.start(available_now=True)
    with pytest.raises(StreamingQueryException, match=r"KAFKA_DATA_LOSS.PARTITIONS_DELETED"):
        query.awaitTermination(60)


@before_spark("4.2", "Trigger.AvailableNow is one batch")
def test_available_now_is_one_batch_of_the_limits_size_and_the_next_run_goes_on(stream: Stream) -> None:
    for rows in (35, 50, 50):
        assert stream.start(available_now=True, maxOffsetsPerTrigger="35").awaitTermination(100)
        assert len(stream.rows()) == rows
    assert stream.rows() == expected(30, 20)


@before_spark("4.2", "Trigger.AvailableNow has a wrapper that asks before it tells")
def test_the_wrapper_of_available_now_doubles_nothing(stream: Stream) -> None:
    wrapper = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    stream.spark.conf.set(wrapper, "true")
    try:
        assert stream.start(available_now=True).awaitTermination(100)
        assert stream.rows() == expected(30, 20)
        stream.topic.number(5, 0)
        with pytest.raises(StreamingQueryException, match=rf"PYKAFKA_START_UNKNOWN.*{wrapper}"):
            stream.start(available_now=True).awaitTermination(100)
    finally:
        stream.spark.conf.unset(wrapper)
    stream.run()
    assert stream.rows() == expected(35, 20)


PATHS = {
    "read by the driver": {},
    "in one task": {"maxPrefetchedRecords": "0"},
    "a task per range": {"maxPrefetchedRecords": "0", "minBytesPerPartition": "0"},
}


@pytest.mark.parametrize("path", PATHS)
def test_a_small_batch_has_as_few_tasks_as_the_options_let_it(stream: Stream, path: str) -> None:
    parts: list[tuple[int, int, int]] = []

    def look(batch: DataFrame, _number: int) -> None:
        if path == "read by the driver":
            stream.topic.delete()  # nobody could read them any more
        found = batch.select("partition", "offset", spark_partition_id().alias("task")).collect()
        parts.extend((row.partition, row.offset, row.task) for row in found)

    source = stream.spark.readStream.format("pykafka").option("kafka.bootstrap.servers", stream.topic.bootstrap)
    frame = source.options(subscribe=stream.topic.name, startingOffsets="earliest", **PATHS[path]).load()
    query = frame.writeStream.trigger(availableNow=True).foreachBatch(look).start()
    assert query.awaitTermination(100)
    assert [(partition, offset) for partition, offset, _ in sorted(parts)] == expected(30, 20)
    assert len({task for _, _, task in parts}) == (2 if path == "a task per range" else 1)
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [50]
