"""Twelve hosts: those of ManyHosts, a Spark master with two workers, two for drivers, and Iceberg's catalog.

    with SparkHosts(tmp_path) as site:
        clients = site.at_work("orders")
        application = site.application("orders", site.drivers[0])

Tables are written to S3, with Iceberg's catalog in PostgreSQL. `shared` is a directory that all hosts mount, as drivers
need one for their checkpoints.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from tests.support.host_counts import Numbers
from tests.support.host_cuts import SPARK
from tests.support.hosts import Host, Server, start_master, start_worker
from tests.support.many_hosts import Clients, ManyHosts, close
from tests.support.spark_home import SMALL_QUERIES, shared_spark_home
from tests.support.waiting import eventually

_COUNTS = "tests.support.host_counts"
_SETTINGS = {
    "spark.cores.max": "4",
    "spark.driver.memory": "512m",
    "spark.executor.cores": "2",
    "spark.executor.memory": "512m",
    "spark.log.level": "WARN",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    **SMALL_QUERIES,
}
"""Time-outs are Spark's own."""
_CORES = 4
"""Of a worker: executors of a driver that is gone hold theirs until they notice, and another driver needs some."""


class SparkHosts(ManyHosts):
    """The hosts, from `with` to its end."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.shared = directory / "shared"

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.shared.mkdir()
            self.catalog = self.network.host("catalog")
            words = (sys.executable, "-m", "tests.support.postgres", self.catalog.address)
            database = self.catalog.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._running.callback(close, database)
            assert database.stdout is not None
            self._database = database.stdout.readline().decode().strip()
            self.master = start_master(self.network.host("spark"))
            self.workers = [self.network.host(f"worker{number}") for number in (1, 2)]
            for host in self.workers:
                self.start_worker(host)
            self.drivers = [self.network.host(f"driver{number}") for number in (1, 2)]
            self.client.call(f"{_COUNTS}:make_namespace", self.catalog_settings)
        except BaseException:
            self._running.close()
            raise
        return self

    @property
    def delta(self) -> dict[str, str]:
        """Of S3, in deltalake's names."""
        return {
            "aws_endpoint": self.storage["endpoint_url"],
            "aws_access_key_id": self.storage["key"],
            "aws_secret_access_key": self.storage["secret"],
            "aws_region": self.storage["region"],
            "allow_http": "true",
        }

    @property
    def catalog_settings(self) -> dict[str, str]:
        """Of the Iceberg catalog, in pyiceberg's names."""
        return {
            "uri": self._database,
            "warehouse": "s3://lake/iceberg",
            "s3.endpoint": self.storage["endpoint_url"],
            "s3.access-key-id": self.storage["key"],
            "s3.secret-access-key": self.storage["secret"],
            "s3.region": self.storage["region"],
        }

    @property
    def environment(self) -> dict[str, str]:
        """The catalog `lake` for drivers and executors; and a quick start of Java."""
        variables = {name.replace(".", "__").replace("-", "_").upper(): name for name in self.catalog_settings}
        catalog = {f"PYICEBERG_CATALOG__LAKE__{name}": self.catalog_settings[of] for name, of in variables.items()}
        home = shared_spark_home()
        java = {"SPARK_SUBMIT_OPTS": home.java_flags}
        return {**catalog, **java, "SPARK_HOME": home.environment()["SPARK_HOME"]}

    def start_worker(self, host: Host) -> Server:
        return start_worker(host, self.master, cores=_CORES, memory="2g", env=self.environment)

    def at_work(self, topic: str) -> Clients:
        """A producer and a group at the topic, which is made, as is an empty one for its copy."""
        create = ("topics", "create", "--bootstrap-server", self.bootstrap, "--topic", f"{topic}-copy")
        self.client.pykafka(*create, "--partitions", "3", "--replication-factor", "3")
        return self.clients(topic, {})

    def application(self, topic: str, host: Host) -> Application:
        """A Spark application at the topic, whose driver is on this host."""
        application = Application(self, topic, host)
        self._running.callback(close, application.process)
        return application

    def written(self, topic: str) -> dict[str, Numbers]:
        """What others than we find in the output of each job of host_spark.py that has one."""
        delta = {job: f"s3://lake/{topic}/{job}" for job in ("delta", "upsert")}
        iceberg = (f"lake.{_plain(topic)}", self.catalog_settings)
        given = (self.bootstrap, f"{topic}-copy", delta, self.delta, *iceberg)
        told = self.client.call(f"{_COUNTS}:written", *given)
        return {job: Numbers.of_json(numbers) for job, numbers in told.items()}


class Application:
    """A host_spark.py that runs."""

    def __init__(self, site: SparkHosts, topic: str, host: Host) -> None:
        settings = {"spark.master": site.master, "spark.driver.host": host.name}
        settings["spark.executor.extraJavaOptions"] = shared_spark_home().java_flags
        given = {
            "settings": {**_SETTINGS, **settings},
            "bootstrap": site.bootstrap,
            "topic": topic,
            "copy": f"{topic}-copy",
            "shared": f"file://{site.shared}/{topic}",
            "lake": f"s3://lake/{topic}",
            "storage": site.storage,
            "iceberg": f"lake.{_plain(topic)}",
        }
        self.host = host
        self._log = host.home / f"{topic}-spark.log"
        with self._log.open("ab") as errors:
            self.process = host.popen(
                *(sys.executable, "-m", "tests.support.host_spark", json.dumps(given)),
                env=site.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.progress: dict[str, list[float]] = {job: [] for job in SPARK}
        self.failures: dict[str, list[tuple[float, str]]] = {job: [] for job in SPARK}
        self.read = Numbers(frozenset())
        """What the last batch read found."""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def wait_until_all_go_on(self, timeout: float, times: int = 1) -> None:
        """Return when each job has got on so often since this was called."""
        begun = time.monotonic()
        with contextlib.suppress(AssertionError):  # it says less than `told`
            eventually(lambda: self._over() or not self._behind(begun, times), timeout, 0.2)
        assert not self._over(), self.told()
        assert not self._behind(begun, times), f"no progress of {self._behind(begun, times)}\n{self.told()}"

    def stop(self) -> None:
        close(self.process)

    def pauses(self, since: float, until: float) -> dict[str, float]:
        """The longest time in which a job did not get on, of that between these two."""
        return {
            job: _longest([since, *(at for at in times if since < at < until), until])
            for job, times in self.progress.items()
        }

    def failed(self, job: str, since: float) -> list[str]:
        return [error for at, error in self.failures[job] if at > since]

    def told(self) -> str:
        log = self._log.read_text(errors="replace")
        return f"{self.failures}\n{self.progress}\n{log[-6000:]}"

    def _behind(self, begun: float, times: int) -> list[str]:
        return [job for job, those in self.progress.items() if sum(at > begun for at in those) < times]

    def _over(self) -> bool:
        return not self._thread.is_alive()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if told["event"] == "failed":
                self.failures[told["job"]].append((told["at"], told["error"]))
                continue
            if "found" in told:
                self.read = Numbers.of_json(told["found"])
            self.progress[told["job"]].append(told["at"])


def _longest(times: list[float]) -> float:
    return max(later - at for at, later in itertools.pairwise(times))


def _plain(topic: str) -> str:
    return topic.replace("-", "_")
