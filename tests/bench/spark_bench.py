"""A Spark count over the topic against the same Arrow batches yielded from memory, and empty micro-batches.

The ceiling is a Python data source that gives the seven Kafka columns from batches it holds in memory:
what is left of the difference is fetching, CRC and decoding. Rounds alternate between the two.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tests.bench.measure import Row, broker_target

PARTITIONS = 4
ROUNDS = 5
BATCH_ROWS = 10_000
DDL = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"


class MemorySource(DataSource):
    """The ceiling: `rows` records of `size` bytes in the Kafka schema, out of memory."""

    @classmethod
    def name(cls) -> str:
        return "memory_ceiling"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(int(self.options["rows"]), int(self.options["size"]))

    def streamReader(self, schema: StructType) -> EmptyStream:  # noqa: N802
        return EmptyStream()


class MemoryReader(DataSourceReader):
    """One Arrow batch, given as often as needed."""

    def __init__(self, rows: int, size: int) -> None:
        self._rows, self._size = rows, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        n = BATCH_ROWS
        values = pa.array([os.urandom(self._size)] * n, pa.binary())
        columns = [
            pa.nulls(n, pa.binary()),
            values,
            pa.array(["bench"] * n),
            pa.array([0] * n, pa.int32()),
            pa.array(range(n), pa.int64()),
            pa.array([1_700_000_000_000_000] * n, pa.timestamp("us", "UTC")),
            pa.array([0] * n, pa.int32()),
        ]
        names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
        batch = pa.RecordBatch.from_arrays(columns, names=names)
        for _ in range(self._rows // PARTITIONS // n):
            yield batch


class EmptyStream(DataSourceStreamReader):
    """A stream whose offset moves and whose batches are empty."""

    def __init__(self) -> None:
        self._n = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
        self._n += 1
        return {"n": self._n}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(i) for i in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        return iter(())


def run(scale: float = 1.0) -> list[Row]:
    """Rows per second of both, at 100 B and 1 KiB, and seconds per micro-batch."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    spark.dataSource.register(MemorySource)
    rows: list[Row] = []
    try:
        with tempfile.TemporaryDirectory() as directory, broker_target(Path(directory) / "data", PARTITIONS) as target:
            for size, count in ((100, int(1_000_000 * scale)), (1024, int(200_000 * scale))):
                count -= count % (PARTITIONS * BATCH_ROWS)
                rows.append(_read(spark, target.bootstrap, size, count))
            rows.append(_micro_batches(spark, target.bootstrap))
    finally:
        spark.stop()
    return rows


def _read(spark: SparkSession, bootstrap: str, size: int, count: int) -> Row:
    topic = f"bench-{size}"
    _fill(bootstrap, topic, size, count)

    def ours() -> DataFrame:
        return (
            spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
        )

    def ceiling() -> DataFrame:
        return spark.read.format("memory_ceiling").option("rows", str(count)).option("size", str(size)).load()

    seconds = _paired(lambda: _count(ours(), count, size), lambda: _count(ceiling(), count, size))
    return Row(
        f"Spark count + sum(length(value)), {count:,} × {size} B", count / seconds[0], "rows/s", count / seconds[1]
    )


def _paired(*cases: Callable[[], float]) -> list[float]:
    """Median seconds of each case over rounds that alternate, after one round to warm up."""
    taken = [[case() for case in cases] for _ in range(ROUNDS + 1)][1:]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


def _count(frame: DataFrame, count: int, size: int) -> float:
    start = time.perf_counter()
    (row,) = frame.selectExpr("count(*)", "sum(length(value))").collect()
    assert tuple(row) == (count, count * size), row
    return time.perf_counter() - start


def _micro_batches(spark: SparkSession, bootstrap: str) -> Row:
    """Median duration of a micro-batch that carries one record, against one that carries none from memory."""
    topic = "bench-stream"
    _fill(bootstrap, topic, 10, PARTITIONS)
    ours = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
    )
    ceiling = spark.readStream.format("memory_ceiling").load()
    taken, pause = [], threading.Event()
    for frame, feed in ((ours, True), (ceiling, False)):
        query = frame.writeStream.format("noop").trigger(processingTime="0 seconds").start()
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        while len([p for p in query.recentProgress if p.batchId > 4]) < 30:
            if feed:
                for partition in range(PARTITIONS):
                    producer.produce(topic, b"x", partition=partition)
                producer.flush()
            if (error := query.exception()) is not None:
                raise error
            pause.wait(0.02)
        durations = [
            p.durationMs["triggerExecution"]
            for p in query.recentProgress
            if p.batchId > 4 and "addBatch" in p.durationMs
        ]
        query.stop()
        taken.append(statistics.median(durations))
    return Row(
        "micro-batch, 4 partitions, a record each", taken[0], "ms", taken[1], "(ceiling: an empty Python stream)"
    )


def _fill(bootstrap: str, topic: str, size: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "queue.buffering.max.messages": 2_000_000})
    payload = os.urandom(size)
    for i in range(count):
        producer.produce(topic, payload, partition=i % PARTITIONS)
        if i % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0
