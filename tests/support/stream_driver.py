"""A process that runs one streaming query to parquet, to be killed: `python -m tests.support.stream_driver JSON`.

Prints `batch N` after every micro-batch and `done` once it has read all there was (availableNow). Used by
tests/faults through `StreamDriver`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.source_tree import ROOT


class StreamDriver:
    """The process; `log` takes what Spark prints. `arguments`: bootstrap, topic, output, checkpoint, cap."""

    def __init__(self, arguments: dict[str, Any], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.stream_driver", json.dumps(arguments)],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        self._output = self._process.stdout

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

    def finished(self) -> bool:
        """Read on to the end; was everything there was read?"""
        lines = self._output.read().splitlines()
        return self._process.wait() == 0 and lines[-1:] == ["done"]

    def kill_driver_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9 the driver (its JVM ends with it); False when it was done before."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            for process in [*psutil.Process(self._process.pid).children(recursive=True), self._process]:
                _kill(process.pid)
            self._process.wait()
            return True
        return False

    def kill_a_worker_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9 every forked Python worker of Spark; False when there was none."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            workers = [p for p in psutil.Process(self._process.pid).children(recursive=True) if _is_python_worker(p)]
            for worker in workers:
                _kill(worker.pid)
            return bool(workers)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            if self._process.poll() is None:
                self._process.kill()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # ended by itself


def _is_python_worker(process: psutil.Process) -> bool:
    try:
        words = " ".join(process.cmdline())
        return "pyspark" in words and "python" in process.name() and "java" not in process.name()
    except psutil.Error:
        return False


def main() -> None:
    from pyspark.sql import SparkSession

    arguments = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("stream-driver")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    query = (
        spark.readStream.format("pykafka")
        .option("kafka.bootstrap.servers", arguments["bootstrap"])
        .option("subscribe", arguments["topic"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(arguments["cap"]))
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", arguments["checkpoint"])
        .trigger(availableNow=True)
        .start(arguments["output"])
    )
    told = -1
    while query.isActive:
        query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress.batchId > told:
                told = progress.batchId
                print(f"batch {told}", flush=True)
    if (error := query.exception()) is not None:
        raise error
    print("done", flush=True)


if __name__ == "__main__":
    main()
