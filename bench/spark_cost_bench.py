"""What the connector costs beside the records: micro-batches, planning, the first batch, an executor's memory."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from bench.empty_source import DDL
from bench.measure import Row, broker_target
from bench.spark_common import (
    CHUNK_ROWS,
    PARTITIONS,
    alternate,
    bench_session,
    fill,
    in_a_fresh_session,
    values,
)
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader

BATCHES = 20
LEAST_BATCHES = 5
MICRO_BATCH_ROUNDS = 6
WIDE = 100
READINGS: dict[str, dict[str, str]] = {
    "read by the driver": {},
    "one task": {"maxPrefetchedRecords": "0"},
    "a task per range": {"maxPrefetchedRecords": "0", "minBytesPerPartition": "0"},
}
FIRST_ROUNDS = 7
PLANNED_PARTITIONS = 10_000
PLANNED_TOPICS = 10
MEMORY_BYTES = 10_000_000_000


class EmptyStream(DataSource):
    """The ceiling of a micro-batch: a stream whose offset moves and whose batches are empty."""

    @classmethod
    def name(cls) -> str:
        return "empty_stream"

    def schema(self) -> str:
        return DDL

    def streamReader(self, schema: object) -> EmptyStreamReader:  # noqa: N802
        return EmptyStreamReader()


class EmptyStreamOfOne(EmptyStream):
    """The same with one input partition: what a micro-batch costs that has a Python task at all."""

    @classmethod
    def name(cls) -> str:
        return "empty_stream_of_one"

    def streamReader(self, schema: object) -> EmptyStreamReader:  # noqa: N802
        return EmptyStreamReader(1)


class EmptyStreamReader(DataSourceStreamReader):
    def __init__(self, partitions: int = PARTITIONS) -> None:
        self._n = 0
        self._partitions = partitions

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"n": 0}

    def latestOffset(self, *_: object) -> dict[str, int]:  # noqa: N802
        self._n += 1
        return {"n": self._n}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(i) for i in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        return iter(())


def run(scale: float = 1.0) -> Iterator[Row]:
    """Micro-batch, planning and memory in one session, then fresh sessions for the first batch."""
    with tempfile.TemporaryDirectory() as directory, broker_target(Path(directory) / "data", PARTITIONS) as target:
        with bench_session(EmptyStreamOfOne) as spark:
            for partitions in (PARTITIONS, WIDE):
                yield from _micro_batches(spark, target.bootstrap, partitions)
            yield _planning(target.bootstrap, int(PLANNED_PARTITIONS * scale))
            yield _memory(spark, target.bootstrap, int(MEMORY_BYTES * scale))
        yield _first_batch(target.bootstrap, Path(directory))


def _micro_batches(spark: SparkSession, bootstrap: str, partitions: int) -> Iterator[Row]:
    """Median duration of a micro-batch of one record per partition, read in each way, against an empty one of one task.

    They take turns, a query each for some batches, and the topic is fed during all, so that the machine's mood is the
    same for all."""
    topic = f"bench-stream-{partitions}"
    _create(bootstrap, topic, partitions)
    source = spark.readStream.format("pykafka").options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic})
    frames = {way: source.options(**options).load() for way, options in READINGS.items()}
    frames["empty"] = spark.readStream.format("empty_stream_of_one").load()
    taken: dict[str, list[int]] = {way: [] for way in frames}
    for _ in range(MICRO_BATCH_ROUNDS):
        for way, frame in frames.items():
            many = BATCHES * PARTITIONS // partitions or LEAST_BATCHES
            batches = durations_of_batches(frame, bootstrap, topic, partitions, many)
            taken[way] += [one["triggerExecution"] for one in batches]
    best = statistics.median(taken.pop("empty"))
    for way, durations in taken.items():
        case = f"micro-batch, {partitions} partitions, a record each, {way}"
        yield Row(case, statistics.median(durations), "ms", best, "(ceiling: an empty Python stream of one task)")


def durations_of_batches(
    frame: DataFrame, bootstrap: str, fed_topic: str, partitions: int, batches: int, *, steady: bool = False
) -> list[dict[str, int]]:
    """What the parts of each micro-batch took, ms, by Spark's names; a record for each partition and batch, or
    one every 10 ms if `steady`."""
    query = frame.writeStream.format("noop").trigger(processingTime="0 seconds").start()
    producer, pause = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0}), threading.Event()
    seen = 0
    while len(done := [p for p in query.recentProgress if p.batchId > 4 and "addBatch" in p.durationMs]) < batches:
        if steady or len(query.recentProgress) > seen or not seen:
            seen = len(query.recentProgress)
            for partition in range(partitions):
                producer.produce(fed_topic, b"x", partition=partition)
            producer.flush()
        if (error := query.exception()) is not None:
            raise error
        pause.wait(0.01)
    query.stop()
    return [p.durationMs for p in done]


def _planning(bootstrap: str, partitions: int) -> Row:
    """`partitions()` of a batch query over so many partitions: metadata, both ends of each, the tasks."""
    topics = [f"bench-wide-{number}" for number in range(PLANNED_TOPICS)]  # one would not fit into ZooKeeper's limit
    for topic in topics:
        _create(bootstrap, topic, partitions // PLANNED_TOPICS)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": ",".join(topics), "startingOffsets": "earliest"}
    reader = KafkaBatchReader(parse_options(options, Mode.BATCH))
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        reader.partitions()
        taken.append(time.perf_counter() - start)
    return Row(f"planning a batch over {partitions:,} partitions", statistics.median(taken), "s")


def _memory(spark: SparkSession, bootstrap: str, size: int) -> Row:
    """Growth of a Python worker's memory between the first and the last third of one long range."""
    topic = "bench-long"
    _create(bootstrap, topic, 1)
    chunk = values(1024)
    rows = size // 1024 // CHUNK_ROWS * CHUNK_ROWS
    fill(bootstrap, topic, chunk, rows, keyed=False, codec=Codec.NONE, partitions=1)
    frame = spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    samples: list[int] = []
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.1):
            samples.append(max(_worker_sizes(), default=0))

    watcher = threading.Thread(target=sample)
    watcher.start()
    (row,) = frame.selectExpr("count(*)").collect()
    done.set()
    watcher.join()
    assert row[0] == rows, row
    third = len(samples) // 3
    first, last = max(samples[:third]) / 1e6, max(samples[-third:]) / 1e6
    return Row(
        f"worker memory over a range of {size / 1e9:g} GB, last third", last, "MB", first, "(ceiling: first third)"
    )


def _worker_sizes() -> list[int]:
    """Resident bytes of every Python worker below this process."""
    sizes = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "pyspark.daemon" in " ".join(process.cmdline()):
                sizes.append(process.memory_info().rss)
        except psutil.Error:
            continue
    return sizes


def _first_batch(bootstrap: str, directory: Path) -> Row:
    """Seconds from the first use of a format in a fresh session to its answer, ours against an empty Python source."""
    topic = "bench-first"
    _create(bootstrap, topic, 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x")
    producer.flush()

    def fresh(format: str) -> float:
        return in_a_fresh_session(directory, "bench.spark_first", format, bootstrap, topic)

    mine, best = alternate(FIRST_ROUNDS, lambda: fresh("pykafka"), lambda: fresh("empty"))
    return Row("first batch of a fresh session", mine, "s", best, "(ceiling: an empty Python source)")


def _create(bootstrap: str, topic: str, partitions: int) -> None:
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(topic, partitions)
