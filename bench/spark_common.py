"""What the Spark measurements share: a session, topics filled column by column, rounds that alternate.

`PYKAFKA_BENCH_SPARK_KAFKA` names the jars of Spark's own Kafka connector, separated by commas, for beside_spark.py.

Values are JSON-like and of one length, so that compression has something to do; they lie in record batches of 16 KiB,
a Kafka producer's default.
"""

from __future__ import annotations

import functools
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import encode_columns
from broker.records.compression import Codec

PARTITIONS = 4
SPARKS_OWN = os.environ.get("PYKAFKA_BENCH_SPARK_KAFKA", "")
SPARK_AVRO = os.environ.get("PYKAFKA_BENCH_SPARK_AVRO", "")
SPARK_PROTOBUF = os.environ.get("PYKAFKA_BENCH_SPARK_PROTOBUF", "")
"""The jars of spark-avro and spark-protobuf, whose functions typed_read_bench.py measures."""
KAFKA = os.environ.get("PYKAFKA_BENCH_KAFKA", "")
CHUNK_ROWS = 10_000

_START_MS = time.time_ns() // 1_000_000  # older records would be deleted by retention in the middle of a run


@contextmanager
def bench_session(*sources: type[DataSource]) -> Iterator[SparkSession]:
    """A quiet local session of two cores that knows `sources`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.jars", ",".join(filter(None, (SPARKS_OWN, SPARK_AVRO, SPARK_PROTOBUF))))
        .getOrCreate()
    )
    for source in sources:
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()


def in_a_fresh_session(directory: Path, module: str, *arguments: str) -> float:
    """The last word that `python -m MODULE …` prints, which begins a session as a user's does: modules are compiled
    once, into `directory`, and hypothesis is hidden. kio imports that where it is installed, a quarter of a second."""
    hidden = directory / "hidden" / "hypothesis.py"
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text("raise ImportError('for tests only')\n")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(hidden.parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONPYCACHEPREFIX": str(directory / "bytecode"),
    }
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return float(done.stdout.split()[-1])


@functools.cache
def values(size: int, rows: int = CHUNK_ROWS) -> pa.Array:
    """`rows` JSON-like values of `size` bytes each; kept, so that a Python worker makes them once."""
    chance = random.Random(size)
    prose = "".join(chance.choices("aeinorst ", k=1 << 16))
    made = []
    for number in range(rows):
        begin = chance.randrange(len(prose) - size)
        text = f'{{"id": {number}, "flight": "UA{chance.randrange(9999)}", "delay": {chance.random():.3f}, "text": "'
        made.append((text + prose[begin : begin + size - len(text) - 2] + '"}').encode())
    assert {len(value) for value in made} == {size}
    return pa.array(made, pa.binary())


@functools.cache
def keys(rows: int = CHUNK_ROWS) -> pa.Array:
    """`rows` different keys of 13 bytes."""
    return pa.array([f"key-{number:09}".encode() for number in range(rows)], pa.binary())


def fill(
    bootstrap: str,
    topic: str,
    chunk: pa.Array,
    rows: int,
    *,
    keyed: bool,
    codec: Codec,
    partitions: int | range = PARTITIONS,
) -> None:
    """`rows` records, a multiple of `partitions` × `chunk`, evenly over so many partitions, or these."""
    numbers = range(partitions) if isinstance(partitions, int) else partitions
    key = keys(len(chunk)) if keyed else None
    batches = encode_columns(key, chunk, _START_MS, codec=codec)
    with Cluster(bootstrap) as cluster:
        for partition in numbers:
            with BatchProducer(cluster) as producer:
                for batch in batches * (rows // len(numbers) // len(chunk)):
                    producer.send(TopicPartition(topic, partition), batch)
                producer.flush()


def alternate(rounds: int, *cases: Callable[[], float]) -> list[float]:
    """Median seconds of each case over rounds that alternate between them, after one round to warm up."""
    taken = [[case() for case in cases] for _ in range(rounds + 1)][1:]
    return [statistics.median(column) for column in zip(*taken, strict=True)]


class Cpu(NamedTuple):
    """CPU seconds of Spark."""

    jvm: float
    python: float

    @property
    def total(self) -> float:
        return self.jvm + self.python


def spark_cpu() -> Cpu:
    """Of the JVM, and of its Python workers with those that have ended."""
    jvm = python = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            command = process.cmdline()
            if "broker" in " ".join(command[:4]):
                continue
            times = process.cpu_times()
        except psutil.Error:
            continue  # it has ended meanwhile
        own = times.user + times.system
        if "java" in command[0]:
            jvm += own
        else:
            python += own
        python += times.children_user + times.children_system
    return Cpu(jvm, python)


def alternate_cpu(rounds: int, ways: Sequence[Callable[[], object]]) -> list[Cpu]:
    """The median CPU seconds of each way, after a round that does not count."""
    taken: list[list[Cpu]] = [[] for _ in ways]
    for turn in range(rounds + 1):
        for way, found in zip(ways, taken, strict=True):
            before = spark_cpu()
            way()
            if turn:
                after = spark_cpu()
                found.append(Cpu(after.jvm - before.jvm, after.python - before.python))
    return [sorted(found, key=lambda one: one.total)[len(found) // 2] for found in taken]
