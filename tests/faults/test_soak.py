"""Half an hour at 80 % of the peak, with retention and compaction on: nothing may grow, lag, leak or be logged.

What the load is stands in tests/support/soak_load.py, what is looked at below. The fast variant runs the
same for some twenty seconds, with bounds that so short a time allows. The slow one's minutes are set by
PYKAFKA_SOAK_MINUTES, and PYKAFKA_SOAK_SAMPLES names the file for the samples (CSV, written as it goes on).
"""

from __future__ import annotations

import csv
import dataclasses
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker.api.check_threads import THREADS as CHECK_THREADS
from broker.log.manager import APPEND_THREADS
from broker.log.segment import DESCRIPTORS_PER_SEGMENT
from tests.support.broker_process import BrokerProcess
from tests.support.raw_requests import Requests, batch
from tests.support.scrape import Scrape
from tests.support.soak_load import COMPACTED, COPIES, PLAIN, TRANSACTIONAL, SoakLoad
from tests.support.soak_readers import VISITORS
from tests.support.waiting import eventually

# --- What the soak test looks at every few seconds, and how it judges the series.
# `Probe.sample` reads a broker from outside: its process (psutil), its metrics, its data directory, and a few small
# synchronous produces, whose time is the event loop's delay as a client feels it. Every sample is a row of a CSV
# file, so that a long run can be watched and drawn while it goes on.

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


# --- the tests

MINUTES = float(os.environ.get("PYKAFKA_SOAK_MINUTES", "30"))
SHARE_OF_PEAK = 0.8
MB = 1_000_000
SEGMENT, RETENTION = 16 * MB, 160 * MB

SETTINGS = {
    "metrics.listener": "HTTP://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    # What visitors leave behind expires within the run.
    "offsets.retention.minutes": "1",
    "offsets.retention.check.interval.ms": "5000",
    "producer.id.expiration.ms": "60000",
    "transactional.id.expiration.ms": "60000",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "5000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.segment.bytes": str(MB),
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.segment.bytes": str(MB),
}
DELETED = {"segment.bytes": str(SEGMENT), "retention.bytes": str(RETENTION), "retention.ms": "60000"}
CLEANED = {
    "segment.bytes": str(4 * MB),
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.3",
    "delete.retention.ms": "5000",
}
TOPICS = {
    PLAIN: (4, DELETED),
    TRANSACTIONAL: (2, DELETED),
    COPIES: (2, {**DELETED, "cleanup.policy": "compact,delete"}),
    COMPACTED: (2, CLEANED),
    "probe": (1, {**DELETED, "segment.bytes": str(MB)}),
}
DISK_MB = 2000
"""8 partitions of 160 MB, a segment above that and what a second adds to each, and what compaction leaves of two
topics and of the broker's own two."""
SECONDS_BEHIND = 10
"""Committed offsets are a second old, transactions that visitors leave open hold readers up for three."""
OPEN_FILES = 150 * DESCRIPTORS_PER_SEGMENT
"""Of segments and their mapped indexes, once a partition was used; 21 partitions of up to a dozen segments."""
PRODUCE_P99_MS, CROWDED_PRODUCE_P99_MS = 100, 2_000
"""Of a small produce with the broker's event loop at work: while it got the core it needed, and whatever else the
machine did, when the wait for a core is most of it."""
TRIES = 3
CROWDED, FEW = 0.2, 200
"""The share of time without a core from which a sample counts as crowded; produces below which nothing is judged."""
WORKER_THREADS = 6 + APPEND_THREADS + CHECK_THREADS
"""The pools make a thread when all they have are busy, asyncio's up to six on two cores, and appends' and checks' only
on a crowded machine, where the disk seems slow: late ones are no leak."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run is, and what it allows."""

    peak_s: float
    steady_s: float
    every_s: float
    rss_growth_mb: float
    """By the straight line through the second half, for the length of the whole run."""
    held_share: float
    """The most of the steady time that a writer may have paused for readers that did not follow."""
    most_mb_s: float = math.inf


