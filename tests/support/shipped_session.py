"""Run as a program: a batch read by executors whose Python comes from `spark.archives`; prints rows and interpreters.

Arguments: bootstrap servers, topic, archive. PYSPARK_PYTHON is the path within the archive, as the how-to page has it.
"""

from __future__ import annotations

import json
import sys


def main(bootstrap: str, topic: str, archive: str) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812

    spark = (
        SparkSession.builder.master("local-cluster[1,1,1024]")
        .config("spark.archives", f"{archive}#environment")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "columns": "value"}
    records = spark.read.format("pykafka").options(**options).load()
    interpreter = F.udf(lambda: sys.executable)()
    rows = records.select(interpreter.alias("by")).groupBy("by").count().collect()
    print(json.dumps({row["by"]: row["count"] for row in rows}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
