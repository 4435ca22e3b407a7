"""Run as a program: reads a topic over Spark Connect, batch and stream, and prints what it saw as JSON.

A process of its own, since one process cannot hold a classic session and a Connect session.
Arguments: bootstrap servers, topic, an empty directory.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def main(bootstrap: str, topic: str, directory: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from spark_connector.listener import LagListener
    from tests.support.waiting import eventually

    spark = (
        SparkSession.builder.remote("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("pykafka").options(**options).load()
    number = F.col("value").cast("string").cast("int")
    row = batch.agg(F.count("*").alias("rows"), F.sum(number).alias("sum")).collect()[0]
    behind: list[Any] = []
    listener = LagListener(lambda lag: behind.append(lag.sources[0].metrics()["maxOffsetsBehindLatest"]))
    spark.streams.addListener(listener)
    stream = spark.readStream.format("pykafka").options(**options, maxOffsetsPerTrigger="75").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", f"{directory}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{directory}/output")
    finished = query.awaitTermination(120)
    eventually(lambda: len(behind) == 2, 60)
    spark.streams.removeListener(listener)
    streamed = spark.read.parquet(f"{directory}/output").count()
    try:
        spark.read.format("pykafka").options(**options, subscrib="t").load().count()
        error = ""
    except Exception as raised:  # whatever Connect makes of it
        error = str(raised)
    seen = {"rows": row["rows"], "sum": row["sum"], "finished": finished, "streamed": streamed, "behind": behind}
    print(json.dumps({**seen, "error": error}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
