"""A real broker in a process of its own, for tests that talk to it over the wire or kill it.

Called by the fixtures of tests/conftest.py and by tests/faults and tests/bench. `start` returns when the
broker has said where it listens; a restart listens on the same port, so that clients find it again. What
the broker printed is kept beside its data and is shown with a failed test.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.source_tree import ROOT

READY = re.compile(r"^pykafka broker (\d+) listening on (\S+):(\d+)$", re.MULTILINE)

RUNNING: list[BrokerProcess] = []


class BrokerProcess:
    """One `python -m broker start` over `data_dir`; `overrides` are settings in Kafka's names."""

    def __init__(
        self, data_dir: Path, overrides: Mapping[str, str] | None = None, *, zookeeper: str | None = None
    ) -> None:
        self.data_dir = data_dir
        self.zookeeper = zookeeper
        self.overrides = dict(overrides or {})
        self.port = 0
        self.broker_id = -1
        self._process: subprocess.Popen[bytes] | None = None
        self._stdout = data_dir.with_name(data_dir.name + ".stdout")
        self._stderr = data_dir.with_name(data_dir.name + ".stderr")

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """All the broker wrote to standard output and standard error, over every start."""
        return "".join(
            file.read_text(encoding="utf-8", errors="replace") for file in (self._stdout, self._stderr) if file.exists()
        )

    def start(self, timeout: float = 60.0) -> Self:
        """Start, or start again after `stop` or `kill`; returns when the broker listens, within `timeout` seconds."""
        assert not self.running, "already running"
        self.data_dir.mkdir(parents=True, exist_ok=True)
        already_said = self._stdout.stat().st_size if self._stdout.exists() else 0
        with self._stdout.open("ab") as stdout, self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        RUNNING.append(self)
        try:
            self._wait_until_ready(already_said, timeout)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout: float = 60.0) -> int:
        """End it as an operator would (SIGTERM) and return the exit status; kill it if it does not end in time."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the broker did not stop within {timeout} s\n{self.output[-4000:]}") from None
        finally:
            self._forget()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, no last word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def restart(self, timeout: float = 60.0) -> Self:
        """Clean stop, then start on the same port and data."""
        self.stop(timeout)
        return self.start(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.running:
            self.stop()

    def _command(self) -> list[str]:
        settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.data_dir),
            **({"zookeeper.connect": self.zookeeper} if self.zookeeper else {}),
            **self.overrides,
        }
        command = [sys.executable, "-m", "broker", "start"]
        for key, value in settings.items():
            command += ["--override", f"{key}={value}"]
        return command

    def _wait_until_ready(self, already_said: int, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            said = READY.search(self._stdout.read_bytes()[already_said:].decode("utf-8", errors="replace"))
            if said:
                self.broker_id, self.port = int(said[1]), int(said[3])
                return
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"the broker ended with status {self._process.returncode}\n{self.output[-4000:]}")
            if time.monotonic() > deadline:
                raise AssertionError(f"the broker was not ready within {timeout} s\n{self.output[-4000:]}")
            time.sleep(0.01)

    def _forget(self) -> None:
        self._process = None
        RUNNING.remove(self)
