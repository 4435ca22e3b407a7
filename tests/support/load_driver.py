"""A process that runs one load, to be killed: `python -m tests.support.load_driver ARGUMENTS SPARK_SETTINGS` (JSON).

Prints `ready` when Spark has started and its Python workers have, then loads and prints the result as JSON. Used by
tests/faults and tests/hdfs through `LoadDriver`, which starts it and reads what it says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import psutil

from tests.support.source_tree import ROOT

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts in half the time
    "spark.sql.shuffle.partitions": "2",
}


class LoadDriver:
    """The process; `log` takes what Spark prints."""

    def __init__(self, arguments: Mapping[str, Any], settings: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.load_driver", json.dumps(arguments), json.dumps(dict(settings))],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log

    def wait_until_ready(self) -> None:
        """Returns when the load begins."""
        line = self._output.readline()
        assert line == "ready\n", f"{line!r}\n{self._log.read_text()[-3000:]}"

    def kill_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9; False when it was done before."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return True
        return False

    def kill_a_worker_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9 one of Spark's Python workers; False when there was none."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            workers = [p for p in psutil.Process(self._process.pid).children(recursive=True) if _is_worker(p)]
            for worker in workers[-1:]:  # the youngest: the oldest is the daemon they are forked from
                worker.send_signal(signal.SIGKILL)
            return bool(workers)
        return False

    def result(self) -> dict[str, Any] | None:
        """What the load returned; None when it failed or was killed."""
        output = self._output.read()
        self._process.wait()
        if self._process.returncode != 0:
            return None
        result: dict[str, Any] = json.loads(output)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("pyspark" in word and ("daemon" in word or "worker" in word) for word in process.cmdline())
    except psutil.Error:
        return False  # it has ended by itself


def main() -> None:
    from pyspark.sql import SparkSession

    from spark_connector.load import load

    arguments, settings = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    builder = SparkSession.builder.master("local[2,4]").appName("load-driver")
    for name, value in {**_SETTINGS, **settings}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.range(2).count()
    print("ready", flush=True)
    result = load(spark, **arguments)
    print(json.dumps(result.to_json()), flush=True)


if __name__ == "__main__":
    main()
