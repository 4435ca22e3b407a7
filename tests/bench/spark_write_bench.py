"""Spark writes to a topic, against an Arrow writer that throws the rows away.

What the writer is given is made by the JVM as it goes, in both cases the same; the difference is encoding, sending,
and with exactly-once delivery the transactions.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from tests.bench.measure import Row, broker_target
from tests.bench.spark_common import PARTITIONS, alternate, bench_session, values

ROUNDS = 4
COUNTS = {100: 4_000_000, 1024: 800_000}


class Nowhere(DataSource):
    """The ceiling: takes Arrow batches and forgets them."""

    @classmethod
    def name(cls) -> str:
        return "nowhere_ceiling"

    def writer(self, schema: StructType, overwrite: bool) -> NowhereWriter:
        return NowhereWriter()


class NowhereWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rows per second of key + value, by delivery and size."""
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        bench_session(Nowhere) as spark,
    ):
        for size, most in COUNTS.items():
            count = max(int(most * scale), PARTITIONS)
            deliveries = ("at-least-once", "exactly-once")
            for delivery in deliveries:
                yield _case(spark, target.bootstrap, delivery, size, count)


def _case(spark: SparkSession, bootstrap: str, delivery: str, size: int, count: int) -> Row:
    number = "lpad(cast(id AS string), 13, '0')"
    text = values(size)[0].as_py().decode()[13:].replace("'", " ")
    frame = spark.range(count, numPartitions=PARTITIONS).selectExpr(
        f"cast({number} AS binary) AS key", f"cast(concat({number}, '{text}') AS binary) AS value"
    )
    topic = f"written-{size}-{delivery}"
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(topic, PARTITIONS)
        mine, best = alternate(
            ROUNDS,
            lambda: _write(
                frame, "pykafka", {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": delivery}
            ),
            lambda: _write(frame, "nowhere_ceiling", {}),
        )
        Admin(cluster).delete_topics([topic])
    what = f"batch write {delivery}, {count:,} × {size} B with keys"
    return Row(what, count / mine, "rows/s", count / best, f"({count * size / mine / 1e6:,.0f} MB/s)")


def _write(frame: DataFrame, format: str, options: dict[str, str]) -> float:
    start = time.perf_counter()
    frame.write.format(format).options(**options).mode("append").save()
    return time.perf_counter() - start