FAST = Plan(peak_s=2, steady_s=14, every_s=1, rss_growth_mb=15, held_share=0.8, most_mb_s=200)
"""`DISK_MB` has room for what two seconds add at 200 MB/s. A machine whose peak is twice that would need more."""
FULL = Plan(peak_s=10, steady_s=MINUTES * 60 - 10, every_s=5, rss_growth_mb=10, held_share=0.1)


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run."""

    samples: list[Sample]
    latencies: list[list[float]]
    """Seconds of the small produces at each sample."""
    before: Handles
    after: Handles
    load: dict[str, dict[str, int]]
    log: str


@pytest.fixture
def broker(tmp_path: Path, zookeeper: str) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker", SETTINGS, zookeeper=f"{zookeeper}/{tmp_path.name}") as process:
        yield process


@pytest.mark.timeout(300)
def test_some_seconds_near_the_peak_leave_nothing_behind(zookeeper: str, tmp_path: Path) -> None:
    """A leak is in every run. A step of the allocator bends the line through seven samples in one of five."""
    growths: list[float] = []
    while len(growths) < TRIES and min(growths, default=FAST.rss_growth_mb) >= FAST.rss_growth_mb:
        directory = tmp_path / str(len(growths))
        directory.mkdir()
        chroot = f"{zookeeper}/{tmp_path.name}-{directory.name}"
        with BrokerProcess(directory / "broker", SETTINGS, zookeeper=chroot) as broker:
            run = _run(broker, FAST, directory)
        _judge(FAST, run)
        growths.append(_growth_mb(FAST, run))
    assert min(growths) < FAST.rss_growth_mb, growths


@pytest.mark.slow
@pytest.mark.timeout(MINUTES * 60 + 300)
def test_half_an_hour_near_the_peak_leaves_nothing_behind(broker: BrokerProcess, tmp_path: Path) -> None:
    run = _run(broker, FULL, tmp_path)
    _judge(FULL, run)
    assert _growth_mb(FULL, run) < FULL.rss_growth_mb


def _run(broker: BrokerProcess, plan: Plan, directory: Path) -> Run:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    wanted = [NewTopic(name, count, 1, config=config) for name, (count, config) in TOPICS.items()]
    for made in admin.create_topics(wanted).values():
        made.result(30)
    del admin
    eventually(lambda: _connections(broker) == 0)
    before = Handles.of(broker.pid)
    load = SoakLoad(broker.bootstrap, plan.peak_s, SHARE_OF_PEAK, directory / "load.log", most_mb_s=plan.most_mb_s)
    table = Path(os.environ.get("PYKAFKA_SOAK_SAMPLES") or directory / "soak.csv")
    probe = Probe(broker, load.process, "probe", table)
    try:
        _watch(plan, load, probe)
        load.tell("drain")
        eventually(lambda: load.phase == "drained", timeout=60)
        eventually(lambda: _cleanings(broker) > 0)
        eventually(lambda: lag_of_those_who_stay(Scrape(broker.metrics_url)) == 0, timeout=60, interval=0.5)
        load.tell("end")
        load.wait()
    finally:
        load.close()
        probe.close()
    eventually(lambda: _connections(broker) == 0)

    def handles_are_back() -> bool:
        """A descriptor more than before is a leak; one still being closed is not, nor is what a compaction has open."""
        now = Handles.of(broker.pid)
        return now.deleted == 0 and now.sockets <= before.sockets and now.files - before.files < OPEN_FILES

    eventually(handles_are_back)
    after = Handles.of(broker.pid)
    assert not load.state["failures"]
    return Run(probe.samples, probe.latencies, before, after, load.state, broker.output)


def _watch(plan: Plan, load: SoakLoad, probe: Probe) -> None:
    """Sample from the end of the peak on."""
    eventually(lambda: load.phase == "steady", timeout=60 + plan.peak_s)
    probe.sample()
    probe.samples.clear()
    probe.latencies.clear()
    deadline = due = time.monotonic()
    deadline += plan.steady_s
    while due < deadline:
        due += plan.every_s
        time.sleep(max(due - time.monotonic(), 0))
        assert load.phase == "steady"
        probe.sample()


def _judge(plan: Plan, run: Run) -> None:
    late = run.samples[len(run.samples) // 2 :]
    print(_summary(run, _growth_mb(plan, run)))
    assert run.after.files - run.before.files < OPEN_FILES
    early = run.samples[: len(run.samples) // 2]
    assert max(s.threads for s in late) <= max(s.threads for s in early) + WORKER_THREADS
    assert max(s.disk_mb for s in late) < DISK_MB
    assert late[-1].uncollected == 0
    records_s = sum(run.load["sent"].values()) / (plan.peak_s + plan.steady_s)
    assert max(s.lag for s in late) < SECONDS_BEHIND * records_s
    assert max(run.load["held_s"].values()) < plan.held_share * plan.steady_s
    sent, read = run.load["sent"], run.load["read"]
    assert read["reader-1"] + read["reader-2"] >= sent["plain"] + sent["idempotent"]
    assert read["committed-1"] >= sent["in-transactions"] * 0.3  # visitors join its group, and take their part
    assert read["copier"] >= sent["in-transactions"]
    assert all(visits > 0 for visits in run.load["visits"].values())
    every, calm = _latencies(run)
    assert quantile(every, 0.99) * 1e3 < CROWDED_PRODUCE_P99_MS
    assert len(calm) < FEW or quantile(calm, 0.99) * 1e3 < PRODUCE_P99_MS
    complaints = [line for line in run.log.splitlines() if " ERROR " in line or "Traceback" in line]
    assert complaints == []


def _growth_mb(plan: Plan, run: Run) -> float:
    """By the second half of the samples, for the length of the whole run."""
    late = run.samples[len(run.samples) // 2 :]
    return growth_per_half_hour([(s.seconds, s.rss_mb) for s in late]) * (plan.steady_s + plan.peak_s) / 1800


def _latencies(run: Run) -> tuple[list[float], list[float]]:
    """All, and those of samples in which the broker got the core it needed."""
    pairs = list(zip(run.samples, run.latencies, strict=True))
    calm = [one for sample, took in pairs if sample.cpu_wait < CROWDED for one in took]
    return [one for _, took in pairs for one in took], calm


def _summary(run: Run, growth: float) -> str:
    first, last = run.samples[0], run.samples[-1]
    count = len(run.samples)
    every, calm = _latencies(run)
    return (
        f"{count} samples, {sum(s.mb_in_s for s in run.samples) / count:.1f} MB/s in (target"
        f" {run.load['target_mb_s']}), broker {sum(s.broker_cores for s in run.samples) / count:.2f} cores,"
        f" load {sum(s.load_cores for s in run.samples) / count:.2f} cores\n"
        f"memory {first.rss_mb} -> {last.rss_mb} MB, growth {growth:.1f} MB; disk at most"
        f" {max(s.disk_mb for s in run.samples)} MB; handles {run.before} -> {run.after}; threads {last.threads}\n"
        f"{_quantiles('produce', every)}; {_quantiles('while it got its core', calm)}; the event loop waited for a core"
        f" {sum(s.cpu_wait for s in run.samples) / count:.2f} of the time; {last.cleanings} compactions; {run.load}"
    )


def _quantiles(what: str, seconds: list[float]) -> str:
    if not seconds:
        return f"{what}: none"
    p50, p99 = quantile(seconds, 0.5) * 1e3, quantile(seconds, 0.99) * 1e3
    return f"{what}: {len(seconds)}, p50 {p50:.2f} ms, p99 {p99:.2f} ms, at most {max(seconds) * 1e3:.1f} ms"


def _cleanings(broker: BrokerProcess) -> float:
    return Scrape(broker.metrics_url).total("kafka_log_logcleaner_runs_total")


def _connections(broker: BrokerProcess) -> float:
    return Scrape(broker.metrics_url).total("kafka_server_socketservermetrics_connection_count")
