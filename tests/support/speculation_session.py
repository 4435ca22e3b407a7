"""Run as a program: loads under speculation whose first task is slow at first; prints what each left.

Arguments, as JSON: `settings` of the session, `bootstrap`, `topic` (two partitions or more), `home`, a directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from deltalake import DeltaTable
from pyarrow.dataset import dataset
from pyspark import TaskContext
from pyspark.sql import SparkSession

from spark_connector.load import load
from spark_connector.loads import write
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.request import Target
from spark_connector.loads.tasks.task_job import TaskJob, TaskResult
from spark_connector.maintenance import verify
from spark_connector.read.planning import OffsetRange
from tests.support.table_harness import add_catalog
from tests.support.waiting import eventually

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}
WHOLE, RACING = "whole", "racing"
_HELD_S = 120.0


@dataclass(frozen=True)
class HeldJob(TaskJob):
    """The first attempt of the first task waits until it is killed, when its file is written whole; or `racing`, it
    writes in the moment in which the second attempt is done. Each attempt leaves a mark when it has written."""

    marks: str = ""
    how: str = WHOLE

    def run_task(self, ranges: Sequence[OffsetRange]) -> TaskResult:
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 0:
            return super().run_task(ranges)
        first = context.attemptNumber() == 0
        if first and self.how == RACING:
            eventually(self._mark(1).exists, _HELD_S)
        result = super().run_task(ranges)
        self._mark(context.attemptNumber()).write_text(json.dumps([file.name for file in result.files]))
        if first and self.how == WHOLE:
            eventually(lambda: False, _HELD_S)
        elif self.how == WHOLE:
            eventually(self._mark(0).exists, _HELD_S)
        return result

    def _mark(self, attempt: int) -> Path:
        return Path(self.marks) / f"attempt-{attempt}"


def main(given: dict[str, Any]) -> None:
    home = Path(given["home"])
    builder = SparkSession.builder.config(map={**given["settings"], **SPECULATION})
    spark = builder.config("spark.scheduler.minRegisteredResourcesRatio", "1.0").getOrCreate()
    seen: dict[str, Any] = {}
    for how in (WHOLE, RACING):
        for format in ("parquet", "delta", "iceberg"):
            name = f"{format}-{how}"
            (marks := home / f"marks-{name}").mkdir()
            catalog = add_catalog(home / name) if format == "iceberg" else None
            target = Target("iceberg:lake.t" if catalog else str(home / name), name, format=format, catalog=catalog)
            with mock.patch.object(write, "TaskJob", partial(HeldJob, marks=str(marks), how=how)):
                result = load(
                    spark,
                    to=target.to,
                    group=target.group,
                    format=format,
                    catalog=catalog,
                    bootstrap_servers=given["bootstrap"],
                    topic=given["topic"],
                    options={"minPartitions": "2"},
                    shared_mount=True,  # the workers have addresses of their own, and this machine's one disk
                )
            wrote = {mark.name: json.loads(mark.read_text()) for mark in marks.iterdir()}
            seen[name] = {
                "rows": result.rows,
                "values": values(target),
                "wrote": wrote,
                "ok": verify(target, given["bootstrap"]).ok,
            }
    seen["exactly-once"] = refused(spark, given)
    print(json.dumps(seen))
    spark.stop()


def values(target: Target) -> list[int]:
    """The numbers in a table, by a reader that knows nothing of us."""
    if target.format == "iceberg":
        assert target.catalog is not None
        rows = open_catalog(target.catalog).load_table("lake.t").scan().to_arrow()
    elif target.format == "delta":
        rows = DeltaTable(target.to).to_pyarrow_table()
    else:
        rows = dataset(sorted(map(str, Path(target.to).glob("load=*/*.parquet")))).to_table()
    return sorted(int(value) for value in rows["value"].to_pylist())


def refused(spark: SparkSession, given: dict[str, Any]) -> str:
    """What an exactly-once write says."""
    rows = spark.range(9).selectExpr("CAST(id AS STRING) AS value")
    to = {"kafka.bootstrap.servers": given["bootstrap"], "topic": given["topic"], "delivery": "exactly-once"}
    try:
        rows.write.format("pykafka").options(**to).mode("append").save()
    except Exception as error:  # whatever Spark makes of it
        return str(error)
    return "not refused"


if __name__ == "__main__":
    import_module("tests.support.speculation_session").main(json.loads(sys.argv[1]))  # by whose name executors find it
