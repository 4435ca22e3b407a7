"""Run as a program: what a driver does with executors whose Python is not its own; prints what came of each act.

Argument: a JSON object of `bootstrap`, `topic`, `home` (an empty directory), `settings` of Spark, and `acts`. Of each
it prints what it returned, or the text of its error. PYSPARK_PYTHON and the like are those of the environment.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read(spark: SparkSession, given: dict[str, Any]) -> dict[str, int]:
    """Rows by the interpreter that read them."""
    from pyspark.sql import functions as F  # noqa: N812

    options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"], "columns": "value"}
    records = spark.read.format("pykafka").options(**options).load()
    if not given.get("udf", True):
        return {"": records.count()}
    interpreter = F.udf(lambda: sys.executable)()
    rows = records.select(interpreter.alias("by")).groupBy("by").count().collect()
    return {row["by"]: row["count"] for row in rows}


def load(spark: SparkSession, given: dict[str, Any]) -> list[int | None]:
    """The rows that the load tells of, and those that a reader finds."""
    from spark_connector.load import load as load_topic

    to = f"{given['home']}/loaded"
    done = load_topic(
        spark,
        bootstrap_servers=given["bootstrap"],
        topic=given["topic"],
        to=to,
        offsets="files",
        group="shipped",
        options={"minPartitions": "2"},  # so that the executors load, not the driver
    )
    return [done.rows, spark.read.parquet(to).count()]


def write(spark: SparkSession, given: dict[str, Any]) -> int:
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS value")
    rows.write.format("pykafka").options(
        **{"kafka.bootstrap.servers": given["bootstrap"], "topic": f"{given['topic']}-written"}
    ).mode("append").save()
    return 5


def stream(spark: SparkSession, given: dict[str, Any]) -> int:
    from tests.support.all_available import take_all

    options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": given["topic"], "minPartitions": "2"}
    source = spark.readStream.format("pykafka").options(**options, startingOffsets="earliest").load()
    writer = source.writeStream.format("noop").option("checkpointLocation", f"{given['home']}/checkpoint")
    return sum(int(progress.numInputRows) for progress in take_all(writer).recentProgress)


def main(given: dict[str, Any]) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local-cluster[1,1,1024]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.task.maxFailures": "1",
        "spark.local.dir": f"{given['home']}/local",
        **given["settings"],
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    came: dict[str, Any] = {}
    for act in given["acts"]:
        try:
            came[act] = {"read": read, "load": load, "write": write, "stream": stream}[act](spark, given)
        except Exception as error:
            came[act] = f"{type(error).__name__}: {error}"
    print(json.dumps(came))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
