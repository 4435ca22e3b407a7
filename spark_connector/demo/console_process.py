"""Console commands of the demo, run as a user runs them: in a process of their own, so that they can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ConsoleProcess", "console_command"]


def console_command(*arguments: str) -> list[str]:
    """`pykafka ARGUMENTS…` of this very environment."""
    return [sys.executable, "-m", "broker.tools.main", *arguments]


class ConsoleProcess:
    """A console command in a process group of its own, its output and its log in files."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self._output, self._log = output.with_suffix(".out"), output.with_suffix(".log")
        with self._output.open("wb") as stdout, self._log.open("wb") as stderr:
            self._process = subprocess.Popen(
                console_command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYSPARK_PYTHON": sys.executable},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    @property
    def log(self) -> str:
        """What it has written to standard error so far."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL to it and all its children, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
