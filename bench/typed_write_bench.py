"""Typed writes against Spark's own functions: `valueFormat` of this sink, and `to_json` before a write of bytes.

Five columns (number, double, text, timestamp, boolean) are made by the JVM as it goes. CPU seconds of all of Spark (JVM
and Python workers) are counted, because a busy machine changes these less than the time. Cases of one size alternate in
one session. `to_avro` takes part where `PYKAFKA_BENCH_SPARK_AVRO` names the jar of spark-avro.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.measure import Row, broker_target
from bench.spark_common import PARTITIONS, bench_session
from bench.spark_write_bench import Nowhere
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from spark_connector.formats.avro_encoder import AvroEncoder
from spark_connector.formats.json_encoder import JsonEncoder
from spark_connector.formats.value_encoder import ValueEncoder
from spark_connector.formats.value_format import AvroSchema

ROUNDS = 3
ROWS = 2_000_000
BATCH = 10_000
AVRO_JAR = os.environ.get("PYKAFKA_BENCH_SPARK_AVRO", "")
_COLUMNS = (
    "id",
    "round(id % 9973 / 7D, 2) AS amount",
    "concat('customer-', id % 5000) AS customer",
    "timestamp_millis(1700000000000 + id) AS at",
    "id % 3 = 0 AS paid",
)
_SCHEMA = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": '
    '["null", "double"]}, {"name": "customer", "type": "string"}, {"name": "at", "type": {"type": "long", '
    '"logicalType": "timestamp-micros"}}, {"name": "paid", "type": "boolean"}]}'
)


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rows per CPU second; the ceiling of a case is Spark's function in its place."""
    count = max(int(ROWS * scale), PARTITIONS)
    if AVRO_JAR:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {AVRO_JAR} pyspark-shell"
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        bench_session(Nowhere) as spark,
    ):
        yield from _functions(spark, count)
        yield from _writes(spark, target.bootstrap, count)


def _orders(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count, numPartitions=PARTITIONS).selectExpr(*_COLUMNS)


def _by_spark(frame: DataFrame, format: str) -> DataFrame:
    columns = F.struct(*frame.columns)
    if format == "json":
        return frame.select(F.to_json(columns).alias("value"))
    from pyspark.sql.avro.functions import to_avro

    return frame.select(to_avro(columns, _SCHEMA).alias("value"))


def _formats() -> tuple[str, ...]:
    return ("json", "avro") if AVRO_JAR else ("json",)


def _functions(spark: SparkSession, count: int) -> Iterator[Row]:
    """The encoder alone, on a batch as Spark makes it, and Spark's function alone: less what making the rows costs."""
    frame = _orders(spark, count)
    rows = frame.limit(BATCH).toArrow().combine_chunks().to_struct_array().combine_chunks()
    encoders: dict[str, ValueEncoder] = {
        "json": JsonEncoder(rows.type),
        "avro": AvroEncoder(AvroSchema(_SCHEMA), rows.type),
    }
    for format in _formats():
        made = _by_spark(frame, format)
        ways = [functools.partial(_to_noop, frame), functools.partial(_to_noop, made)]
        plain, with_function = _alternate(ways)
        ours = min(_process_s(encoders[format], rows) for _ in range(20)) / BATCH
        spark_s = max(with_function - plain, 1e-9) / count
        yield Row(f"encoding 5 columns to {format}", 1 / ours, "rows/CPU s", 1 / spark_s)


def _writes(spark: SparkSession, bootstrap: str, count: int) -> Iterator[Row]:
    frame = _orders(spark, count)
    for format in _formats():
        options = {"valueFormat": format, **({"valueSchema": _SCHEMA} if format == "avro" else {})}
        ways = [
            functools.partial(_to_topic, frame, bootstrap, options),
            functools.partial(_to_topic, _by_spark(frame, format), bootstrap, {}),
        ]
        typed, by_hand = _alternate(ways)
        yield Row(f"batch write of 5 columns as {format}", count / typed, "rows/CPU s", count / by_hand)


def _alternate(ways: Sequence[Callable[[], None]]) -> list[float]:
    """The median CPU seconds of each way, after a round that does not count."""
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(ROUNDS + 1):
        for way, found in zip(ways, taken, strict=True):
            before = _spark_cpu_s()
            way()
            if turn:
                found.append(_spark_cpu_s() - before)
    return [statistics.median(one) for one in taken]


def _spark_cpu_s() -> float:
    """Of the JVM, its Python workers, and those that have ended."""
    seconds = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "broker" not in " ".join(process.cmdline()[:4]):
                times = process.cpu_times()
                seconds += times.user + times.system + times.children_user + times.children_system
        except psutil.Error:
            continue  # it has ended meanwhile
    return seconds


def _process_s(encoder: ValueEncoder, rows: pa.StructArray) -> float:
    start = time.process_time()
    encoder.encode(rows)
    return time.process_time() - start


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _to_topic(frame: DataFrame, bootstrap: str, options: dict[str, str]) -> None:
    """A topic for each write, as in spark_write_bench.py."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic("typed", PARTITIONS)
        try:
            given = {"kafka.bootstrap.servers": bootstrap, "topic": "typed", **options}
            frame.write.format("pykafka").options(**given).mode("append").save()
        finally:
            Admin(cluster).delete_topics(["typed"])
