"""A process that writes inside foreachBatch, to be killed: `python -m tests.support.foreach_driver JSON`.

First it tries, in a Spark with spark.speculation=true, what is refused then, and without a name what is refused inside
foreachBatch, from a thread of the function's and by itself, and prints `refused …` for each; then it runs the query,
prints `written N` when a batch is written, and stands still in batch 1 before that is over. Used by
tests/faults/test_foreach_kill.py, which runs the query again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from tests.support.spark_child import SETTINGS, SparkChild

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Arguments = dict[str, str]


class ForeachDriver(SparkChild):
    """The process that writes. `arguments`: bootstrap, source, target, checkpoint."""

    def __init__(self, arguments: Arguments, log: Path) -> None:
        super().__init__("tests.support.foreach_driver", [json.dumps(arguments)], log)

    def lines_until(self, last: str) -> list[str]:
        """What it prints, up to the line `last`."""
        found = []
        for line in self._output:
            found.append(line.rstrip())
            if found[-1] == last:
                break
        return found


def copy_batches(
    spark: SparkSession, arguments: Arguments, on_written: Callable[[int], object], **options: str
) -> None:
    """All there is in `source` to `target`, 20 records a batch, each written exactly once inside foreachBatch."""

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("pykafka").options(**_target(arguments), **options).mode("append").save()
        on_written(number)

    _source(spark, arguments).foreachBatch(write).start().awaitTermination(300)


def _write_without_a_name(spark: SparkSession, arguments: Arguments) -> None:
    def write(batch: DataFrame, number: int) -> None:
        sink = batch.write.format("pykafka").options(**_target(arguments)).mode("append")

        def from_a_thread() -> None:
            # It makes the session the thread's; in one without any, Spark finds no source that is written in Python.
            batch.sparkSession.createDataFrame([(1,)], "id INT")
            _tell_refusal("thread", sink.save)

        thread = Thread(target=from_a_thread)
        thread.start()
        thread.join()
        sink.save()

    _source(spark, arguments).foreachBatch(write).start().awaitTermination(300)


def _source(spark: SparkSession, arguments: Arguments) -> Any:
    reading = {"kafka.bootstrap.servers": arguments["bootstrap"], "subscribe": arguments["source"]}
    reading |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
    rows = spark.readStream.format("pykafka").options(**reading).load().select("value")
    return rows.writeStream.option("checkpointLocation", arguments["checkpoint"]).trigger(availableNow=True)


def _target(arguments: Arguments) -> dict[str, str]:
    names = {"kafka.bootstrap.servers": arguments["bootstrap"], "topic": arguments["target"]}
    return {**names, "delivery": "exactly-once"}


def _session(**settings: str) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("foreach-driver")
    for name, value in (SETTINGS | settings).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _tell_refusal(what: str, run: Callable[[], object]) -> None:
    from pyspark.errors import PySparkException

    try:
        run()
    except PySparkException as error:
        known = ("spark.speculation=true", "set option 'txnVersion' to the batch's id", "set option 'txnAppId'")
        print(f"refused {what}: {next((text for text in known if text in str(error)), error)!s}", flush=True)


def _stand_still(number: int) -> None:
    print(f"written {number}", flush=True)
    if number == 1:
        time.sleep(600)


def main() -> None:
    arguments: Arguments = json.loads(sys.argv[1])
    spark = _session(**{"spark.speculation": "true"})
    rows = spark.range(3).selectExpr("'refused' AS value")
    batch = rows.write.format("pykafka").options(**_target(arguments)).mode("append")
    _tell_refusal("batch", batch.save)
    elsewhere = arguments | {"checkpoint": arguments["checkpoint"] + "-refused"}
    stream = _source(spark, elsewhere).format("pykafka").options(**_target(arguments))
    _tell_refusal("stream", lambda: stream.start().awaitTermination(300))
    spark.stop()
    spark = _session(**{"spark.speculation": "false"})
    elsewhere = arguments | {"checkpoint": arguments["checkpoint"] + "-unnamed"}
    _tell_refusal("foreachBatch", lambda: _write_without_a_name(spark, elsewhere))
    copy_batches(spark, arguments, _stand_still, txnAppId="copy")


if __name__ == "__main__":
    main()
