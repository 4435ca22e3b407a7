"""Loads into tables, beside Spark's own writer of files and beside the same Arrow batches written from memory.

The topic lies in the Apache Kafka at `PYKAFKA_BENCH_KAFKA`, else in our broker; the title says which. Spark's writer
over our source is at least once and keeps Spark's default (snappy); loads and the ceiling write zstd. The ceiling has
no Spark, no network and no commit: one pyarrow writer for each core. Beside Spark's own source loads are measured by
beside_spark.py.

Loads must be able to do what they are measured at: a kind of table, upserts or a read of history and tail that this
version lacks ends the run with its error.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from bench.measure import Row, broker_target
from bench.spark_common import KAFKA, PARTITIONS, alternate, bench_session, fill, in_a_fresh_session, values
from bench.spark_read_bench import MemoryReader
from broker.client.admin import Admin
from broker.client.batch_producer import BatchProducer
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import encode_columns
from broker.records.compression import Codec
from spark_connector.load import load

CASES = [(100, 4_000_000), (1024, 800_000)]
ROUNDS = 2
FIRST_ROUNDS = 2  # one where only a share of the records is measured
SMALL_ROUNDS = 5
NEW_RECORDS = 1_000
CHUNK_ROWS = 10_000
CUSTOMERS = 1_000_000
CHANGES = 50_000
TAIL = 50_000

CATALOG, NAMESPACE = "bench", "lake"
KINDS = ("parquet", "delta", "iceberg")

_names = itertools.count(1)


@dataclass(frozen=True)
class Place:
    """Where all that is written goes: `directory`, with a warehouse of Iceberg in it."""

    directory: Path

    def announce_catalog(self) -> None:
        """Tell pyiceberg of the catalog; processes that are started from here know it as well."""
        (self.directory / "warehouse").mkdir(exist_ok=True)
        os.environ[f"PYICEBERG_CATALOG__{CATALOG.upper()}__TYPE"] = "sql"
        os.environ[f"PYICEBERG_CATALOG__{CATALOG.upper()}__URI"] = f"sqlite:///{self.directory}/catalog.db"
        os.environ[f"PYICEBERG_CATALOG__{CATALOG.upper()}__WAREHOUSE"] = f"file://{self.directory}/warehouse"

    def make_namespace(self) -> None:
        """The namespace of the tables; after `announce_catalog`."""
        from pyiceberg.catalog import load_catalog  # it reads the variables when it is imported

        load_catalog(CATALOG).create_namespace(NAMESPACE)

    def target(self, kind: str) -> dict[str, Any]:
        """Arguments of `load` for a table of its own, and a group."""
        name = f"{kind}{next(_names)}_{os.getpid()}"
        if kind == "iceberg":
            return {"to": f"iceberg:{NAMESPACE}.{name}", "catalog": CATALOG, "group": name}
        return {"to": str(self.directory / "tables" / name), "format": kind, "group": name}

    def empty(self) -> None:
        """Remove the data, which would fill the disk. The catalog goes on knowing tables that are gone."""
        for name in ("tables", "warehouse", "spark", "memory"):
            shutil.rmtree(self.directory / name, ignore_errors=True)


def run(scale: float = 1.0) -> Iterator[Row]:
    """Rates, first loads, small loads, upserts and reads of history with tail."""
    with ExitStack() as stack:
        place = Place(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        place.announce_catalog()
        place.make_namespace()
        source = KAFKA or stack.enter_context(broker_target(place.directory / "data", PARTITIONS)).bootstrap
        kafka = "Apache Kafka" if KAFKA else "our broker"
        topics = [_filled(source, size, _rounded(most * scale)) for size, most in CASES]
        try:
            yield from _first_loads(place, source, topics[0], kafka, FIRST_ROUNDS if scale >= 1 else 1)
            with bench_session() as spark:
                for topic in topics:
                    yield from _rates(spark, place, source, topic, kafka)
                yield from _small_loads(spark, place, source)
                yield from _upserts(spark, place, source, scale)
                yield from _history_and_tail(spark, place, source, topics[0])
        finally:
            with Cluster(source) as cluster:
                Admin(cluster).delete_topics([topic.name for topic in topics])


@dataclass(frozen=True)
class Topic:
    """A topic of the bench: `rows` records of `size` bytes without keys."""

    name: str
    size: int
    rows: int


def _rounded(rows: float) -> int:
    return max(int(rows) // (PARTITIONS * CHUNK_ROWS), 1) * PARTITIONS * CHUNK_ROWS


def _filled(bootstrap: str, size: int, rows: int) -> Topic:
    topic = _created(bootstrap, f"bench-load-{size}")
    fill(bootstrap, topic, values(size), rows, keyed=False, codec=Codec.NONE)
    return Topic(topic, size, rows)


def _created(bootstrap: str, name: str) -> str:
    name = f"{name}-{os.getpid()}"
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(name, PARTITIONS)
    return name


# --- a whole topic


def spark_write(spark: SparkSession, format: str, bootstrap: str, topic: str, to: Path) -> None:
    """The topic by Spark's own writer of parquet, at least once; `format` is the source."""
    frame: DataFrame = (
        spark.read.format(format)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    frame.write.parquet(str(to))


def load_all(spark: SparkSession, place: Place, kind: str, bootstrap: str, topic: Topic) -> None:
    """The topic by a load into a new table. Raises AssertionError where it has not as many rows."""
    done = load(spark, bootstrap_servers=bootstrap, topic=topic.name, **place.target(kind), publish_offsets=False)
    assert done.rows == topic.rows, done.rows


def write_from_memory(place: Place, topic: Topic) -> None:
    """The ceiling: what a read yields, from memory, by pyarrow, a file for each partition."""
    reader = MemoryReader(topic.rows, topic.size, keyed=False)
    directory = place.directory / "memory" / str(next(_names))
    directory.mkdir(parents=True)

    def write(number: int) -> None:
        batches = reader.read(reader.partitions()[number])
        first = next(batches)
        file = directory / f"{number}.parquet"
        with pyarrow.parquet.ParquetWriter(file, first.schema, compression="zstd", write_page_index=True) as writer:
            for batch in itertools.chain([first], batches):
                writer.write_batch(batch)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write, range(PARTITIONS)))


