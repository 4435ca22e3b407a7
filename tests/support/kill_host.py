"""The Spark that the kill matrix kills: its processes, what it says, and what they do when they hang.

`SparkHost` starts kill_jobs.py in a session of its own (Spark's Python daemons leave the process group, never the
session), gives it one job at a time and finds the victims among its processes. `close` leaves none of them. Used by
kill_round.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from tests.support.source_tree import ROOT
from tests.support.spark_child import SETTINGS
from tests.support.spark_home import SparkHome

_START_TIMEOUT = 400.0  # seconds; six on an idle machine, more than 120 were seen on a busy one


@dataclass
class Attempt:
    """One run of one job. `error` is None when it ended well; "gone" when the driver ended before the job."""

    begun: float
    events: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False
    error: str | None = None
    seconds: float = 0.0

    def has_reached(self, name: str) -> bool:
        """Whether the job has told of `name`: its second micro-batch is `batch 2`, a load's phase is its name."""
        batches = sum(event["event"] == "batch" for event in self.events)
        return any(event.get("name") == name for event in self.events) or name in (
            f"batch {number}" for number in range(1, batches + 1)
        )


class SparkHost:
    """A driver with a local master, or with two executors in JVMs of their own."""

    def __init__(
        self, home: SparkHome, directory: Path, *, separate_executors: bool, settings: Mapping[str, str]
    ) -> None:
        """Starts at once; `wait_until_ready` before the first job. `directory` takes its log and scratch files."""
        self.directory = directory
        self.separate_executors = separate_executors
        self.log = directory / "driver.log"
        given = {
            "master": "local-cluster[2,1,1024]" if separate_executors else "local[2,4]",
            "settings": {
                **SETTINGS,
                "spark.local.dir": str(directory / "local"),
                "spark.sql.warehouse.dir": str(directory / "warehouse"),
                "spark.executor.memory": "700m",
                "spark.ui.showConsoleProgress": "false",
                "spark.executor.extraJavaOptions": home.java_flags,
                **settings,
            },
        }
        with self.log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kill_jobs", json.dumps(given)],
                cwd=ROOT,
                env={**os.environ, **home.environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._said: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> Self:
        """Return when it takes jobs. Raises AssertionError with its log when it does not come up."""
        try:
            event = self._said.get(timeout=_START_TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"Spark has not started in {_START_TIMEOUT:g} s\n{self.stacks()}") from None
        assert event == {"event": "ready"}, f"{event}\n{self.log_tail()}"
        return self

    def begin(self, job: str, arguments: Mapping[str, Any]) -> Attempt:
        """Start a job; `follow` the attempt to its end before the next one."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, "arguments": dict(arguments)}) + "\n")
        self._process.stdin.flush()
        return Attempt(time.monotonic())

    def follow(self, attempt: Attempt, until: float) -> bool:
        """Take in what the job says until it has ended (True) or the monotonic clock says `until` (False)."""
        while not attempt.ended:
            try:
                event = self._said.get(timeout=max(until - time.monotonic(), 0.001))
            except queue.Empty:
                return False
            self._note(attempt, event)
        return True

    def follow_to(self, attempt: Attempt, name: str, until: float) -> bool:
        """The same, until the job has reached `name` (False) or has ended (True)."""
        while not attempt.ended and not attempt.has_reached(name) and time.monotonic() < until:
            self.follow(attempt, min(until, time.monotonic() + 0.005))
        return attempt.ended

    def kill_driver(self) -> bool:
        """kill -9 of the Python driver and its JVM; executors and Python workers find out by themselves."""
        pids = [self._process.pid, *self._pids("SparkSubmit")]
        killed, *_ = [self.kill(pid) for pid in pids]  # a JVM whose Python is gone may be faster than its own signal
        return killed

    @staticmethod
    def kill(pid: int) -> bool:
        """kill -9; False when it was gone."""
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def workers(self) -> list[int]:
        """Every Python process of Spark's: daemons, their workers, and those that plan and commit."""
        return self._pids("pyspark.")

    def task_workers(self) -> list[int]:
        """Those of them that run tasks."""
        return self._pids("pyspark.worker")

    def executors(self) -> list[int]:
        """The JVMs of the executors."""
        return self._pids("CoarseGrainedExecutorBackend")

    def stacks(self) -> str:
        """What every process is doing, for a report on one that hangs: by jstack and py-spy, where there are such."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        found = [f"log of the driver:\n{self.log_tail()}"]
        for process in self._session():
            with contextlib.suppress(psutil.Error):
                is_java = "java" in process.name()
                tool = shutil.which("jstack" if is_java else "py-spy")
                if tool is not None:
                    command = [tool, str(process.pid)] if is_java else [tool, "dump", "--pid", str(process.pid)]
                    found.append(f"{' '.join(process.cmdline())[-200:]}\n{_output_of(command)}")
        return "\n\n".join(found)

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    def close(self) -> None:
        """End every process of the session and remove the scratch files; the log stays."""
        for process in self._session():
            with contextlib.suppress(psutil.Error):
                process.kill()
        with self._process:
            self._process.kill()
        for scratch in ("local", "warehouse"):
            shutil.rmtree(self.directory / scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # closed under our feet
            for line in self._process.stdout:
                self._said.put(json.loads(line))
        self._said.put(None)

    def _note(self, attempt: Attempt, event: dict[str, Any] | None) -> None:
        if event is None:
            self._process.wait()
            attempt.ended, attempt.error = True, "gone"
        elif event["event"] == "ended":
            attempt.ended, attempt.error = True, event["error"]
        else:
            attempt.events.append(event)
        attempt.seconds = time.monotonic() - attempt.begun

    def _pids(self, word: str) -> list[int]:
        """Those with a word on their command line that is, or ends with, or begins with `word`."""
        found = []
        for process in self._session():
            with contextlib.suppress(psutil.Error):
                if any(part.startswith(word) or part.endswith(word) for part in process.cmdline()):
                    found.append(process.pid)
        return found

    def _session(self) -> list[psutil.Process]:
        """All processes of ours, those too whose parent is gone."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if os.getsid(pid) == self._process.pid:
                    found.append(psutil.Process(pid))
        return found


def _output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, errors="replace")
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    return (done.stdout + done.stderr)[-20_000:]
