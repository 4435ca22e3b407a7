"""The demo's broker, run as a user runs it: by the console, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from broker.errors import PykafkaError

__all__ = ["ConsoleProcess", "console_command", "start_broker"]

START_TIMEOUT_S = 60.0


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

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed `pattern`. Raises PykafkaError when it ends before, or after a minute."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if found := re.search(pattern, self.text + self.log, re.MULTILINE):
                return found
            if not self.running:
                break
            time.sleep(0.05)
        raise PykafkaError(f"{self._process.args!r} did not come up:\n{self.log[-2000:]}")

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        return self._process.wait()

    def kill(self) -> None:
        """SIGKILL to it and all its children, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """A clean end."""
        if self.running:
            self._process.terminate()
            self._process.wait()


def start_broker(directory: Path) -> tuple[ConsoleProcess, str, str]:
    """A broker with data in `directory`: (process, its host:port, its ZooKeeper's host:port)."""
    settings = ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={directory / 'broker'}")
    overrides = [word for setting in settings for word in ("--override", setting)]
    process = ConsoleProcess(["broker", "start", *overrides], directory / "broker-console")
    try:
        zookeeper = process.wait_for(r"ZooKeeper of our own at (\S+)$").group(1)
        bootstrap = process.wait_for(r"^pykafka broker 0 listening on (\S+)$").group(1)
    except BaseException:
        process.kill()
        raise
    return process, bootstrap, zookeeper
