"""A process that writes and reads a topic by Spark, as one who logs in by Kerberos: `python -m … JSON`.

It writes 10 records, counts them by a batch read and reads them by a stream, which goes on to as many as it is told.
A query that fails is started again from its checkpoint, as an operator would. Its lines tell how far it is. Used by
tests/spark_connector/test_kerberos.py, whose realm a Spark that runs already does not know.
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
    """`options`: of `format("pykafka")`; `topic`; `until`: how many records the stream reads."""

    def __init__(self, arguments: dict[str, Any], log: Path) -> None:
        super().__init__("tests.support.kerberos_driver", [json.dumps(arguments)], log)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]").appName("kerberos-driver")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(WRITTEN).selectExpr("string(id) AS value").write.mode("append").format("pykafka").options(
        **arguments["options"], topic=arguments["topic"]
    ).save()
    options = {**arguments["options"], "subscribe": arguments["topic"], "startingOffsets": "earliest"}
    print(f"batch {spark.read.format('pykafka').options(**options).load().count()}", flush=True)
    seen: set[tuple[int, int]] = set()
    last = ""

    def take(rows: DataFrame, _: int) -> None:
        seen.update((row.partition, row.offset) for row in rows.select("partition", "offset").collect())
        print(f"stream {len(seen)}", flush=True)

    stream = spark.readStream.format("pykafka").options(**options).load().writeStream.foreachBatch(take)
    stream = stream.option("checkpointLocation", arguments["checkpoint"]).trigger(processingTime="200 milliseconds")
    while len(seen) < arguments["until"]:
        query = stream.start()
        try:
            while len(seen) < arguments["until"] and not query.awaitTermination(1):
                pass
        except StreamingQueryException as error:
            said = next((line for line in str(error).splitlines() if "AuthenticationFailed" in line), str(error))
            if last != said:
                print(f"failed: {said}", "failed", sep="\n", flush=True)
            last = said
        query.stop()
    print("done", flush=True)


if __name__ == "__main__":
    main()