def _rates(spark: SparkSession, place: Place, bootstrap: str, topic: Topic, kafka: str) -> Iterator[Row]:
    """Rows per second of each way, warm; the ceiling is the write from memory."""

    def by_load(kind: str) -> Callable[[], None]:
        return lambda: load_all(spark, place, kind, bootstrap, topic)

    def by_spark() -> None:
        spark_write(spark, "pykafka", bootstrap, topic.name, place.directory / "spark" / str(next(_names)))

    ways = {"our source, Spark's parquet writer, at least once": by_spark}
    ways |= {f"load to {kind}, exactly once": by_load(kind) for kind in KINDS}
    ways["from memory"] = lambda: write_from_memory(place, topic)
    cases = [_timed_and_emptied(place, way) for way in ways.values()]
    *taken, best = alternate(ROUNDS, *cases)
    base = taken[0]
    for way, seconds in zip(ways, taken, strict=False):
        what = f"{topic.rows:,} × {topic.size} B from {kafka}, {way}"
        note = f"({topic.rows * topic.size / seconds / 1e6:,.0f} MB/s; {base / seconds:.1f} × the first of this size)"
        yield Row(what, topic.rows / seconds, "rows/s", topic.rows / best, note)


def _timed_and_emptied(place: Place, way: Callable[[], None]) -> Callable[[], float]:
    def case() -> float:
        seconds = seconds_of(way)
        place.empty()
        return seconds

    return case


