"""Eleven hosts: three brokers, ZooKeeper, a Spark master with two workers, two hosts of drivers, S3, PostgreSQL.

    with ManyHosts(tmp_path) as site:
        clients = site.clients("orders")
        application = site.application("orders", ["delta"])

All that runs is real, and on the host that its attribute names. What is written goes to S3, with Iceberg's catalog in
PostgreSQL; `shared` is a directory that all hosts mount, as drivers need one for their checkpoints.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.support.host_clients import KEYS
from tests.support.host_counts import Numbers
from tests.support.hosts import (
    BROKER_PORT,
    Host,
    Network,
    Server,
    start_broker,
    start_master,
    start_worker,
    start_zookeeper,
)
from tests.support.replicated_cluster import REPLICATED
from tests.support.spark_home import SMALL_QUERIES
from tests.support.waiting import eventually

BROKERS = {
    **REPLICATED,
    "remote.log.storage.system.enable": "true",
    "archive.url": "s3://archive/kafka",
    "log.retention.check.interval.ms": "1000",
    "remote.log.manager.task.interval.ms": "1000",
}
ARCHIVED = {"remote.storage.enable": "true", "segment.bytes": "4096", "local.retention.bytes": "8192"}
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.log.level": "WARN",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": _QUICK,
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.mode": "FAIR",
    "spark.network.timeout": "60s",
    "spark.network.timeoutInterval": "10s",
    "spark.executor.heartbeatInterval": "5s",
    **SMALL_QUERIES,
}
CORES = 3
_READY_S = 180


_C = TypeVar("_C", bound="_Child")


class ManyHosts:
    """The hosts, from `with` to its end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running = contextlib.ExitStack()
        self.shared = directory / "shared"
        self.bootstrap = ",".join(f"broker{number}:{BROKER_PORT}" for number in (1, 2, 3))

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as starting:
            network = self.network = starting.enter_context(Network(self._directory))
            self.shared.mkdir()
            self.store, self.catalog = network.host("store"), network.host("catalog")
            s3 = self.store.popen(
                *(sys.executable, "-m", "tests.support.fake_s3", self.store.address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            starting.callback(_close, s3)
            assert s3.stdout is not None
            self._s3 = str(json.loads(s3.stdout.readline()))
            database = self.catalog.popen(
                *(sys.executable, "-m", "tests.support.postgres", self.catalog.address),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            starting.callback(_close, database)
            assert database.stdout is not None
            self._database = database.stdout.readline().decode().strip()
            self.zookeeper = network.host("zookeeper")
            zookeeper = start_zookeeper(self.zookeeper)
            self.brokers = {number: network.host(f"broker{number}") for number in (1, 2, 3)}
            options = {f"archive.options.{name}": value for name, value in self.storage.items()}
            for number, host in self.brokers.items():
                start_broker(host, number, zookeeper, {**BROKERS, **options})
            self.spark = network.host("spark")
            self.master = start_master(self.spark)
            self.workers = [network.host(f"worker{number}") for number in (1, 2)]
            self.worker_servers = [self.start_worker(host) for host in self.workers]
            self.drivers = [network.host(f"driver{number}") for number in (1, 2)]
            self.call("make_namespace")
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def storage(self) -> dict[str, str]:
        """Of S3, in fsspec's names."""
        return {"endpoint_url": self._s3, "key": "me", "secret": "hush-hush", "region": "us-east-1"}

    @property
    def delta(self) -> dict[str, str]:
        """The same, in deltalake's names."""
        return {
            "aws_endpoint": self._s3,
            "aws_access_key_id": "me",
            "aws_secret_access_key": "hush-hush",
            "aws_region": "us-east-1",
            "allow_http": "true",
        }

    @property
    def environment(self) -> dict[str, str]:
        """Of whoever opens the Iceberg catalog `lake`: drivers and executors."""
        catalog = {
            "uri": self._database,
            "warehouse": "s3://lake/iceberg",
            "s3__endpoint": self._s3,
            "s3__access_key_id": "me",
            "s3__secret_access_key": "hush-hush",
            "s3__region": "us-east-1",
        }
        return {f"PYICEBERG_CATALOG__LAKE__{name.upper()}": value for name, value in catalog.items()}

    def start_worker(self, host: Host) -> Server:
        return start_worker(
            host, self.master, cores=CORES, memory="1g", env={**self.environment, "SPARK_DAEMON_JAVA_OPTS": _QUICK}
        )

    def call(self, function: str, *arguments: Any) -> Any:
        """A function of host_counts.py, on the second driver's host."""
        code = (
            "import json, sys; from tests.support import host_counts\n"
            f"print(json.dumps(host_counts.{function}(*json.loads(sys.argv[1]))))"
        )
        told = self.drivers[1].run(sys.executable, "-c", code, json.dumps(arguments), env=self.environment)
        return json.loads(told.splitlines()[-1])

    def clients(self, topic: str) -> Clients:
        """A producer and a group at the topic, which is made, on the second driver's host."""
        return self._closing(Clients(self, topic))

    def application(self, topic: str, jobs: Sequence[str], driver: int = 0) -> Application:
        """A Spark application at the topic on this driver's host."""
        return self._closing(Application(self, topic, jobs, self.drivers[driver]))

    def _closing(self, child: _C) -> _C:
        self._running.callback(child.close)
        return child

    def found(self, topic: str, *, tables: bool) -> tuple[int, dict[str, Numbers]]:
        """How many records should be in the archive, and what others than we find there and in the `topic`; and, with
        `tables`, in the output of each job of host_spark.py."""
        delta = {job: f"s3://lake/{topic}/{job}" for job in ("stream", "delta", "upsert")}
        given = (f"{topic}-copy", delta, self.delta, self.table_of(topic)) if tables else ()
        found = self.call("everything", self.bootstrap, topic, *given)
        archived = int(found.pop("archived"))
        return archived, {place: Numbers.of_json(numbers) for place, numbers in found.items()}

    @staticmethod
    def table_of(topic: str) -> str:
        """Its Iceberg table."""
        return "lake." + topic.replace("-", "_")


class _Child:
    """A program on a host that is asked on its standard input, and answers lines of JSON."""

    def __init__(self, host: Host, log: Path, *command: str, env: dict[str, str]) -> None:
        self.host, self.log = host, log
        with log.open("ab") as errors:
            self.process = host.popen(
                *(sys.executable, "-m", *command),
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.host.name}: it ended: {self.log.read_text(errors='replace')[-4000:]}"
        return json.loads(line)

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def close(self) -> None:
        _close(self.process)


class Clients(_Child):
    """See host_clients.py."""

    def __init__(self, site: ManyHosts, topic: str) -> None:
        words = ["tests.support.host_clients", site.bootstrap, topic, json.dumps(ARCHIVED)]
        host = site.drivers[1]
        super().__init__(host, host.home / f"{topic}-clients.log", *words, env=site.environment)
        assert self.read() == "ready"

    def ask(self, what: str) -> Any:
        self.write(what)
        return self.read()


class Application(_Child):
    """See host_spark.py."""

    def __init__(self, site: ManyHosts, topic: str, jobs: Sequence[str], host: Host) -> None:
        settings = {**SPARK, "spark.master": site.master, "spark.driver.host": host.name}
        given = {
            "settings": settings,
            "jobs": list(jobs),
            "bootstrap": site.bootstrap,
            "topic": topic,
            "copy": f"{topic}-copy",
            "group": topic,
            "shared": str(site.shared / topic),
            "table": f"s3://lake/{topic}",
            "storage": site.storage,
            "delta": site.delta,
            "iceberg": site.table_of(topic),
        }
        words = ["tests.support.host_spark", json.dumps(given)]
        environment = {**site.environment, "SPARK_SUBMIT_OPTS": _QUICK, "SPARK_AUTH_SOCKET_TIMEOUT": "120"}
        super().__init__(host, host.home / f"{topic}-spark.log", *words, env=environment)
        self.jobs = list(jobs)
        self.progress: dict[str, list[float]] = {job: [] for job in jobs}
        self.failures: dict[str, list[str]] = {job: [] for job in jobs}
        self.batch = Numbers(frozenset())
        """What the last batch read found."""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait_until_all_go_on(self, timeout: float = _READY_S) -> None:
        """Return when each job has got on since this was called."""
        begun = time.monotonic()
        eventually(lambda: all(at and at[-1] > begun for at in self.progress.values()) or self._over(), timeout)
        assert not self._over(), self.told()

    def pause(self, job: str, since: float, until: float) -> float:
        """The longest time in which the job did not get on, of that between these two."""
        times = [since, *(at for at in self.progress[job] if since < at < until), until]
        return max(later - at for at, later in itertools.pairwise(times))

    def told(self) -> str:
        return f"{self.failures}\n{self.log.read_text(errors='replace')[-6000:]}"

    def _over(self) -> bool:
        return not self._thread.is_alive()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            job = told["job"]
            if told["event"] == "progress":
                self.progress[job].append(told["at"])
                if "found" in told:
                    self.batch = Numbers.of_json(told["found"])
            elif told["event"] == "failed":
                self.failures[job].append(told["error"])


def _close(process: subprocess.Popen[bytes]) -> None:
    """The programs end with their standard input."""
    with process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


def last_of_keys(numbers: Iterable[int]) -> set[int]:
    """What an upsert leaves of these numbers."""
    return set({number % KEYS: number for number in sorted(numbers)}.values())
