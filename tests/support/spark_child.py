"""A Python process with a Spark of its own, started to be killed. The base of load_driver.py and stream_driver.py.

It prints lines that tell how far it is; what Spark prints goes to a log.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import psutil

from tests.support.source_tree import ROOT
from tests.support.spark_home import SMALL_QUERIES, shared_spark_home

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    **SMALL_QUERIES,
}
"""Settings of a Spark that says little and needs little."""
_LOOK_AGAIN_S = 0.02
"""Until there is a worker to kill: on a busy machine the first one comes late."""


class SparkChild:
    """`python -m MODULE WORDS…`; `log` takes what Spark prints."""

    def __init__(self, module: str, words: list[str], log: Path) -> None:
        home = shared_spark_home()
        home.archive_classes()
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *words],
                cwd=ROOT,
                env={**os.environ, **home.environment()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log

    def wait_for(self, line: str) -> list[str]:
        """Return after this line, with those before it. Raises AssertionError when the process ends without it."""
        before: list[str] = []
        for said in self._output:
            if said.rstrip("\n") == line:
                return before
            before.append(said.rstrip("\n"))
        raise AssertionError(f"it ended without {line!r}: {before}\n{self._log.read_text()[-3000:]}")

    def kill_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9 (its JVM ends with it); False when it was done before."""
        if self._ends_within(seconds):
            return False
        self._process.kill()
        self._process.wait()
        return True

    def kill_a_worker_after(self, seconds: float) -> bool:
        """Let it go on for so long, then kill -9 one of Spark's Python workers as soon as there is one; False when it
        was done before."""
        while not self._ends_within(seconds):
            if self._kill_a_worker():
                return True
            seconds = _LOOK_AGAIN_S
        return False

    def _ends_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _kill_a_worker(self) -> bool:
        workers = [p for p in psutil.Process(self._process.pid).children(recursive=True) if _is_worker(p)]
        if not workers:
            return False
        youngest = max(workers, key=lambda worker: (worker.create_time(), worker.pid))  # older: daemons, and idle ones
        try:
            youngest.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False  # it has ended by itself
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            self._process.kill()
            self._output.read()  # to its end: the JVM has it, too, and may outlive the process for a moment

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout


def _is_worker(process: psutil.Process) -> bool:
    try:
        return any("pyspark" in word and ("daemon" in word or "worker" in word) for word in process.cmdline())
    except psutil.Error:
        return False  # it has ended by itself
