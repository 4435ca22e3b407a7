"""Spark reads typed values: `valueFormat` against Spark's own functions on the bytes that the same source gives.

The floor is the same source that gives the bytes as they are, and the ceiling one that gives the typed batches from
memory. Each way materialises all fields of all rows. Avro is in Confluent's wire format, whose prefix is cut off by
hand before `from_avro`. That function needs the jar of spark-avro, which `PYKAFKA_BENCH_SPARK_AVRO` names, and
`from_protobuf` those that `PYKAFKA_BENCH_SPARK_PROTOBUF` names. On what Spark's own source gives they are measured by
beside_spark.py.

`run_decoder` measures the decoders alone, with the kernel and without.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import fastavro
import psutil
import pyarrow as pa
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.measure import Row, broker_target
from bench.spark_common import (
    CHUNK_ROWS,
    PARTITIONS,
    SPARK_AVRO,
    SPARK_PROTOBUF,
    alternate,
    bench_session,
    fill,
)
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec
from spark_connector.formats.avro_decoder import AvroDecoder
from spark_connector.formats.json_decoder import JsonDecoder
from spark_connector.formats.schema_text import parse_ddl
from spark_connector.formats.value_format import AvroSchema
from spark_connector.read.arrow_batches import DECODED_ROWS
from tests.support.codec_choice import in_turn
from tests.support.protobuf_cases import add
from tests.support.schema_registry import Registry, schema_registry

ROUNDS = 4
COUNT = 4_000_000
_AT: Final = {"type": "long", "logicalType": "timestamp-micros"}
_FIELDS: Final = {"id": "long", "customer": "string", "amount": "double", "status": "string", "at": _AT}
SCHEMA: Final = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": name, "type": ["null", kind], "default": None} for name, kind in _FIELDS.items()],
}
DDL: Final = "id BIGINT, customer STRING, amount DOUBLE, status STRING, at TIMESTAMP"


class TypedMemory(DataSource):
    """The ceiling: option `rows` typed values out of memory."""

    @classmethod
    def name(cls) -> str:
        return "typed_memory"

    def schema(self) -> str:
        return f"value STRUCT<{DDL}>"

    def reader(self, schema: StructType) -> TypedReader:
        return TypedReader(int(self.options["rows"]))


class TypedReader(DataSourceReader):
    """Arrow batches of as many rows as the connector puts there, given as often as needed."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        gc.freeze()  # as the connector: else Spark's daemon looks through all modules after each task
        left = self._rows // PARTITIONS
        while left > 0:
            yield typed_batch().slice(0, left)
            left -= DECODED_ROWS


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rows per second of all rows, as columns, and those of Spark's functions beside it as the ceiling."""
    count = max(int(COUNT * scale) // (PARTITIONS * CHUNK_ROWS), 1) * PARTITIONS * CHUNK_ROWS
    with (
        tempfile.TemporaryDirectory() as directory,
        broker_target(Path(directory) / "data", PARTITIONS) as target,
        schema_registry() as registry,
        bench_session(TypedMemory) as spark,
    ):
        for name, one in formats(registry, Path(directory)).items():
            with Cluster(target.bootstrap) as cluster:
                Admin(cluster).create_topic(f"bench-{name}", PARTITIONS)
            fill(target.bootstrap, f"bench-{name}", one.chunk, count, keyed=False, codec=Codec.NONE)
            yield from _case(spark, target.bootstrap, name, count, one)


class Format(NamedTuple):
    """Values of a format, the options of a read that decode them, and the same by Spark's function."""

    chunk: pa.Array
    options: dict[str, str]
    by_spark: str


def formats(registry: Registry, directory: Path) -> dict[str, Format]:
    """JSON, and Avro and Protobuf where the jars with Spark's functions are at hand."""
    made = {"json": Format(json_values(), {"valueSchema": DDL}, f"from_json(string(value), '{DDL}')")}
    schema = json.dumps(SCHEMA)
    if SPARK_AVRO:
        prefix = b"\0" + registry.register("orders-value", schema).to_bytes(4)
        options = {"valueSchema": schema, "schema.registry.url": registry.url}
        made["avro"] = Format(avro_values(prefix), options, f"from_avro(substring(value, 6), '{schema}')")
    if SPARK_PROTOBUF:
        file, message = directory / "order.desc", "bench.Order"
        file.write_bytes(_order_descriptors().SerializeToString())
        options = {"valueSchema": str(file), "valueMessage": message}
        made["protobuf"] = Format(protobuf_values(), options, f"from_protobuf(value, '{message}', '{file}')")
    return {name: one._replace(options={"valueFormat": name, **one.options}) for name, one in made.items()}


def _case(spark: SparkSession, bootstrap: str, name: str, count: int, one: Format) -> Iterator[Row]:
    raw = _source(spark, bootstrap, name).load()
    frames = {f"from_{name} of pykafka's bytes": raw.selectExpr(f"{one.by_spark} AS value").select("value.*")}
    frames["the bytes as they are"] = raw
    frames["typed batches from memory"] = (
        spark.read.format(TypedMemory.name()).option("rows", count).load().select("value.*")
    )
    typed = _source(spark, bootstrap, name).options(**one.options).load().select("value.*")
    cpu: dict[str, list[float]] = {way: [] for way in ("", *frames)}
    runs = [functools.partial(_all, frame, cpu[way]) for way, frame in {"": typed, **frames}.items()]
    ours, *theirs = alternate(ROUNDS, *runs)
    micros = {way: statistics.median(taken[1:]) / count * 1e6 for way, taken in cpu.items()}
    for way, seconds in zip(frames, theirs, strict=True):
        note = f"({micros['']:.2f} against {micros[way]:.2f} µs of Spark's CPU a row)"
        yield Row(f"{count:,} rows, valueFormat={name}, beside {way}", count / ours, "rows/s", count / seconds, note)


def _source(spark: SparkSession, servers: str, name: str) -> DataFrameReader:
    options = {"kafka.bootstrap.servers": servers, "subscribe": f"bench-{name}", "columns": "value"}
    return spark.read.format("pykafka").options(**options)


def _all(frame: DataFrame, cpu: list[float]) -> float:
    """The seconds that all rows take; `cpu` gets those of the JVM and its Python processes."""
    begin, start = _spark_cpu(), time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - start
    cpu.append(_spark_cpu() - begin)
    return seconds


def _spark_cpu() -> float:
    """Of processes that run, and of their children that ended."""
    jvm = next(one for one in psutil.Process().children() if "SparkSubmit" in " ".join(one.cmdline()))
    taken = 0.0
    for one in (jvm, *jvm.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            taken += times.user + times.system + times.children_user + times.children_system
    return taken


def run_decoder(scale: float = 1.0) -> Iterator[Row]:
    """Values per CPU second of decoders in this process, with 5,000 values in a batch; the best of some rounds."""
    for name, values, decoder in (
        ("avro", avro_values(b"")[:5000], AvroDecoder(AvroSchema(json.dumps(SCHEMA)))),
        ("json", json_values()[:5000], JsonDecoder(parse_ddl(DDL))),
    ):
        for implementation in in_turn():
            best = float("inf")
            for _ in range(max(2, int(20 * scale))):
                start = time.process_time()
                decoder.decode(values)
                best = min(best, time.process_time() - start)
            yield Row(f"{name}, {implementation}", len(values) / best, "values/s")


@functools.cache
def orders() -> list[dict[str, Any]]:
    chance = random.Random(33)
    return [
        {
            "id": number,
            "customer": f"c{chance.randrange(CHUNK_ROWS)}",
            "amount": None if number % 17 == 0 else chance.random() * 1000,
            "status": chance.choice(("new", "paid", "sent", "back")),
            "at": 1_700_000_000_000_000 + chance.randrange(10**14),
        }
        for number in range(CHUNK_ROWS)
    ]


def avro_values(prefix: bytes) -> pa.Array:
    plain = fastavro.parse_schema(json.loads(json.dumps(SCHEMA).replace("logicalType", "was")))
    made = []
    for order in orders():
        stream = io.BytesIO()
        stream.write(prefix)
        fastavro.schemaless_writer(stream, plain, order)
        made.append(stream.getvalue())
    return pa.array(made, pa.binary())


@functools.cache
def typed_batch() -> pa.RecordBatch:
    """Kept, so that a Python worker makes it once."""
    column = AvroDecoder(AvroSchema(json.dumps(SCHEMA))).decode(avro_values(b"")).column
    columns = pa.concat_arrays([column] * (DECODED_ROWS // CHUNK_ROWS))
    return pa.RecordBatch.from_arrays([columns], names=["value"])


def json_values() -> pa.Array:
    shown = [{**order, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(order["at"] / 1e6))} for order in orders()]
    return pa.array([json.dumps(order).encode() for order in shown], pa.binary())


def _order_descriptors() -> FileDescriptorSet:
    """The message of an order, as `protoc --include_imports` writes it."""
    order = DescriptorProto(name="Order")
    kinds = {"id": "int64", "customer": "string", "amount": "double", "status": "string"}
    for number, (name, kind) in enumerate(kinds.items(), 1):
        add(order, name, number, kind)
    add(order, "at", 5, "google.protobuf.Timestamp")
    file = FileDescriptorProto(name="order.proto", package="bench", syntax="proto3", message_type=[order])
    imported = FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    file.dependency.append(imported.name)
    return FileDescriptorSet(file=[imported, file])


def protobuf_values() -> pa.Array:
    pool = DescriptorPool()
    for file in _order_descriptors().file:
        pool.Add(file)
    message = GetMessageClass(pool.FindMessageTypeByName("bench.Order"))
    made = []
    for order in orders():
        seconds, micros = divmod(order["at"], 1_000_000)
        made.append(message(**{**order, "at": {"seconds": seconds, "nanos": micros * 1000}}).SerializeToString())
    return pa.array(made, pa.binary())
