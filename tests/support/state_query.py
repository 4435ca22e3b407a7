"""Run as a program: a query with state that takes what is new in a topic, once. Prints its counts, or the error.

Arguments: master, bootstrap servers, topic, checkpoint, most cores.
"""

from __future__ import annotations

import json
import sys


def main(master: str, bootstrap: str, topic: str, checkpoint: str, cores: str) -> None:
    from pyspark.sql import DataFrame, SparkSession

    spark = (
        SparkSession.builder.master(master)
        .config("spark.executor.memory", "512m")
        .config("spark.cores.max", cores)
        .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
        .config("spark.sql.shuffle.partitions", "8")
        .getOrCreate()
    )
    found: dict[str, int] = {}

    def keep(batch: DataFrame, number: int) -> None:
        found.update({row["digit"]: row["count"] for row in batch.collect()})

    source = spark.readStream.format("pykafka").option("kafka.bootstrap.servers", bootstrap)
    rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    counts = rows.selectExpr("right(CAST(value AS STRING), 1) AS digit").groupBy("digit").count()
    writer = counts.writeStream.outputMode("update").foreachBatch(keep).option("checkpointLocation", checkpoint)
    try:
        writer.trigger(availableNow=True).start().awaitTermination()
    except Exception as error:  # of a class that is Spark's affair
        print(json.dumps(str(error)))
    else:
        print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
