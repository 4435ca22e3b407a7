"""A broker or a cluster for a notebook, a test or a script, in child processes that end with their owner.

    from broker.embedded import EmbeddedBroker

    with EmbeddedBroker() as kafka:
        spark.read.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap)…

A broker is the ordinary one, run by `python -m broker start`, with an embedded ZooKeeper; `standalone=True` runs it
without one, in a tenth of the time and without Java. It stops when its standard input closes, and so also when the
owner is killed. `EmbeddedCluster` runs several brokers with one ZooKeeper. With `ui=True` either runs
`pykafka ui` beside.
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
from typing import IO, ClassVar, Self

from broker.errors import PykafkaError
from broker.held_port import HeldPort
from broker.zookeeper.embedded_server import EmbeddedZooKeeper

__all__ = ["EmbeddedBroker", "EmbeddedCluster", "EmbeddedUi"]

_READY = re.compile(
    r"^pykafka broker \d+ listening on (\S+:\d+(?:, \S+:\d+)*)"
    r"(?: \((?:its own ZooKeeper on (\S+)|standalone)\))?(?:, metrics on (\S+))?$",
    re.MULTILINE,
)
_ANY_PORT = re.compile(r"(?<=://)([^,]*):0(?=,|$)")
_POLL_S = 0.02
_LAST_LINES = 20


class EmbeddedBroker:
    """One broker on `data_dir`, by default a temporary directory that `stop` deletes.

    `settings` are broker settings in Kafka's names. By default it listens on a free loopback port, and on the same port
    again after a restart. No other process gets the port meanwhile.
    """

    module: ClassVar[str] = "broker"
    """What the process runs."""

    def __init__(
        self,
        data_dir: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        standalone: bool = False,
        ui: bool = False,
    ) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="pykafka-") if data_dir is None else data_dir).absolute()
        self._settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.data_dir / "broker"),
            "embedded.zookeeper.port": "0",
            **({"standalone": "true"} if standalone else {}),
            **(settings or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: list[HeldPort] = []
        self.bootstrap = ""
        """`host:port` of the first listener, for `kafka.bootstrap.servers`."""
        self.listeners: dict[str, str] = {}
        """`host:port` of each listener by its name."""
        self.zookeeper = self._settings.get("zookeeper.connect", "")
        """`host:port` of its ZooKeeper; empty for a standalone broker."""
        self.metrics_url = ""
        """`http://host:port` of /metrics and /healthz, when `metrics.listener` is set."""
        self.ui = EmbeddedUi(self.data_dir / "ui.log") if ui else None
        """The console in the browser; `ui.url` is its address."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        """The broker's log."""
        return self.data_dir / "broker.log"

    @property
    def _output(self) -> Path:
        return self.data_dir / "broker.out"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self, timeout_s: float = 60.0) -> Self:
        """Return when it listens. Raises PykafkaError with the end of its log when it does not start."""
        if not self.running:
            self._launch()
            self._wait_until_ready(timeout_s)
        if self.ui is not None:
            try:
                self.ui.start(self.bootstrap)
            except BaseException:
                self.stop()
                raise
        return self

    def stop(self) -> None:
        """Stop it cleanly, and delete the data if the directory is temporary. Idempotent."""
        if self.ui is not None:
            self.ui.stop()
        self._end(signal.SIGTERM)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def restart(self) -> Self:
        """Stop it cleanly and start it again, on the same data and port."""
        self._end(signal.SIGTERM)
        return self.start()

    def kill(self) -> None:
        """Stop it with SIGKILL, as a crash would. Keeps the data for the next `start`."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze its process with SIGSTOP, as on a machine that hangs, until `resume`. Its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self) -> None:
        self._wait()  # for an earlier process that has ended by itself
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._settings["listeners"] = _ANY_PORT.sub(self._hold_port, self._settings["listeners"])
        overrides = [word for key, value in self._settings.items() for word in ("--override", f"{key}={value}")]
        with self._output.open("wb") as stdout, self.log_file.open("ab") as stderr:
            self._process = self._run(["-m", self.module, "start", "--stop-on-eof", *overrides], stdout, stderr)

    def _run(self, arguments: list[str], stdout: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def _hold_port(self, address: re.Match[str]) -> str:
        host = address.group(1)
        self._ports.append(HeldPort(host.strip("[]")))
        return f"{host}:{self._ports[-1].port}"

    def _wait_until_ready(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (ready := _READY.search(self._output.read_text())) is None:
            code = None if self._process is None else self._process.poll()
            if not self.running or time.monotonic() > deadline:
                self.kill()
                late = f"did not come up within {timeout_s:g} s"
                what = late if code is None else f"ended with exit code {code} at its start"
                log = self.log_file.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                raise PykafkaError("\n".join([f"the broker {what}; the last lines of its log:", *log]))
            time.sleep(_POLL_S)
        bound = [one if "://" in one else f"PLAINTEXT://{one}" for one in ready.group(1).split(", ")]
        self.listeners = dict(one.split("://") for one in bound)
        self.bootstrap = next(iter(self.listeners.values()))
        self.zookeeper = ready.group(2) or self._settings.get("zookeeper.connect", "")
        self.metrics_url = ready.group(3) or ""
        self._settings["listeners"] = ",".join(bound)

    def _end(self, number: signal.Signals) -> None:
        self._signal(number)
        self._wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            if number is signal.SIGTERM:
                self._process.send_signal(signal.SIGCONT)  # a paused process acts on SIGTERM only when it goes on

    def _wait(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()


class EmbeddedCluster:
    """Several brokers with one ZooKeeper on `data_dir`, by default a temporary directory that `stop` deletes.

        with EmbeddedCluster(3) as kafka:
            kafka.brokers[2].kill()
            kafka.brokers[2].start()

    `settings` are the settings of all brokers in Kafka's names. `broker_settings` are those of single brokers by their
    ids, and win over `settings`. With `zookeeper.connect` in `settings`, the cluster starts no ZooKeeper of its own.
    """

    broker_class: ClassVar[type[EmbeddedBroker]] = EmbeddedBroker

    def __init__(
        self,
        count: int = 3,
        data_dir: Path | str | None = None,
        settings: Mapping[str, str] | None = None,
        broker_settings: Mapping[int, Mapping[str, str]] | None = None,
        *,
        ui: bool = False,
    ) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="pykafka-") if data_dir is None else data_dir).absolute()
        shared, single = settings or {}, broker_settings or {}
        self.brokers: dict[int, EmbeddedBroker] = {
            number: self.broker_class(
                self.data_dir / f"broker-{number}", {"broker.id": str(number), **shared, **single.get(number, {})}
            )
            for number in range(1, count + 1)
        }
        """The brokers by their ids 1, 2, …. Each can be stopped, killed, paused and started again by itself."""
        self.zookeeper = shared.get("zookeeper.connect", "")
        """`host:port` of the ZooKeeper."""
        self.zookeeper_server = None if self.zookeeper else EmbeddedZooKeeper(self.data_dir / "zookeeper")
        """The cluster's own ZooKeeper, None if it has none."""
        self.ui = EmbeddedUi(self.data_dir / "ui.log") if ui else None
        """The console in the browser; `ui.url` is its address."""

    @property
    def bootstrap(self) -> str:
        """`host:port` of the first listener of each broker, for `kafka.bootstrap.servers`."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def start(self, timeout_s: float = 60.0) -> Self:
        """Start what does not run, and return when all brokers listen. Raises PykafkaError with the end of a log."""
        try:
            if self.zookeeper_server is not None:
                self.zookeeper = self.zookeeper_server.start()
            starting = [broker for broker in self.brokers.values() if not broker.running]
            for broker in starting:
                broker._settings.setdefault("zookeeper.connect", self.zookeeper)
                broker._launch()
            for broker in starting:
                broker._wait_until_ready(timeout_s)
            if self.ui is not None:
                self.ui.start(self.bootstrap)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stop all brokers cleanly, then ZooKeeper. Delete the data if the directory is temporary. Idempotent."""
        self._end(signal.SIGTERM)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def kill(self) -> None:
        """Stop all brokers with SIGKILL, then ZooKeeper. Keeps the data for the next `start`."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self, number: signal.Signals) -> None:
        if self.ui is not None:
            self.ui.stop()
        for broker in self.brokers.values():
            broker._signal(number)
        for broker in self.brokers.values():
            broker._wait()
        if self.zookeeper_server is not None:
            self.zookeeper_server.stop()


class EmbeddedUi:
    """`pykafka ui` on a free port, or on `port`, in a child process. It needs the extra `[ui]`."""

    def __init__(self, log_file: Path, port: int = 0) -> None:
        self._log_file = log_file
        self._port = port
        self._process: subprocess.Popen[str] | None = None
        self.url = ""
        """`http://127.0.0.1:port/`."""

    def start(self, bootstrap: str) -> None:
        """Return when it serves; nothing if it does already. Raises PykafkaError with what it wrote if it ends."""
        if self._process is not None and self._process.poll() is None:
            return
        words = ["ui", "--bootstrap-server", bootstrap, "--port", str(self._port), "--stop-on-eof"]
        with self._log_file.open("a") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "broker.tools.main", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise PykafkaError(f"the console did not start: {self._log_file.read_text(errors='replace')[-1000:]}")
        self.url = line.split()[-1]
        self._port = int(self.url.rstrip("/").rpartition(":")[2])

    def stop(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
