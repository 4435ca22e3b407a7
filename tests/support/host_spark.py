"""Run as a program on a host of its own: one Spark application that reads, streams, writes and loads, again and again.

    python -m tests.support.host_spark JSON

The argument has `settings` of Spark, the `jobs` to run, `bootstrap`, `topic`, `copy` (the topic that the exactly-once
write fills), `group`, `shared` (a directory that all drivers mount: checkpoints), `table` (`s3://…`, below it the Delta
tables), `storage` (its options) and `iceberg` (the name of the Iceberg table). It prints lines of JSON: `job` and
`event`, `at` (`time.monotonic`, which all hosts of a machine share), and what else there is to say:

- `progress`: a query has ended, a batch or a load is committed; of the batch read with the numbers that it `found`;
- `failed`: a try failed, with the `error`; the job tries again, as its user would.

A job is a name of `JOBS`. It ends with its standard input.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Any

from tests.support.host_counts import Numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_PAUSE_S = 2.0
_LOOK_EVERY_S = 0.2
_SHOWN = 400  # characters of an error
_TASKS = "2"


@dataclass
class Jobs:
    """What the jobs of an application share."""

    spark: SparkSession
    given: dict[str, Any]
    events: IO[str]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, job: str, event: str, **details: Any) -> None:
        with self._lock:
            self.events.write(json.dumps({"job": job, "event": event, "at": time.monotonic(), **details}) + "\n")

    def run(self, job: str) -> None:
        """Again and again."""
        # Spark looks for sources of Python in the active session, and a thread has none of its own.
        java: Any = self.spark._jvm
        java.org.apache.spark.sql.SparkSession.setActiveSession(self.spark._jsparkSession)
        while True:
            try:
                JOBS[job](self, job)
            except Exception as error:
                self.tell(job, "failed", error=f"{type(error).__name__}: {str(error)[:_SHOWN]}")
            time.sleep(_PAUSE_S)

    def source(self, *, stream: bool) -> DataFrame:
        reader = self.spark.readStream if stream else self.spark.read
        options = {"subscribe": self.given["topic"], "startingOffsets": "earliest", "minPartitions": _TASKS}
        return (
            reader.format("pykafka")
            .options(**options)
            .option("kafka.bootstrap.servers", self.given["bootstrap"])
            .load()
        )

    def follow(self, job: str, writer: DataStreamWriter) -> None:
        """A query, until it fails."""
        checkpoint = f"{self.given['shared']}/{job}"
        query = writer.option("checkpointLocation", checkpoint).trigger(processingTime="2 seconds").start()
        told = -1
        while query.isActive:
            for progress in query.recentProgress:
                if progress.batchId > told and progress.numInputRows:
                    told = progress.batchId
                    self.tell(job, "progress")
            time.sleep(_LOOK_EVERY_S)
        if (error := query.exception()) is not None:
            raise error

    def load(self, job: str, **arguments: Any) -> None:
        """One load through the executors."""
        from spark_connector.load import load

        result = load(
            self.spark,
            bootstrap_servers=self.given["bootstrap"],
            topic=self.given["topic"],
            group=f"{self.given['group']}-{job}",
            options={"minPartitions": _TASKS},
            **arguments,
        )
        if result.rows or result.recovered:
            self.tell(job, "progress", rows=result.rows)


def batch_read(jobs: Jobs, job: str) -> None:
    """All of the topic."""
    rows = jobs.source(stream=False).selectExpr("cast(cast(value AS string) AS int) AS number").toArrow()
    jobs.tell(job, "progress", found=Numbers.of(rows.column("number").to_pylist()).to_json())


def stream(jobs: Jobs, job: str) -> None:
    """Into a Delta table, each batch once, as its number says."""
    import deltalake

    place = f"{jobs.given['table']}/{job}"
    storage = jobs.given["delta"]

    def write(frame: DataFrame, number: int) -> None:
        rows = frame.toArrow()
        if deltalake.DeltaTable.is_deltatable(place, storage):
            known = deltalake.DeltaTable(place, storage_options=storage).transaction_version(job)
            if known is not None and known >= number:
                return
        mark = deltalake.CommitProperties(app_transactions=[deltalake.Transaction(job, number)])
        deltalake.write_deltalake(place, rows, mode="append", storage_options=storage, commit_properties=mark)

    jobs.follow(job, jobs.source(stream=True).select("key", "value").writeStream.foreachBatch(write))


def exactly_once(jobs: Jobs, job: str) -> None:
    """Into another topic."""
    writer = jobs.source(stream=True).select("key", "value").writeStream.format("pykafka")
    options = {"topic": jobs.given["copy"], "delivery": "exactly-once"}
    jobs.follow(job, writer.options(**options).option("kafka.bootstrap.servers", jobs.given["bootstrap"]))


def delta(jobs: Jobs, job: str) -> None:
    jobs.load(job, to=f"{jobs.given['table']}/{job}", format="delta", storage_options=jobs.given["storage"])


def upsert(jobs: Jobs, job: str) -> None:
    to = f"{jobs.given['table']}/{job}"
    jobs.load(job, to=to, format="delta", storage_options=jobs.given["storage"], mode="upsert", key="key")


def iceberg(jobs: Jobs, job: str) -> None:
    jobs.load(job, to=f"iceberg:{jobs.given['iceberg']}", catalog="lake")


JOBS: dict[str, Callable[[Jobs, str], None]] = {
    work.__name__: work for work in (batch_read, stream, exactly_once, delta, iceberg, upsert)
}


def main() -> None:
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the JVM inherits this one
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    from pyspark.sql import SparkSession

    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("hosts")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(4, numPartitions=2).count()
    jobs = Jobs(spark, given, events)
    jobs.source(stream=False).count()  # Spark looks for sources once, and not well when several threads ask at once
    for job in given["jobs"]:
        threading.Thread(target=jobs.run, args=(job,), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
