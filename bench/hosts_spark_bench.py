"""What Spark's own workers cost on hosts: jobs with 1, 2 and 4 workers at 3 brokers, and with 2 workers at 1 and 5.

Hosts are network namespaces (tests/support/hosts.py: needs root and `ip`); each of a worker and of a broker has a group
of control (cgroup v1, cpu and cpuacct) that gives it a share of a core, so that they are equal, and counts its CPU
seconds, JVM and Python together. ZooKeeper, S3, the master and the driver are on hosts of their own without a limit.
An application runs its jobs on a small topic first, so that starting executors and imports is apart. Compare CPU
seconds; by the clock, figures of one run with each other.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.hosts_bench import bytes_on_links
from bench.hosts_spark_jobs import JOBS
from bench.measure import Row
from bench.spark_common import fill, values
from broker.records.compression import Codec
from tests.support.hosts import Host, Network, start_broker, start_master, start_worker, start_zookeeper, unavailable
from tests.support.many_hosts import close
from tests.support.spark_home import shared_spark_home
from tests.support.waiting import eventually

ROWS, SIZE, PARTITIONS, WARM = 96_000, 1024, 12, 1_200
SITES = ((3, (1, 2, 4)), (1, (2,)), (5, (2,)))
"""Brokers, and the numbers of workers beside them."""
SHARE = 0.25
"""Of a core, for the host of a worker or a broker."""
_GROUPS = [Path("/sys/fs/cgroup") / kind / "pykafka-bench" for kind in ("cpu", "cpuacct")]
_PERIOD_US = 100_000
_SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.log.level": "WARN",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def run(scale: float = 1.0) -> Iterator[Row]:
    """`scale` is the share of the records."""
    if (why_not := unavailable()) is None and not all(
        group.parent.joinpath("cgroup.procs").exists() for group in _GROUPS
    ):
        why_not = "hosts that are equal need cgroup v1 with cpu and cpuacct"
    if why_not is not None:
        print(f"Spark on hosts was not measured: {why_not}", file=sys.stderr)
        return
    shared_spark_home().archive_classes()
    chunk = max(int(ROWS * scale) // PARTITIONS, 100)
    for brokers, numbers in SITES:
        with _Site(brokers, chunk) as site:
            for workers in numbers:
                yield from site.measure(workers)


class _Site(contextlib.ExitStack):
    """ZooKeeper, S3, a master, brokers with two topics; workers are started as they are asked for."""

    def __init__(self, brokers: int, chunk: int) -> None:
        super().__init__()
        try:
            self._start(brokers, chunk)
        except BaseException:
            self.close()
            raise

    def _start(self, brokers: int, chunk: int) -> None:
        directory = Path(self.enter_context(tempfile.TemporaryDirectory()))
        self._shared = directory / "shared"
        self._shared.mkdir()
        self._groups: dict[str, list[Path]] = {}
        self.callback(self._remove_groups)
        self._network = self.enter_context(Network(directory))
        host = self._network.host
        with self._group("zoo"):
            zookeeper = start_zookeeper(host("zoo"))
        for number in range(1, brokers + 1):
            with self._group(f"broker{number}"):
                start_broker(host(f"broker{number}"), number, zookeeper)
        s3 = (sys.executable, "-m", "tests.support.fake_s3", host("store").address)
        store = host("store").popen(*s3, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.callback(close, store)
        self._master = start_master(host("spark"))
        self._workers = self._written = 0
        assert store.stdout is not None
        url = json.loads(store.stdout.readline())
        storage = {"endpoint_url": url, "key": "me", "secret": "hush-hush", "region": "us-east-1"}
        bootstrap = ",".join(f"broker{number}:9092" for number in range(1, brokers + 1))
        rows = {"records": chunk * PARTITIONS, "warm": WARM}
        self._brokers, self._rows = brokers, rows["records"]
        self._given = {"bootstrap": bootstrap, "storage": storage, "rows": rows}
        host("driver").call("bench.hosts_spark_bench:create", bootstrap, brokers, rows)

    def measure(self, workers: int) -> Iterator[Row]:
        """Each job, by an application with so many workers, which are added to those that there are."""
        for number in range(self._workers + 1, workers + 1):
            with self._group(f"worker{number}"):
                start_worker(self._network.host(f"worker{number}"), self._master)
        self._workers = workers
        with contextlib.ExitStack() as running:
            ask = functools.partial(_ask, running.enter_context(self._application(workers)))
            for job in JOBS:
                ask(job, "warm")
            self._limit(SHARE)
            running.callback(self._limit, None)
            for job in JOBS:
                yield self._row(job, functools.partial(ask, job, "records"))
            self._written += self._rows
            found = ask("count", "records-copy")
            assert found == self._written, f"{found} rows were written instead of {self._written}"

    def _row(self, job: str, work: Callable[[], float]) -> Row:
        rows, before, begun = self._rows, self._counters(), time.monotonic()
        told, taken = work(), time.monotonic() - begun
        cpu = {kind: now - before[kind] for kind, now in self._counters().items()}
        assert job in ("batches", "write") or told == rows, (job, told, rows)
        sent = cpu.pop("sent") / 1e6
        seconds = ", ".join(f"{kind} {used:.2f}" for kind, used in cpu.items())
        note = f"({seconds} CPU s; {rows / cpu['broker']:,.0f} rows per CPU s of brokers; {sent:,.0f} MB on links; "
        note += f"{taken:.1f} s by the clock" + (f", a batch {told:.2f})" if job == "batches" else ")")
        case = f"{self._workers} workers, {self._brokers} brokers: {job} {rows:,} × {SIZE} B"
        return Row(case, rows / cpu["worker"], "rows per CPU s of workers", note=note)

    @contextlib.contextmanager
    def _application(self, workers: int) -> Iterator[subprocess.Popen[bytes]]:
        host: Host = self._network.host("driver")
        flags = shared_spark_home().java_flags
        settings = {"spark.master": self._master, "spark.driver.host": host.name, "spark.cores.max": str(workers)}
        settings["spark.executor.extraJavaOptions"] = flags
        own = {"settings": {**_SETTINGS, **settings}, "tasks": PARTITIONS, "name": f"by-{workers}"}
        given = json.dumps({**self._given, **own, "shared": str(self._shared)})
        environment = {"SPARK_SUBMIT_OPTS": flags, "SPARK_HOME": shared_spark_home().environment()["SPARK_HOME"]}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with (host.home / "driver.log").open("ab") as log, self._group("driver"):
            words = (sys.executable, "-m", "bench.hosts_spark_jobs", given)
            process = host.popen(*words, env=environment, stderr=log, **pipes)
        try:
            assert _read(process) == "ready"
            yield process
        except BaseException:
            print((host.home / "driver.log").read_text(errors="replace")[-6000:], file=sys.stderr)
            raise
        finally:
            close(process)

    # -- groups of control

    @contextlib.contextmanager
    def _group(self, name: str) -> Iterator[None]:
        """What is started in the block is in the group of this name, as is all that it starts."""
        if name not in self._groups:
            self._groups[name] = [group / name for group in _GROUPS]
        for group in self._groups[name]:
            group.mkdir(parents=True, exist_ok=True)
            group.joinpath("cgroup.procs").write_text("0")  # this process, until the block ends
        try:
            yield
        finally:
            for group in _GROUPS:
                group.parent.joinpath("cgroup.procs").write_text("0")

    def _limit(self, share: float | None) -> None:
        """Of each worker's and broker's host; None: no limit."""
        for name, (cpu, _) in self._groups.items():
            if name.startswith(("worker", "broker")):
                cpu.joinpath("cpu.cfs_period_us").write_text(str(_PERIOD_US))
                cpu.joinpath("cpu.cfs_quota_us").write_text(str(-1 if share is None else int(share * _PERIOD_US)))

    def _counters(self) -> dict[str, float]:
        """CPU seconds by kind of host, and bytes that were `sent`."""
        found = dict.fromkeys(("worker", "broker", "driver", "zoo"), 0.0)
        for name, (_, account) in self._groups.items():
            found[name.rstrip("0123456789")] += int(account.joinpath("cpuacct.usage").read_text()) / 1e9
        return {**found, "sent": bytes_on_links(self._network)}

    def _remove_groups(self) -> None:
        for group in [*(group for pair in self._groups.values() for group in pair), *_GROUPS]:
            eventually(lambda group=group: not group.joinpath("cgroup.procs").read_text())  # type: ignore[misc]
            group.rmdir()


def _ask(process: subprocess.Popen[bytes], job: str, topic: str) -> Any:
    assert process.stdin is not None
    process.stdin.write(f"{json.dumps([job, topic])}\n".encode())
    process.stdin.flush()
    return _read(process)


def _read(process: subprocess.Popen[bytes]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the driver ended"
    return json.loads(line)


def create(bootstrap: str, brokers: int, rows: dict[str, int]) -> None:
    """On a host: topics with so many records, whose leaders take turns, and the empty ones for their copies."""
    from bench.hosts_bench import create as make

    for topic, number in rows.items():
        for name in (topic, f"{topic}-copy"):
            make(bootstrap, name, [[partition % brokers + 1] for partition in range(PARTITIONS)])
        chunk = values(SIZE, min(number // PARTITIONS, 1_000))
        fill(bootstrap, topic, chunk, number, keyed=False, codec=Codec.NONE, partitions=PARTITIONS)
