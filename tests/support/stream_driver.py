"""A process that runs one streaming query to parquet, to be killed: `python -m tests.support.stream_driver JSON`.

Prints `batch N` after every micro-batch and `done` once it has read all there was (all_available.py). Used by
tests/faults through `StreamDriver`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support import all_available
from tests.support.spark_child import SETTINGS, SparkChild


class StreamDriver(SparkChild):
    """The process that streams. `arguments`: bootstrap, topic, output, checkpoint, cap."""

    def __init__(self, arguments: dict[str, Any], log: Path) -> None:
        super().__init__("tests.support.stream_driver", [json.dumps(arguments)], log)

    def wait_for_batches(self, count: int) -> bool:
        """Return after `count` micro-batches; False when the query ended before."""
        for line in self._output:
            if line.startswith("batch"):
                count -= 1
            if count <= 0:
                return True
            if line == "done\n":
                return False
        return False

    def wait_for_batch(self, number: int) -> None:
        """Return after the micro-batch of this number, or when the query ends before."""
        for line in self._output:
            if line.startswith("batch") and int(line.split()[1]) >= number:
                return

    def finished(self) -> bool:
        """Read on to the end; was everything there was read?"""
        lines = self._output.read().splitlines()
        return self._process.wait() == 0 and lines[-1:] == ["done"]


def main() -> None:
    from pyspark.sql import SparkSession

    arguments = json.loads(sys.argv[1])
    builder = SparkSession.builder.master("local[2,4]").appName("stream-driver")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    writer = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", arguments["bootstrap"])
        .option("subscribe", arguments["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(arguments["cap"]))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", arguments["checkpoint"])
    )
    query = all_available.start(writer, arguments["output"])
    told = -1
    ended = False
    while not ended:
        query.awaitTermination(1)
        ended = all_available.has_taken_all(query)
        for progress in query.recentProgress:
            if progress.batchId > told:
                told = progress.batchId
                print(f"batch {told}", flush=True)
    if (error := query.exception()) is not None:
        raise error
    print("done", flush=True)


if __name__ == "__main__":
    main()
