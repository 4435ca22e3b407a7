"""A process that writes and reads topics by Spark, as those who log in by Kerberos: `python -m … JSON`.

For one job after the other it writes 10 records, counts them by a batch read and reads them by a stream, which goes on
to as many as it is told. A query that fails is started again from its checkpoint, as an operator would. Its lines tell
how far it is. Used by tests/spark_connector/test_kerberos.py, whose realm a Spark that runs already does not know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.spark_child import SETTINGS, SparkChild

WRITTEN = 10


class KerberosDriver(SparkChild):
    """Each job has `options` of `format("pykafka")`, a `topic`, a `checkpoint`, and `until`: the stream's records."""

    def __init__(self, jobs: list[dict[str, Any]], log: Path) -> None:
        super().__init__("tests.support.kerberos_driver", [json.dumps(jobs)], log)


def main() -> None:
    builder = SparkSession.builder.master("local[2,4]").appName("kerberos-driver")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    for job in json.loads(sys.argv[1]):
        _run(spark, job)
        print("done", flush=True)


def _run(spark: SparkSession, job: dict[str, Any]) -> None:
    rows = spark.range(WRITTEN).selectExpr("string(id) AS value")
    rows.write.mode("append").format("pykafka").options(**job["options"], topic=job["topic"]).save()
    options = {**job["options"], "subscribe": job["topic"], "startingOffsets": "earliest"}
    print(f"batch {spark.read.format('pykafka').options(**options).load().count()}", flush=True)
    seen: set[tuple[int, int]] = set()
    last = ""

    def take(rows: DataFrame, _: int) -> None:
        seen.update((row.partition, row.offset) for row in rows.select("partition", "offset").collect())
        print(f"stream {len(seen)}", flush=True)

    stream = spark.readStream.format("pykafka").options(**options).load().writeStream.foreachBatch(take)
    stream = stream.option("checkpointLocation", job["checkpoint"]).trigger(processingTime="200 milliseconds")
    while len(seen) < job["until"]:
        query = stream.start()
        try:
            while len(seen) < job["until"] and not query.awaitTermination(1):
                pass
        except StreamingQueryException as error:
            said = next((line for line in str(error).splitlines() if "AuthenticationFailed" in line), str(error))
            if last != said:
                print(f"failed: {said}", "failed", sep="\n", flush=True)
            last = said
        query.stop()


if __name__ == "__main__":
    main()
