"""The demo's steps, each a function that does one thing a user would do. They report progress to a callable.

Loads run as a user runs them, as a console command in a process that can be killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.query import StreamingQuery

from broker.client.admin import Admin, NewTopic
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.errors import PykafkaError
from broker.zookeeper.java import find_java
from pykafka_demo.flights import SCHEMA, airlines, flights
from pykafka_demo.lake import CATALOG, QUERY_FILE, TABLE, environment
from spark_connector.offset_store.base import Offsets
from spark_connector.progress.stream_lag import SourceLag, query_lag

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
    """Two local cores, without log output. Spark's Python workers run this Python, which has the connector."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    find_java(for_spark=True)
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


def delays_by_airline(spark: SparkSession, bootstrap: str) -> list[dict[str, Any]]:
    """Flights, mean delay and share of late arrivals per airline, the most punctual first."""
    names = airlines()
    flight = fn.from_json(fn.col("value").cast("string"), SCHEMA).alias("flight")
    late = fn.avg(fn.when(fn.col("arr_delay") > 15, 1.0).otherwise(0.0))
    rows = (
        spark.read.format("pykafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .load()
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


def load_arguments(bootstrap: str) -> list[str]:
    """The words of the demo's `pykafka load` command."""
    words = ["load", "--bootstrap-server", bootstrap, "--topic", TOPIC, "--group", "demo"]
    words += ["--to", f"iceberg:{TABLE}", "--catalog", CATALOG]
    words += ["--option", "valueFormat=json", "--option", f"valueSchema={SCHEMA}"]
    return [*words, "--columns", "value.*,topic,partition,offset"]


def kill_a_load(arguments: list[str], directory: Path, output: Path) -> list[str]:
    """Start the load, kill it and its children with SIGKILL while it writes, and return the files that it has left."""
    warehouse = directory / "warehouse"
    with output.open("wb") as log:
        process = subprocess.Popen(
            _console(arguments),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment(directory),
        )
    try:
        while process.poll() is None and not any(warehouse.rglob("*.parquet")):
            time.sleep(0.001)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return sorted(path.name for path in warehouse.rglob("*.parquet"))


def run_load(arguments: list[str], directory: Path) -> str:
    """Run the load to its end and return what it printed. Raises PykafkaError with its log."""
    return _run("the load", _console(arguments), directory)


def run_query(directory: Path) -> str:
    """Run the program that lake.py has written, which knows nothing of pykafka, and return what it printed."""
    return _run("the query", [sys.executable, str(directory / QUERY_FILE)], directory)


def _run(what: str, command: list[str], directory: Path) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(directory), check=False
    )
    if done.returncode != 0:
        raise PykafkaError(f"{what} failed:\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def _console(arguments: list[str]) -> list[str]:
    return [sys.executable, "-m", "broker.tools.main", *arguments]


def stream_in_two_runs(spark: SparkSession, bootstrap: str, to: Path, checkpoint: Path, progress: Progress) -> int:
    """Stream the topic to parquet: stop after two micro-batches, then continue from the checkpoint to the end.

    Returns the rows of the first run.
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
    _watch(first, lambda: len(_batches(first)) >= 2, progress)
    first.stop()
    second = writer.trigger(availableNow=True).start(str(to))
    _watch(second, lambda: not second.isActive, progress)
    second.awaitTermination()
    after = _batches(second)
    end = _rows((after or _batches(first))[-1].end)
    progress(end)
    return _rows(after[0].start) if after else end


def _watch(query: StreamingQuery, is_over: Callable[[], bool], progress: Progress) -> None:
    """Report the rows read so far until it is over."""
    while not is_over():
        if batches := _batches(query):
            progress(_rows(batches[-1].end))
        if (error := query.exception()) is not None:
            raise error
        time.sleep(0.05)


def _batches(query: StreamingQuery) -> list[SourceLag]:
    """What each batch with rows has read. A batch that is under way when a query is stopped may be in none."""
    found = (query_lag(json.loads(report.json)) for report in query.recentProgress if report.numInputRows)
    return [lag.sources[0] for lag in found]


def _rows(offsets: Offsets) -> int:
    """Before these offsets. The topic begins at 0, and was not written in transactions, which take offsets, too."""
    return sum(offsets.values())
