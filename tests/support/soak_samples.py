"""What the soak test looks at every few seconds, and how it judges the series.

`Probe.sample` reads a broker from outside: its process (psutil), its metrics, its data directory, and a few small
synchronous produces, whose time is the event loop's delay as a client feels it. Every sample is a row of a CSV file,
so that a long run can be watched and drawn while it goes on.
"""

from __future__ import annotations

import csv
import dataclasses
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.scrape import Scrape
from tests.support.soak_readers import VISITORS

PRODUCES = 20
HALF_HOUR_S = 1800.0


@dataclasses.dataclass(frozen=True)
class Handles:
    """A process's open descriptors by what they are."""

    sockets: int
    files: int
    deleted: int
    """Of files that are deleted already."""

    @classmethod
    def of(cls, pid: int) -> Handles:
        sockets = files = deleted = 0
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(link)
            except FileNotFoundError:  # closed since it was listed
                continue
            sockets += target.startswith("socket:")
            files += target.startswith("/")
            deleted += target.endswith(" (deleted)")
        return cls(sockets, files, deleted)


@dataclasses.dataclass(frozen=True)
class Sample:
    """One row: memory in MB, disk in MB, times in ms, CPU in cores since the last sample."""

    seconds: float
    rss_mb: float
    cleaner_rss_mb: float
    sockets: int
    files: int
    deleted: int
    threads: int
    connections: int
    partitions: int
    producer_ids: int
    groups: int
    transactional_ids: int
    disk_mb: float
    lag: int
    mb_in_s: float
    broker_cores: float
    cpu_wait: float
    """Of the broker's event loop: the share of the time it could have run and other processes had the cores."""
    load_cores: float
    cleanings: int
    uncollected: int
    produce_p50_ms: float
    produce_max_ms: float


class Probe:
    """Samples `broker` and the process that is its load, into the CSV file `table`."""

    def __init__(self, broker: BrokerProcess, load: psutil.Process, topic: str, table: Path) -> None:
        self._broker = broker
        self._process = psutil.Process(broker.pid)
        self._load = load
        self._topic = topic
        self._ask = Requests(broker.bootstrap)
        self._began = self._before = time.monotonic()
        self._cpu, self._load_cpu, self._bytes = _cpu(self._process), _cpu(load), 0.0
        self._waited = _waited_for_cpu(broker.pid)
        self._file = table.open("w", encoding="utf-8", newline="", buffering=1)
        self._rows = csv.writer(self._file)
        self._rows.writerow(field.name for field in dataclasses.fields(Sample))
        self.samples: list[Sample] = []
        self.latencies: list[list[float]] = []
        """Seconds of the synchronous produces of each sample."""

    def close(self) -> None:
        self._ask.close()
        self._file.close()

    def sample(self) -> Sample:
        now = time.monotonic()
        passed, self._before = now - self._before, now
        cpu, load_cpu = _cpu(self._process), _cpu(self._load)
        waited = _waited_for_cpu(self._broker.pid)
        scrape = Scrape(self._broker.metrics_url)
        bytes_in = scrape.total("kafka_server_brokertopicmetrics_bytesin_total")
        handles = Handles.of(self._broker.pid)
        took = sorted(self._produce() for _ in range(PRODUCES))
        self.latencies.append(took)
        sample = Sample(
            seconds=round(now - self._began, 1),
            rss_mb=_mb(self._process.memory_info().rss),
            cleaner_rss_mb=_mb(sum(_rss(child) for child in self._process.children(recursive=True))),
            sockets=handles.sockets,
            files=handles.files,
            deleted=handles.deleted,
            threads=self._process.num_threads(),
            connections=int(scrape.total("kafka_server_socketservermetrics_connection_count")),
            partitions=int(scrape.total("kafka_server_replicamanager_partitioncount")),
            producer_ids=int(scrape.total("kafka_server_replicamanager_produceridcount")),
            groups=int(scrape.total("kafka_coordinator_group_groupmetadatamanager_numgroups")),
            transactional_ids=int(scrape.total("kafka_coordinator_transaction_transactionalidcount")),
            disk_mb=_mb(disk_bytes(self._broker.data_dir)),
            lag=lag_of_those_who_stay(scrape),
            mb_in_s=round(max(bytes_in - self._bytes, 0) / max(passed, 0.001) / 1e6, 1),
            broker_cores=round((cpu - self._cpu) / max(passed, 0.001), 2),
            cpu_wait=round((waited - self._waited) / max(passed, 0.001), 2),
            load_cores=round((load_cpu - self._load_cpu) / max(passed, 0.001), 2),
            cleanings=int(scrape.total("kafka_log_logcleaner_runs_total")),
            uncollected=int(scrape.total("python_gc_objects_uncollectable_total")),
            produce_p50_ms=round(statistics.median(took) * 1e3, 2),
            produce_max_ms=round(took[-1] * 1e3, 2),
        )
        self._cpu, self._load_cpu, self._waited, self._bytes = cpu, load_cpu, waited, bytes_in
        self._rows.writerow(dataclasses.astuple(sample))
        self.samples.append(sample)
        return sample

    def _produce(self) -> float:
        began = time.monotonic()
        self._ask.produce({(self._topic, 0): batch(b"x" * 100)}, acks=1)
        return time.monotonic() - began


def lag_of_those_who_stay(scrape: Scrape) -> int:
    """Records between what groups have committed and the end, over all groups that are not a visitor's."""
    lags = scrape.samples("kafka_consumergroup_lag")
    return int(sum(lag for labels, lag in lags if not labels["consumergroup"].startswith(VISITORS)))


def growth_per_half_hour(points: Sequence[tuple[float, float]]) -> float:
    """The slope of a straight line through (seconds, value), for half an hour."""
    return float(statistics.linear_regression(*zip(*points, strict=True)).slope * HALF_HOUR_S)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def disk_bytes(directory: Path) -> int:
    """Bytes of the files below a directory that is being written to."""
    total = 0
    for at, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(at, name)).st_blocks * 512  # index files are sparse
            except FileNotFoundError:
                continue
    return total


def _mb(size: float) -> float:
    return round(size / 1e6, 1)


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def _waited_for_cpu(pid: int) -> float:
    """Seconds that the main thread was ready to run and did not, since it began."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0