def seconds_of(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# --- the first of a session


def _first_loads(place: Place, bootstrap: str, topic: Topic, kafka: str, rounds: int) -> Iterator[Row]:
    """Seconds from the session's start to the end of its first load of the topic, each in a process of its own."""
    ways = ["pykafka", "parquet", "iceberg"]
    said = {"pykafka": "our source, Spark's writer"}
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            taken[way].append(first_load(place, way, bootstrap, topic))
            place.empty()
    base = statistics.median(taken[ways[0]])
    for way in ways:
        what = f"first of a session, {topic.rows:,} × {topic.size} B from {kafka}, {said.get(way, f'load to {way}')}"
        yield Row(what, statistics.median(taken[way]), "s", base, f"(ceiling: {said[ways[0]]})")


def first_load(place: Place, way: str, bootstrap: str, topic: Topic) -> float:
    """Seconds of a fresh session's first load; `way` is a kind of table, or a source for Spark's writer."""
    given = json.dumps([way, bootstrap, topic.name, topic.size, topic.rows, str(place.directory)])
    return in_a_fresh_session(place.directory, "bench.load_first", given)


# --- small loads


def _small_loads(spark: SparkSession, place: Place, bootstrap: str) -> Iterator[Row]:
    """Median seconds of a load of a thousand new records, and of one that finds nothing, in a session that is warm."""
    topic = _created(bootstrap, "bench-load-small")
    targets = {kind: place.target(kind) for kind in KINDS}
    some: dict[str, list[float]] = {kind: [] for kind in KINDS}
    nothing: dict[str, list[float]] = {kind: [] for kind in KINDS}
    by_spark: list[float] = []

    def run_load(kind: str) -> int:
        return load(spark, bootstrap_servers=bootstrap, topic=topic, **targets[kind], publish_offsets=False).rows

    for _ in range(SMALL_ROUNDS + 1):
        fill(bootstrap, topic, values(100, NEW_RECORDS // PARTITIONS), NEW_RECORDS, keyed=False, codec=Codec.NONE)
        to = place.directory / "spark" / str(next(_names))
        by_spark.append(seconds_of(functools.partial(spark_write, spark, "pykafka", bootstrap, topic, to)))
        for kind in KINDS:
            begun = time.perf_counter()
            assert run_load(kind) == NEW_RECORDS
            some[kind].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            assert run_load(kind) == 0
            nothing[kind].append(time.perf_counter() - begun)
    base = statistics.median(by_spark[1:])
    for kind in KINDS:
        note = "(ceiling: Spark's writer over our source)"
        yield Row(f"{NEW_RECORDS:,} new records, load to {kind}", statistics.median(some[kind][1:]), "s", base, note)
        yield Row(f"nothing new, load to {kind}", statistics.median(nothing[kind][1:]), "s")
    place.empty()


# --- upserts


def _upserts(spark: SparkSession, place: Place, bootstrap: str, scale: float) -> Iterator[Row]:
    """Events per second of a load of changes into a table of customers, each of which rewrites it."""
    customers, changes = _rounded(CUSTOMERS * scale), max(int(CHANGES * scale), 1_000) // PARTITIONS * PARTITIONS
    for kind in KINDS[1:]:
        topic = _created(bootstrap, f"bench-load-changes-{kind}")
        arguments: dict[str, Any] = {
            **place.target(kind),
            "bootstrap_servers": bootstrap,
            "topic": topic,
            "options": {"valueFormat": "json", "valueSchema": "id BIGINT, name STRING"},
            "mode": "upsert",
            "key": "id",
            "publish_offsets": False,
        }
        _produce_customers(bootstrap, topic, customers, "first")
        first = seconds_of(functools.partial(load, spark, **arguments))
        yield Row(f"upsert into an empty {kind} table, {customers:,} keys", customers / first, "events/s")
        taken = []
        for name in ("second", "third", "fourth"):
            _produce_customers(bootstrap, topic, changes, name)
            taken.append(seconds_of(functools.partial(load, spark, **arguments)))
        seconds = statistics.median(taken)
        what = f"upsert of {changes:,} events into a {kind} table of {customers:,} rows"
        yield Row(what, changes / seconds, "events/s", note=f"({seconds:.2g} s)")
        place.empty()


def _produce_customers(bootstrap: str, topic: str, count: int, name: str) -> None:
    """A record for each of the first `count` keys, each key always in the same partition."""
    now = time.time_ns() // 1_000_000
    with Cluster(bootstrap) as cluster:
        for partition in range(PARTITIONS):
            ids = range(partition, count, PARTITIONS)
            keys = pa.array([str(id).encode() for id in ids], pa.binary())
            rows = pa.array([f'{{"id": {id}, "name": "{name} {id}"}}'.encode() for id in ids], pa.binary())
            with BatchProducer(cluster) as producer:
                for batch in encode_columns(keys, rows, now, codec=Codec.NONE):
                    producer.send(TopicPartition(topic, partition), batch)
                producer.flush()


# --- history and tail


def _history_and_tail(spark: SparkSession, place: Place, bootstrap: str, topic: Topic) -> Iterator[Row]:
    """Rows per second of a count over a table and the records after it, against a count over the table alone."""
    history = topic.rows - min(TAIL, topic.rows // 2)
    for kind in KINDS[1:]:
        target = place.target(kind)
        load(
            spark,
            bootstrap_servers=bootstrap,
            topic=topic.name,
            max_records=history,
            publish_offsets=False,
            **target,
        )
        where = target["to"] if kind == "iceberg" else f"delta:{target['to']}"
        reader = (
            spark.read.format("pykafka")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("subscribe", topic.name)
            .option("history", where)
            .option("group", target["group"])
        )
        if kind == "iceberg":
            reader = reader.option("catalog", CATALOG)
        alone = spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
        alone = alone.option("subscribe", topic.name)

        ways = (functools.partial(_count, frame, topic.rows) for frame in (reader, alone))
        seconds, of_topic = alternate(ROUNDS, *ways)
        what = f"history in {kind} and tail of {topic.rows - history:,} as one, {topic.rows:,} × {topic.size} B"
        yield Row(what, topic.rows / seconds, "rows/s", topic.rows / of_topic, "(ceiling: the topic alone)")
        place.empty()


def _count(reader: DataFrameReader, rows: int) -> float:
    begun = time.perf_counter()
    (row,) = reader.load().selectExpr("count(*)", "sum(length(value))").collect()
    assert row[0] == rows, row
    return time.perf_counter() - begun
