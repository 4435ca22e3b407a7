"""Typed writes against Spark's own functions: `valueFormat` of this sink, and `to_json` before a write of bytes.

Five columns (number, double, text, timestamp, boolean) are made by the JVM as it goes. CPU seconds of all of Spark are
counted, those of the JVM and those of Python, because a busy machine changes these less than the time. Cases of one
size alternate in one session. Two ceilings take part: the same columns to a sink that forgets them (what Spark takes
to hand five columns to Python), and bytes made beforehand to our sink. `to_avro` takes part where
`PYKAFKA_BENCH_SPARK_AVRO` names the jar of spark-avro.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from bench.empty_source import Nowhere
from bench.measure import Row, Target, broker_target
from bench.spark_common import PARTITIONS, alternate_cpu, bench_session
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
_LIMIT = "maxBytesPerBatch"
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
        for rows in dict.fromkeys((PARTITIONS, max(count // 4, PARTITIONS), count)):
            yield from _writes(spark, target, Path(directory), rows)


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
        plain, with_function = (one.total for one in alternate_cpu(ROUNDS, ways))
        ours = min(_process_s(encoders[format], rows) for _ in range(20)) / BATCH
        spark_s = max(with_function - plain, 1e-9) / count
        yield Row(f"encoding 5 columns to {format}", 1 / ours, "rows/CPU s", 1 / spark_s)


def _writes(spark: SparkSession, target: Target, directory: Path, count: int) -> Iterator[Row]:
    """Each way with its CPU in JVM and Python, and how much less it takes than `to_json`; the ceiling is the sink that
    forgets the columns. What making the rows takes is in all. Spark measures a batch after every row that it adds,
    unless `maxBytesPerBatch` is off, which costs the more the more columns there are."""
    frame = _orders(spark, count)
    made = _by_spark(frame, "json").selectExpr("cast(value AS binary) AS value")
    ready = made.cache()
    ready.count()
    schema = directory / "order.desc"
    schema.write_bytes(_descriptor())
    to_topic = functools.partial(_to_topic, bootstrap=target.bootstrap)
    ways: dict[str, Callable[[], None]] = {
        "rows to Spark's noop sink": functools.partial(_to_noop, frame),
        "to a Python sink that forgets them": functools.partial(_to_nowhere, frame),
        "to_json, then bytes": functools.partial(to_topic, _by_spark(frame, "json")),
        "bytes made beforehand": functools.partial(to_topic, ready),
        "valueFormat json": functools.partial(to_topic, frame, valueFormat="json"),
        "valueFormat avro": functools.partial(to_topic, frame, valueFormat="avro", valueSchema=_SCHEMA),
        "valueFormat protobuf": functools.partial(
            to_topic, frame, valueFormat="protobuf", valueSchema=str(schema), valueMessage="Order"
        ),
    }
    if AVRO_JAR:
        ways["to_avro, then bytes"] = functools.partial(to_topic, _by_spark(frame, "avro"))
    unlimited = (way for way in ways if way.startswith(("valueFormat", "to")))
    ways |= {f"{way}, {_LIMIT} off": functools.partial(_without_limit, spark, ways[way]) for way in list(unlimited)}
    taken = dict(zip(ways, alternate_cpu(ROUNDS, list(ways.values())), strict=True))
    ready.unpersist()
    nowhere, peer = taken["to a Python sink that forgets them"], taken["to_json, then bytes"]
    for way, one in taken.items():
        note = f"(JVM {one.jvm:.2f} s, Python {one.python:.2f} s, {peer.total / one.total:.2f} × to_json)"
        yield Row(f"{count:,} rows, {way}", count / one.total, "rows/CPU s", count / nowhere.total, note)


def _process_s(encoder: ValueEncoder, rows: pa.StructArray) -> float:
    start = time.process_time()
    encoder.encode(rows)
    return time.process_time() - start


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _to_nowhere(frame: DataFrame) -> None:
    frame.write.format("nowhere_ceiling").mode("append").save()


def _without_limit(spark: SparkSession, way: Callable[[], None]) -> None:
    spark.conf.set(f"spark.sql.execution.arrow.{_LIMIT}", 2**31 - 1)
    try:
        way()
    finally:
        spark.conf.unset(f"spark.sql.execution.arrow.{_LIMIT}")


def _to_topic(frame: DataFrame, bootstrap: str, **options: str) -> None:
    """A topic for each write, as in spark_write_bench.py."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic("typed", PARTITIONS)
        try:
            given = {"kafka.bootstrap.servers": bootstrap, "topic": "typed", **options}
            frame.write.format("pykafka").options(**given).mode("append").save()
        finally:
            Admin(cluster).delete_topics(["typed"])


def _descriptor() -> bytes:
    """What protoc writes for the message Order, with Google's Timestamp."""
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="order.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    message = file.message_type.add(name="Order")
    kinds = {"id": "INT64", "amount": "DOUBLE", "customer": "STRING", "at": "MESSAGE", "paid": "BOOL"}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        field = message.field.add(name=name, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL)
        field.type = getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{kind}")
        if kind == "MESSAGE":
            field.type_name = ".google.protobuf.Timestamp"
    return files.SerializeToString()
