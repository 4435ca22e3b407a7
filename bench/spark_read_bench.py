"""Spark reads a topic, against the same Arrow batches yielded from memory.

The ceiling is a Python data source that gives the seven Kafka columns from batches it holds: what is left of the
difference is fetching, checksums, decompressing and decoding, with the broker on the same two cores. Beside Spark's own
source it is measured by beside_spark.py.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.empty_source import DDL
from bench.measure import Row, broker_target
from bench.spark_common import (
    CHUNK_ROWS,
    KAFKA,
    PARTITIONS,
    alternate,
    alternate_cpu,
    bench_session,
    fill,
    keys,
    values,
)
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec

ROUNDS = 4
NAMES = [column.split()[0] for column in DDL.split(", ")]
CASES = [(size, keyed, codec) for size in (100, 1024) for codec in ("none", "lz4", "zstd") for keyed in (False, True)]
COUNTS = {100: 5_000_000, 1024: 1_000_000}


class MemorySource(DataSource):
    """The ceiling: option `rows` records of `size` bytes, with keys or without, out of memory."""

    @classmethod
    def name(cls) -> str:
        return "memory_ceiling"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(int(self.options["rows"]), int(self.options["size"]), self.options["keyed"] == "true")


class MemoryReader(DataSourceReader):
    """One Arrow batch, given as often as needed."""

    def __init__(self, rows: int, size: int, keyed: bool) -> None:
        self._rows, self._size, self._keyed = rows, size, keyed

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(i) for i in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # as the connector: else Spark's daemon looks through all modules after each task
        n = CHUNK_ROWS
        columns = [
            keys() if self._keyed else pa.nulls(n, pa.binary()),
            values(self._size),
            pa.array(["bench"] * n),
            pa.array([0] * n, pa.int32()),
            pa.array(range(n), pa.int64()),
            pa.array([1_700_000_000_000_000] * n, pa.timestamp("us", "UTC")),
            pa.array([0] * n, pa.int32()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, names=NAMES)
        # As many rows in a batch as the connector puts there: at most 1 MiB of keys and values.
        most = (1 << 20) // (self._size + 13 * self._keyed)
        slices = [batch.slice(start, most) for start in range(0, n, most)]
        for _ in range(self._rows // PARTITIONS // n):
            yield from slices


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rows per second of `count(*), sum(length(value))` over both, for each size, codec, with and without keys."""
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        bench_session(MemorySource) as spark,
    ):
        for size, keyed, codec in CASES:
            count = max(int(COUNTS[size] * scale) // (PARTITIONS * CHUNK_ROWS), 1) * PARTITIONS * CHUNK_ROWS
            topic = f"bench-{size}-{codec}-{keyed}"
            with Cluster(target.bootstrap) as cluster:
                Admin(cluster).create_topic(topic, PARTITIONS)
                fill(target.bootstrap, topic, values(size), count, keyed=keyed, codec=Codec.from_name(codec))
                yield _case(spark, target.bootstrap, topic, size, count, keyed, codec)
                Admin(cluster).delete_topics([topic])


def run_cpu(scale: float = 1.0) -> Iterator[Row]:
    """CPU seconds of JVM and Python workers, uncompressed with keys, from our broker or `PYKAFKA_BENCH_KAFKA`;
    the ceiling is the batches from memory."""
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        bench_session(MemorySource) as spark,
    ):
        servers = KAFKA or target.bootstrap
        for size, most in COUNTS.items():
            count = max(int(most * scale) // (PARTITIONS * CHUNK_ROWS), 1) * PARTITIONS * CHUNK_ROWS
            topic = f"bench-cpu-{size}"
            with Cluster(servers) as cluster:
                Admin(cluster).create_topic(topic, PARTITIONS)
                fill(servers, topic, values(size), count, keyed=True, codec=Codec.NONE)
                read = spark.read.format("pykafka").options(**{"kafka.bootstrap.servers": servers, "subscribe": topic})
                held = spark.read.format("memory_ceiling").options(rows=str(count), size=str(size), keyed="true")
                ways = [functools.partial(count_rows, frame, count, size) for frame in (read, held)]
                ours, best = alternate_cpu(ROUNDS, ways)
                Admin(cluster).delete_topics([topic])
            for side in ("jvm", "python"):
                yield Row(f"{count:,} × {size} B, keys, {side}", getattr(ours, side), "s CPU", getattr(best, side))


def _case(spark: SparkSession, bootstrap: str, topic: str, size: int, count: int, keyed: bool, codec: str) -> Row:
    read = spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    held = spark.read.format("memory_ceiling").options(rows=str(count), size=str(size), keyed=str(keyed).lower())
    seconds, best = alternate(ROUNDS, *(functools.partial(count_rows, frame, count, size) for frame in (read, held)))
    what = f"{count:,} × {size} B, {codec}, {'keys' if keyed else 'no keys'}"
    return Row(what, count / seconds, "rows/s", count / best, f"({count * size / seconds / 1e6:,.0f} MB/s)")


def count_rows(reader: DataFrameReader, count: int, size: int) -> float:
    """Seconds until Spark has counted the rows and the bytes of their values."""
    start = time.perf_counter()
    (row,) = reader.load().selectExpr("count(*)", "sum(length(value))").collect()
    assert tuple(row) == (count, count * size), row
    return time.perf_counter() - start
