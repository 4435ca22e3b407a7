"""Spark writes to a topic, against an Arrow writer that throws the rows away.

What the writer is given is made by the JVM as it goes, in all cases the same; the difference is encoding, sending,
and with exactly-once delivery the transactions. Beside Spark's own sink it is measured by beside_spark.py.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.empty_source import Nowhere
from bench.measure import Row, broker_target
from bench.spark_common import PARTITIONS, alternate, bench_session, values
from broker.client.admin import Admin
from broker.client.cluster import Cluster

ROUNDS = 4
CASES = [(100, 4_000_000), (1024, 800_000), (100, 200_000), (1024, 200_000)]


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rows per second of key + value, by delivery and size."""
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        bench_session(Nowhere) as spark,
    ):
        for size, most in CASES:
            yield from _case(spark, target.bootstrap, size, max(int(most * scale), PARTITIONS))


def rows_to_write(spark: SparkSession, size: int, count: int) -> DataFrame:
    """`count` rows that the JVM makes as it goes: keys of 13 bytes and values of `size`."""
    number = "lpad(cast(id AS string), 13, '0')"
    text = values(size)[0].as_py().decode()[13:].replace("'", " ")
    return spark.range(count, numPartitions=PARTITIONS).selectExpr(
        f"cast({number} AS binary) AS key", f"cast(concat({number}, '{text}') AS binary) AS value"
    )


def _case(spark: SparkSession, bootstrap: str, size: int, count: int) -> Iterator[Row]:
    frame, topic = rows_to_write(spark, size, count), f"written-{size}-{count}"
    ways = {delivery: ("pykafka", bootstrap, {"delivery": delivery}) for delivery in ("at-least-once", "exactly-once")}
    *taken, best = alternate(
        ROUNDS,
        *(functools.partial(write_to_topic, frame, *way, topic) for way in ways.values()),
        lambda: _write(frame, Nowhere.name(), {}),
    )
    for way, seconds in zip(ways, taken, strict=True):
        what = f"batch write, {count:,} × {size} B with keys, {way}"
        yield Row(what, count / seconds, "rows/s", count / best, f"({count * size / seconds / 1e6:,.0f} MB/s)")


def write_to_topic(frame: DataFrame, format: str, bootstrap: str, options: dict[str, str], topic: str) -> float:
    """A topic for each write, so that not the disk is measured, which has to take what was written before."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(topic, PARTITIONS)
        try:
            return _write(frame, format, {"kafka.bootstrap.servers": bootstrap, "topic": topic, **options})
        finally:
            Admin(cluster).delete_topics([topic])


def _write(frame: DataFrame, format: str, options: dict[str, str]) -> float:
    start = time.perf_counter()
    frame.write.format(format).options(**options).mode("append").save()
    return time.perf_counter() - start
