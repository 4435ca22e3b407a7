"""The demo's steps, each a function that does one thing a user would do.

Called by command.py. Progress is told to a callable, so that the steps know nothing of the terminal.

Console commands of the demo, run as a user runs them: in a process of their own, so that they can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from broker.client.admin import Admin, NewTopic
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.zookeeper.java import set_java_home
from pykafka_demo.flights import SCHEMA, airlines, flights

__all__ = [
    "ConsoleProcess",
    "console_command",
    "delays_by_airline",
    "kill_a_load",
    "load_arguments",
    "produce_flights",
    "spark_session",
    "stream_in_two_runs",
]

Progress = Callable[[int], object]

TOPIC = "flights"
PARTITIONS = 4
STREAM_BATCH = 40_000


def produce_flights(bootstrap: str, progress: Progress) -> int:
    """Send every flight as JSON, keyed by tail number so that a plane's flights stay in order."""
    with Cluster(bootstrap) as cluster:
        Admin(cluster).create_topics([NewTopic(TOPIC, PARTITIONS)])
    sent = 0
    with Producer(bootstrap, {"compression.type": "zstd", "linger.ms": 20, "batch.size": 131072}) as producer:
        for chunk in flights().to_batches(max_chunksize=5_000):
            for row in chunk.to_pylist():
                key = (row["tailnum"] or "").encode() or None
                producer.send(TOPIC, json.dumps(row).encode(), key=key)
            sent += chunk.num_rows
            progress(sent)
        producer.flush()
    return sent


def spark_session() -> SparkSession:
    """Two local cores, quiet; Spark's Python workers are to run this very Python, which has the connector."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    set_java_home()
    return (
        SparkSession.builder.master("local[2]")
        .appName("pykafka demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def read_topic(spark: SparkSession, bootstrap: str) -> DataFrame:
    """The whole topic, as Spark's Kafka schema."""
    return spark.read.format("pykafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", TOPIC).load()


def delays_by_airline(spark: SparkSession, bootstrap: str) -> list[dict[str, Any]]:
    """Flights, mean delay and share of late arrivals per airline, the most punctual first."""
    names = airlines()
    flight = fn.from_json(fn.col("value").cast("string"), SCHEMA).alias("flight")
    late = fn.avg(fn.when(fn.col("arr_delay") > 15, 1.0).otherwise(0.0))
    rows = (
        read_topic(spark, bootstrap)
        .select(flight)
        .select("flight.*")
        .groupBy("carrier")
        .agg(
            fn.count("*").alias("flights"),
            fn.avg("dep_delay").alias("departure"),
            fn.avg("arr_delay").alias("arrival"),
            late.alias("late"),
        )
        .orderBy("arrival")
        .collect()
    )
    return [{**row.asDict(), "airline": names.get(row["carrier"], row["carrier"])} for row in rows]


def load_arguments(bootstrap: str, zookeeper: str, to: Path) -> list[str]:
    """The `pykafka load` command of the demo, word by word."""
    words = ["load", "--bootstrap-server", bootstrap, "--topic", TOPIC, "--to", str(to)]
    return [*words, "--offsets", "zookeeper", "--zookeeper", zookeeper, "--group", "demo"]


def kill_a_load(arguments: list[str], to: Path, output: Path) -> list[str]:
    """Start the load, kill -9 it while it writes, and give the names it left below `to`."""
    process = ConsoleProcess(arguments, output)
    try:
        while process.running and not any(to.glob("_*/**/*.parquet")):
            time.sleep(0.01)
    finally:
        if process.running:
            process.kill()
    return sorted(path.name for path in to.iterdir()) if to.exists() else []


def stream_in_two_runs(spark: SparkSession, bootstrap: str, to: Path, checkpoint: Path, progress: Progress) -> int:
    """Stream the topic to parquet: stop after two micro-batches, start again from the checkpoint, finish.

    Gives the rows of the first run.
    """
    stream = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(STREAM_BATCH))
        .load()
    )
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
    first = writer.start(str(to))
    before = _watch(first, lambda batches: batches >= 2, 0, progress)
    first.stop()
    second = writer.trigger(availableNow=True).start(str(to))
    _watch(second, lambda _: not second.isActive, before, progress)
    second.awaitTermination()
    return before


def _watch(query: StreamingQuery, done: Callable[[int], bool], before: int, progress: Progress) -> int:
    """Tell the rows so far until `done(batches)`; gives them."""
    rows = before
    while True:
        ended = done(len(batches := [p for p in query.recentProgress if p.numInputRows]))
        rows = before + sum(p.numInputRows for p in batches)
        progress(rows)
        if ended:
            return rows
        if (error := query.exception()) is not None:
            raise error
        time.sleep(0.05)


def console_command(*arguments: str) -> list[str]:
    """`pykafka ARGUMENTS…` of this very environment."""
    return [sys.executable, "-m", "broker.tools.main", *arguments]


class ConsoleProcess:
    """A console command in a process group of its own, its output and its log in files."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self._output, self._log = output.with_suffix(".out"), output.with_suffix(".log")
        with self._output.open("wb") as stdout, self._log.open("wb") as stderr:
            self._process = subprocess.Popen(
                console_command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def log(self) -> str:
        """What it has written to standard error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL to it and all its children, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
