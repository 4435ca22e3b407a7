"""Run as a program: jobs of one application, with dynamic allocation or in fair pools; prints what it saw.

Arguments, as JSON: `settings` of the session, `part` (`dynamic` or `at once`), `bootstrap`, `topic`, which it
makes beside one for `-copies`, and `home`, a directory.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import SparkSession

from spark_connector.load import load
from spark_connector.loads.record import LoadRecord
from spark_connector.offset_store.base import OffsetConflict
from tests.support.all_available import take_all
from tests.support.topics import Topic
from tests.support.waiting import eventually

SETTINGS = {
    "dynamic": {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
        "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    },
    "at once": {"spark.master": "local[2]", "spark.scheduler.mode": "FAIR"},
}
_GONE_S = 120.0


class Application:
    """The session, and the jobs that it does with one topic."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.spark = SparkSession.builder.config(map={**given["settings"], **SETTINGS[given["part"]]}).getOrCreate()
        self.home, self.bootstrap = given["home"], given["bootstrap"]
        self.records, self.copies = (Topic(self.bootstrap, given["topic"] + end, 4) for end in ("", "-copies"))
        self.topic = self.records.name
        for partition in range(4):
            self.records.number(50, partition, first=50 * partition)
        self.options = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.topic, "minPartitions": "4"}

    def executors(self) -> int:
        return len(self.spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one

    def come_and_go(self) -> dict[str, Any]:
        """A load, an exactly-once stream and a read, each begun when there is no executor."""
        self.wait_for_none()
        loaded = self.load("delta", "dynamic")
        self.wait_for_none()
        stream = self.spark.readStream.format("pykafka").options(**self.options, startingOffsets="earliest").load()
        writer = stream.writeStream.format("pykafka").option("kafka.bootstrap.servers", self.bootstrap)
        take_all(writer.option("topic", self.copies.name).option("checkpointLocation", f"{self.home}/checkpoint"))
        self.wait_for_none()
        read = self.spark.read.format("pykafka").options(**self.options).load().count()
        return {"loaded": loaded, "read": read}

    def wait_for_none(self) -> None:
        eventually(lambda: self.executors() == 0, _GONE_S, 0.1)

    def load(self, format: str, group: str, on_phase: Callable[[str, LoadRecord | None], None] | None = None) -> int:
        """The rows of a load into a table, or a directory, of the group's own."""
        return load(
            self.spark,
            bootstrap_servers=self.bootstrap,
            topic=self.topic,
            to=f"{self.home}/{format}-{group}",
            format=format,
            group=f"{self.topic}-{group}",
            offsets="files" if format == "parquet" else None,
            options={"minPartitions": "4"},
            on_phase=on_phase,
            shared_mount=True,
        ).rows

    def at_once(self, jobs: list[tuple[str, str]]) -> list[int | str]:
        """Loads (format, group) in a thread and a pool each, which all write at the same time: rows, or why not."""
        ready, found = threading.Barrier(len(jobs)), list[int | str](["?"] * len(jobs))

        def all_write(phase: str, record: LoadRecord | None) -> None:
            if phase == "write":
                ready.wait(_GONE_S)

        def run(number: int) -> None:
            self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"pool-{number}")
            try:
                found[number] = self.load(*jobs[number], all_write)
            except OffsetConflict:
                found[number] = "conflict"
            except Exception as error:  # whatever goes wrong there, the test shows it
                found[number] = repr(error)

        threads = [InheritableThread(target=run, args=(number,)) for number in range(len(jobs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


def main(given: dict[str, Any]) -> None:
    application = Application(given)
    seen: dict[str, Any]
    if given["part"] == "dynamic":
        seen = application.come_and_go()
    else:
        groups = [(format, f"group-{n}") for n, format in enumerate(("parquet", "delta", "parquet", "delta"))]
        seen = {"groups": application.at_once(groups)}
        seen["rivals"] = [application.at_once([(format, "rivals")] * 2) for format in ("parquet", "delta")]
    print(json.dumps(seen))
    application.spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
