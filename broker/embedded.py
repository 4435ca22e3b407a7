"""A broker for a notebook, a test or a script, in a child process that ends with its owner.

    from broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as kafka:
        spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap)…

It is the ordinary broker with an embedded ZooKeeper, run by `python -m broker start`. The child stops when its standard
input closes, and so also when the owner is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from broker.errors import PykafkaError

__all__ = ["EmbeddedBroker"]

_READY = re.compile(
    r"^pykafka broker \d+ listening on (\S+:\d+(?:, \S+:\d+)*)"
    r"(?: \(its own ZooKeeper on (\S+)\))?(?:, metrics on (\S+))?$",
    re.MULTILINE,
)
_POLL_S = 0.02


class EmbeddedBroker:
    """One broker on `data_dir`, by default a temporary directory that `stop` deletes.

    `settings` are broker settings in Kafka's names. By default it listens on a free loopback port, and on the same port
    again after a restart.
    """

    def __init__(self, data_dir: Path | str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="pykafka-") if data_dir is None else data_dir).absolute()
        self._settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.data_dir / "broker"),
            "embedded.zookeeper.port": "0",
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        """`host:port` of the first listener, for `kafka.bootstrap.servers`."""
        self.listeners: dict[str, str] = {}
        """`host:port` of each listener by its name."""
        self.zookeeper = self._settings.get("zookeeper.connect", "")
        """`host:port` of its ZooKeeper."""
        self.metrics_url = ""
        """`http://host:port` of /metrics and /healthz, when `metrics.listener` is set."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """The broker's log."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, timeout_s: float = 60.0) -> Self:
        """Return when it listens. Raises PykafkaError with the end of its log when it does not start."""
        if self.running:
            return self
        self.data_dir.mkdir(parents=True, exist_ok=True)
        output = self.data_dir / "broker.out"
        overrides = [word for key, value in self._settings.items() for word in ("--override", f"{key}={value}")]
        with output.open("wb") as stdout, self.log_file.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "broker", "start", "--stop-on-eof", *overrides],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self._process = process
        deadline = time.monotonic() + timeout_s
        while (ready := _READY.search(output.read_text())) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                log = self.log_file.read_text(errors="replace")[-2000:]
                raise PykafkaError(f"the broker did not come up within {timeout_s:g} s:\n{log}")
            time.sleep(_POLL_S)
        bound = [one if "://" in one else f"PLAINTEXT://{one}" for one in ready.group(1).split(", ")]
        self.listeners = dict(one.split("://") for one in bound)
        self.bootstrap, self.zookeeper = next(iter(self.listeners.values())), ready.group(2) or self.zookeeper
        self.metrics_url = ready.group(3) or ""
        self._settings["listeners"] = ",".join(bound)
        return self

    def stop(self) -> None:
        """Stop it cleanly, and delete the data if the directory is temporary. Idempotent."""
        self._end(signal.SIGTERM)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill(self) -> None:
        """Stop it with SIGKILL, as a crash would. Keeps the data for the next `start`."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
