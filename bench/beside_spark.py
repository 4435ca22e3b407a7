"""Our connector beside Spark's own in one session of Spark, in turns; theirs is in the ceiling's column.

`PYKAFKA_BENCH_SPARK_KAFKA` names the jars of Spark's own connector. It works with the Kafka at `PYKAFKA_BENCH_KAFKA`;
without one both work with our broker, so that the connectors alone are compared. Theirs is at least once, our writes
and loads are exactly once. Avro and Protobuf need the jars that `PYKAFKA_BENCH_SPARK_AVRO` and
`PYKAFKA_BENCH_SPARK_PROTOBUF` name.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame

from bench import spark_cost_bench
from bench.beside_kafka import START, apache_kafka
from bench.empty_source import Nowhere
from bench.load_bench import Place, Topic, first_load, load_all, seconds_of, spark_write
from bench.measure import Row, broker_target
from bench.spark_common import (
    CHUNK_ROWS,
    KAFKA,
    PARTITIONS,
    SPARKS_OWN,
    alternate,
    bench_session,
    fill,
    in_a_fresh_session,
    values,
)
from bench.spark_cost_bench import durations_of_batches
from bench.spark_read_bench import count_rows
from bench.spark_write_bench import rows_to_write, write_to_topic
from bench.typed_read_bench import formats
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.records.compression import Codec
from tests.support.schema_registry import schema_registry

ROUNDS = 3
FIRST_ROUNDS = 2
LOADED = READ = {100: 4_000_000, 1024: 800_000}
WRITTEN = {100: 1_000_000, 1024: 200_000}
TYPED = 2_000_000


class Sides(NamedTuple):
    """Where each connector finds its Kafka, and a directory that is removed at the end."""

    ours: str
    theirs: str
    directory: Path

    @property
    def ways(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """Format and bootstrap servers of each."""
        return ("pykafka", self.ours), ("kafka", self.theirs)


@contextlib.contextmanager
def _sides() -> Iterator[Sides]:
    if not SPARKS_OWN:
        raise SystemExit("PYKAFKA_BENCH_SPARK_KAFKA is not set; set it to the jars of Spark's own Kafka connector")
    with tempfile.TemporaryDirectory() as directory, broker_target(Path(directory) / "data", PARTITIONS) as target:
        yield Sides(target.bootstrap, KAFKA or target.bootstrap, Path(directory))


@contextlib.contextmanager
def _topics(sides: Sides, sizes: dict[int, int], scale: float, *, keyed: bool) -> Iterator[list[Topic]]:
    """A topic for each size, the same at both sides, uncompressed."""
    topics = [Topic(f"beside-{os.getpid()}-{size}", size, _rounded(rows * scale)) for size, rows in sizes.items()]
    servers = {sides.ours, sides.theirs}
    for place in servers:
        for topic in topics:
            _create(place, topic.name)
            fill(place, topic.name, values(topic.size), topic.rows, keyed=keyed, codec=Codec.NONE)
    yield topics
    for place in servers:
        with Cluster(place) as cluster:
            Admin(cluster).delete_topics([topic.name for topic in topics])


def _rounded(rows: float) -> int:
    return max(int(rows) // (PARTITIONS * CHUNK_ROWS), 1) * PARTITIONS * CHUNK_ROWS


def _create(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topic(topic, PARTITIONS)


def _row(case: str, rows: int, ours: float, theirs: float) -> Row:
    """Rates of what took each so many seconds."""
    return Row(case, rows / ours / 1e6, "M rows/s", rows / theirs / 1e6)


def run_loads(scale: float = 1.0) -> Iterator[Row]:
    """A topic into files of parquet, warm: a load, and Spark's source and writer."""
    with _sides() as sides, _topics(sides, LOADED, scale, keyed=False) as topics, bench_session() as spark:
        place = Place(sides.directory)

        def timed(work: Callable[[], None]) -> float:
            seconds = seconds_of(work)
            place.empty()
            return seconds

        for topic in topics:
            written = functools.partial(
                spark_write, spark, "kafka", sides.theirs, topic.name, sides.directory / "spark" / "theirs"
            )
            loaded = functools.partial(load_all, spark, place, "parquet", sides.ours, topic)
            ours, theirs = alternate(ROUNDS, functools.partial(timed, loaded), functools.partial(timed, written))
            yield _row(f"load to parquet, {topic.rows:,} × {topic.size} B", topic.rows, ours, theirs)


def run_first_loads(scale: float = 1.0) -> Iterator[Row]:
    """The same as the first work of a session, without the session's start."""
    with _sides() as sides, _topics(sides, LOADED, scale, keyed=False) as topics:
        place = Place(sides.directory)
        for topic in topics:

            def first(way: str, bootstrap: str, topic: Topic = topic) -> float:
                seconds = first_load(place, way, bootstrap, topic)
                place.empty()
                return seconds

            ours, theirs = alternate(
                FIRST_ROUNDS, lambda: first("parquet", sides.ours), lambda: first("kafka", sides.theirs)
            )
            yield Row(f"first load of a session, {topic.rows:,} × {topic.size} B", ours, "s", theirs)


def run_reads(scale: float = 1.0) -> Iterator[Row]:
    """`count(*), sum(length(value))` over records with keys."""
    with _sides() as sides, _topics(sides, READ, scale, keyed=True) as topics, bench_session() as spark:
        for topic in topics:
            ways = [
                functools.partial(
                    count_rows,
                    spark.read.format(format).options(**_where(servers, topic.name)),
                    topic.rows,
                    topic.size,
                )
                for format, servers in sides.ways
            ]
            yield _row(f"read, {topic.rows:,} × {topic.size} B", topic.rows, *alternate(ROUNDS, *ways))


