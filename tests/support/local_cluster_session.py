"""Run as a program: batch, stream, sink and load on executors that are processes of their own; prints what it saw.

`local-cluster[2,1,1024]` starts a Spark master and two workers with an executor of one core each. Arguments: a JSON
object of `first` and `second`, the bootstrap servers of two clusters that both have `topic`, `target` (a topic of
the first), `group`, and `home`, an empty directory.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(arguments: dict[str, str]) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    from spark_connector.load import load
    from tests.support.all_available import take_all

    home, topic = arguments["home"], arguments["topic"]
    spark = (
        SparkSession.builder.master("local-cluster[2,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", f"{home}/local")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")  # the first tasks wait for both
        .getOrCreate()
    )

    def options(cluster: str) -> dict[str, str]:
        found = {"kafka.bootstrap.servers": arguments[cluster], "subscribe": topic, "startingOffsets": "earliest"}
        return {**found, "minPartitions": "4"}

    def total(cluster: str) -> list[int]:
        """Rows, the sum of the numbers in them, and how many executors took part."""
        frame = spark.read.format("pykafka").options(**options(cluster)).load()
        where = F.udf(lambda: os.environ.get("SPARK_EXECUTOR_DIRS", ""))()
        number = F.col("value").cast("string").cast("long")
        row = frame.select(number.alias("n"), where.alias("w")).agg(F.count("*"), F.sum("n"), F.countDistinct("w"))
        return [int(one) for one in row.collect()[0]]

    seen: dict[str, Any] = {"batch": [total(name) for name in ("first", "second", "first", "second")]}
    source = spark.readStream.format("pykafka").options(**options("first"), maxOffsetsPerTrigger="60").load()
    writer = source.selectExpr("key", "value").writeStream.format("pykafka")
    given = {"kafka.bootstrap.servers": arguments["first"], "topic": arguments["target"]}
    given["checkpointLocation"] = f"{home}/checkpoint"
    query = take_all(writer.options(**given))
    seen["streamed"] = sum(progress.numInputRows for progress in query.recentProgress)
    result = load(
        spark,
        bootstrap_servers=arguments["first"],
        topic=topic,
        to=f"{home}/loaded",
        offsets="files",
        group=arguments["group"],
        options={"minPartitions": "2"},  # so that the executors load, not the driver
    )
    seen["loaded"] = [result.rows, spark.read.parquet(f"{home}/loaded").count()]
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
