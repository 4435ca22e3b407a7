"""Run as a program on a host of its own: a Spark application whose jobs read, write and load one topic all the time.

    python -m tests.support.host_spark JSON

The argument has `settings` of Spark, `bootstrap`, `topic`, `copy` (the topic that the exactly-once write fills),
`shared` (a directory that all drivers mount: checkpoints), `lake` (`s3://…`, below it the Delta tables), `storage` (its
options) and `iceberg` (the Iceberg table). It prints lines of JSON: `job`, `event`, `at` (`time.monotonic`, which all
hosts of a machine share), and what else there is to say:

- `progress`: a batch or a load is committed, a read has ended; of the batch read with the numbers that it `found`;
- `failed`: a try failed, with the `error`; the job tries again, as its user would.

A job is a name of `JOBS`. The program ends with its standard input.
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

_PAUSE_S = 2.0
_LOOK_EVERY_S = 0.2
_SHOWN = 1_500  # characters of an error
_TASKS = "2"  # that executors write, not the driver


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
        self.spark.createDataFrame([(0,)], "n INT")  # makes the session that of the thread
        while True:
            try:
                JOBS[job](self, job)
            except Exception as error:
                self.tell(job, "failed", error=f"{type(error).__name__}: {str(error)[:_SHOWN]}")
            time.sleep(_PAUSE_S)

    def source(self, *, stream: bool) -> DataFrame:
        reader = self.spark.readStream if stream else self.spark.read
        options = {"subscribe": self.given["topic"], "startingOffsets": "earliest", "minPartitions": _TASKS}
        return reader.format("pykafka").options(**options, **self.servers).load()

    @property
    def servers(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self.given["bootstrap"]}

    def load(self, job: str, **arguments: Any) -> None:
        """One load, by the executors."""
        from spark_connector.load import load

        given = {"topic": self.given["topic"], "group": f"{self.given['topic']}-{job}"}
        options = {"minPartitions": _TASKS}
        done = load(self.spark, bootstrap_servers=self.given["bootstrap"], options=options, **given, **arguments)
        if done.rows or done.recovered:
            self.tell(job, "progress", rows=done.rows)

    def load_into_delta(self, job: str, **arguments: Any) -> None:
        self.load(
            job, to=f"{self.given['lake']}/{job}", format="delta", storage_options=self.given["storage"], **arguments
        )


def batch_read(jobs: Jobs, job: str) -> None:
    """All of the topic."""
    rows = jobs.source(stream=False).selectExpr("cast(cast(value AS string) AS int) AS number").toArrow()
    jobs.tell(job, "progress", found=Numbers.of(rows.column("number").to_pylist()).to_json())


def exactly_once(jobs: Jobs, job: str) -> None:
    """A query that fills another topic, until it fails."""
    writer = jobs.source(stream=True).select("key", "value").writeStream.format("pykafka")
    options = {"topic": jobs.given["copy"], "delivery": "exactly-once", "checkpointLocation": jobs.given["shared"]}
    query = writer.options(**options, **jobs.servers).trigger(processingTime="2 seconds").start()
    told = -1
    while query.isActive:
        for progress in query.recentProgress:
            if progress.batchId > told and progress.numInputRows:
                told = progress.batchId
                jobs.tell(job, "progress", rows=progress.numInputRows)
        time.sleep(_LOOK_EVERY_S)
    if (error := query.exception()) is not None:
        raise error


def delta(jobs: Jobs, job: str) -> None:
    jobs.load_into_delta(job)


def upsert(jobs: Jobs, job: str) -> None:
    jobs.load_into_delta(job, mode="upsert", key="key")


def iceberg(jobs: Jobs, job: str) -> None:
    jobs.load(job, to=f"iceberg:{jobs.given['iceberg']}", catalog="lake")


JOBS: dict[str, Callable[[Jobs, str], None]] = {
    work.__name__: work for work in (batch_read, exactly_once, delta, iceberg, upsert)
}


def main() -> None:
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the JVM inherits this one
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    from pyspark import InheritableThread
    from pyspark.sql import SparkSession

    given = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("hosts")
    for name, value in given["settings"].items():
        builder = builder.config(name, value)
    jobs = Jobs(builder.getOrCreate(), given, events)
    for job in JOBS:
        InheritableThread(target=jobs.run, args=(job,), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