def run_writes(scale: float = 1.0) -> Iterator[Row]:
    """Rows with keys into a new topic; ours exactly once."""
    with _sides() as sides, bench_session() as spark:
        for size, most in WRITTEN.items():
            rows = int(most * scale)
            frame = rows_to_write(spark, size, rows)
            options: tuple[dict[str, str], ...] = ({"delivery": "exactly-once"}, {})
            ways = [
                functools.partial(write_to_topic, frame, *way, given, "beside-written")
                for way, given in zip(sides.ways, options, strict=True)
            ]
            ours, theirs = alternate(ROUNDS, *ways)
            yield _row(f"write, {rows:,} × {size} B", rows, ours, theirs)


def run_first_writes(scale: float = 1.0) -> Iterator[Row]:
    """The same as the first work of a session, without the session's start; and what Python's part takes at least."""
    with _sides() as sides:
        for size, most in WRITTEN.items():
            rows = int(most * scale)

            def first(format: str, bootstrap: str, size: int = size, rows: int = rows) -> float:
                return in_a_fresh_session(sides.directory, "bench.write_first", format, bootstrap, str(size), str(rows))

            ways = [*sides.ways, (Nowhere.name(), sides.ours)]
            ours, theirs, floor = alternate(FIRST_ROUNDS, *(functools.partial(first, *way) for way in ways))
            yield _row(f"first write of a session, {rows:,} × {size} B", rows, ours, theirs)
            yield _row("… of a Python sink that throws the rows away", rows, floor, theirs)


def run_typed(scale: float = 1.0) -> Iterator[Row]:
    """`valueFormat`, and Spark's source with from_json, from_avro or from_protobuf; every field of every row."""
    rows = _rounded(TYPED * scale)
    with _sides() as sides, schema_registry() as registry, bench_session() as spark:
        for name, one in formats(registry, sides.directory).items():
            topic = f"beside-{name}"
            for servers in {sides.ours, sides.theirs}:
                _create(servers, topic)
                fill(servers, topic, one.chunk, rows, keyed=False, codec=Codec.NONE)
            (format, servers), (spark_format, spark_servers) = sides.ways
            typed = spark.read.format(format).options(**_where(servers, topic), columns="value", **one.options).load()
            raw = spark.read.format(spark_format).options(**_where(spark_servers, topic)).load()
            frames = (typed, raw.selectExpr(f"{one.by_spark} AS value"))
            ways = [functools.partial(seconds_of, functools.partial(_all_fields, frame)) for frame in frames]
            yield _row(f"typed read, {name}, {rows:,} rows", rows, *alternate(ROUNDS, *ways))


def run_micro_batches(scale: float = 1.0) -> Iterator[Row]:
    """The median micro-batch, and what of it Spark's checkpoint takes, at our broker and at an Apache Kafka; beside it
    that of a source of Spark's that makes its rows itself.

    Once records arrive all the time, every 10 ms in each partition, and once a record in each only when the batch
    before is done. In between Spark's own source asks for more at the end of a batch, and waits behind that question
    for the first and last offsets: `fetch.max.wait.ms` for each partition, as a broker answers a connection in order.
    """
    batches = max(int(spark_cost_bench.BATCHES * scale), spark_cost_bench.LEAST_BATCHES)
    with _sides() as sides, _apache_kafka(sides) as places, bench_session() as spark:
        for (where, servers), steady in itertools.product(places.items(), (True, False)):
            topic = f"beside-stream-{steady}".lower()
            _create(servers, topic)
            read = spark.readStream
            frames = [read.format(format).options(**_where(servers, topic)).load() for format, _ in sides.ways]
            frames.append(read.format("rate-micro-batch").options(rowsPerBatch=PARTITIONS, numPartitions=1).load())
            taken: list[list[dict[str, int]]] = [[] for _ in frames]
            for _ in range(max(1, round(spark_cost_bench.MICRO_BATCH_ROUNDS * scale))):
                for frame, found in zip(frames, taken, strict=True):
                    found += durations_of_batches(frame, servers, topic, PARTITIONS, batches, steady=steady)
            when = "records all the time" if steady else "a record each after the batch before"
            for what, parts in (("", ["triggerExecution"]), (", Spark's checkpoint", ["walCommit", "commitOffsets"])):
                case = f"micro-batch at {where}, {PARTITIONS} partitions, {when}{what}"
                ours, theirs, floor = (
                    statistics.median(sum(one.get(part, 0) for part in parts) for one in found) for found in taken
                )
                yield Row(case, ours, "ms", theirs)
                yield Row(f"… of rate-micro-batch{what}", floor, "ms", theirs)


@contextlib.contextmanager
def _apache_kafka(sides: Sides) -> Iterator[dict[str, str]]:
    """Servers by name: our broker's, and another Kafka's if the environment names or starts one."""
    places = {"our broker": sides.ours}
    if sides.theirs != sides.ours:
        yield places | {"their Kafka": sides.theirs}
    elif not START:
        yield places
    else:
        with apache_kafka(1) as target:
            yield places | {target.name: target.bootstrap}


def _where(servers: str, topic: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": servers, "subscribe": topic}


def _all_fields(frame: DataFrame) -> None:
    frame.select("value.*").write.format("noop").mode("overwrite").save()
