"""The driver's program of hosts_spark_bench.py: runs the jobs whose names it reads, and prints what each returns.

A line that it reads is `[job, topic]` in JSON; what it prints is a number: of rows, or the seconds of a micro-batch.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
from typing import Any

from pyspark.sql import SparkSession

from spark_connector.load import load

BATCHES = 10


def count(spark: SparkSession, given: dict[str, Any], topic: str) -> int:
    """Of all values, which Spark adds up: a count alone would not ask for them."""
    read = spark.read.format("pykafka").options(**_source(given, topic)).load()
    found = read.selectExpr("count(*)", "sum(length(value))").first()
    assert found is not None
    return int(found[0])


def delta(spark: SparkSession, given: dict[str, Any], topic: str) -> int:
    """Loaded from the topic."""
    return load(
        spark,
        to=f"s3://lake/{topic}-{given['name']}",
        format="delta",
        storage_options=given["storage"],
        bootstrap_servers=given["bootstrap"],
        topic=topic,
        group=given["name"],
        options={"minPartitions": str(given["tasks"])},
    ).rows


def write(spark: SparkSession, given: dict[str, Any], topic: str) -> int:
    """Read from the topic and written exactly once."""
    read = spark.read.format("pykafka").options(**_source(given, topic)).load()
    options = {"kafka.bootstrap.servers": given["bootstrap"], "topic": f"{topic}-copy", "delivery": "exactly-once"}
    read.select("value").write.format("pykafka").options(**options).mode("append").save()
    return int(given["rows"][topic])


def batches(spark: SparkSession, given: dict[str, Any], topic: str) -> float:
    """Median seconds of ten micro-batches that read the topic; the first is not counted."""
    each = str(given["rows"][topic] // BATCHES)
    read = spark.readStream.format("pykafka").options(**_source(given, topic), maxOffsetsPerTrigger=each).load()
    checkpoint = f"file://{given['shared']}/{topic}-{given['name']}"
    writer = read.selectExpr("length(value)").writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    done = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(progress["numInputRows"] for progress in done) == given["rows"][topic]
    return statistics.median(progress["durationMs"]["triggerExecution"] / 1000 for progress in done[1:])


JOBS = {job.__name__: job for job in (count, delta, write, batches)}


def _source(given: dict[str, Any], topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": given["bootstrap"],
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minPartitions": str(given["tasks"]),
    }


def main() -> None:
    tell = functools.partial(print, file=os.fdopen(os.dup(1), "w", buffering=1), flush=True)
    os.dup2(2, 1)  # the JVM inherits this one
    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("costs")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tell(json.dumps("ready"))
    for line in sys.stdin:
        job, topic = json.loads(line)
        tell(json.dumps(JOBS[job](spark, given, topic)))
    spark.stop()


if __name__ == "__main__":
    main()
