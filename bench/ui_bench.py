"""The console of a large cluster: its first page, what open pages cost it, and what they cost a producer.

A page is what htmx asks for: the same address every five seconds. The browser's own work is not measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
from confluent_kafka import Producer

from bench.measure import Row
from broker.client.admin import Admin
from broker.client.admin_types import NewTopic
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets
from broker.protocol.topic_partition import TopicPartition
from pykafka_ui.seen.history import STEP_S
from pykafka_ui.seen.sampler import Sampler
from tests.support.broker_process import BrokerProcess
from tests.support.ui_process import UiProcess

TOPICS, PARTITIONS, GROUPS, READ = 2_000, 5, 1_000, 10
"""`READ`: partitions that a group has offsets of."""
WATCHED_S, PAGES = 60, 20
EVERY_S = 5.0
PATHS = ("/", "/topics", "/topics?sort=-rate", "/groups", "/topics/t-0001", "/groups/g-0001", "/brokers", "/metrics")
PRODUCED_S, ROUNDS = 10.0, 9
POINTS = 24 * 3600 // STEP_S
SETTINGS = {
    "num.partitions": "1",
    "log.retention.bytes": str(256 << 20),
    "log.segment.bytes": str(64 << 20),
    "log.retention.check.interval.ms": "1000",  # a producer writes 700 MB/s
    "log.segment.delete.delay.ms": "1000",
}


def run(scale: float = 1.0) -> Iterator[Row]:
    """All rows; `scale` makes the cluster smaller and the times shorter."""
    topics, groups = max(int(TOPICS * scale), 2), max(int(GROUPS * scale), 2)
    with tempfile.TemporaryDirectory() as directory:
        with BrokerProcess(Path(directory) / "data", SETTINGS, standalone=True) as broker:
            _fill(broker.bootstrap, topics, groups)
            yield from _pages(
                broker.bootstrap, f"{topics:,} topics, {topics * PARTITIONS:,} partitions, {groups:,} groups"
            )
            yield from _open_pages(broker.bootstrap, max(WATCHED_S * scale, 10))
        with BrokerProcess(Path(directory) / "small", SETTINGS, standalone=True) as broker:
            yield from _beside_a_producer(broker.bootstrap, max(PRODUCED_S * scale, 2))
            _fill(broker.bootstrap, 100, 50)
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                early, late = pool.submit(_day, broker.bootstrap, max(int(POINTS * scale), 300)).result()
            yield Row("memory after a simulated day, against two hours of it", late, "MB", early)


def _fill(bootstrap: str, topics: int, groups: int) -> None:
    names = [f"t-{number:04}" for number in range(topics)]
    with Cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        for start in range(0, topics, 50):
            admin.create_topics([NewTopic(name, PARTITIONS, 1, {}) for name in names[start : start + 50]])
        for number in range(groups):
            tps = [TopicPartition(names[(number + at // PARTITIONS) % topics], at % PARTITIONS) for at in range(READ)]
            GroupOffsets(cluster, f"g-{number:04}").commit(dict.fromkeys(tps, 0))


def _pages(bootstrap: str, name: str) -> Iterator[Row]:
    with UiProcess(bootstrap) as ui:
        yield Row(f"first page, {name}", _ask(ui, "/") * 1e3, "ms")
        time.sleep(30)  # groups and sizes have been seen
        for path in PATHS:
            yield Row(f"GET {path}", statistics.median(_ask(ui, path) for _ in range(5)) * 1e3, "ms")


def _open_pages(bootstrap: str, seconds: float) -> Iterator[Row]:
    with UiProcess(bootstrap) as ui:
        process = psutil.Process(ui.pid)
        _ask(ui, "/")
        time.sleep(seconds / 2)  # the first looks
        one = _share(ui, process, ["/"], seconds)
        yield Row("one page open", one, "% of a core")
        yield Row("memory with it", process.memory_info().rss / 1e6, "MB")
        many = _share(ui, process, [PATHS[number % 4] for number in range(PAGES)], seconds)
        yield Row(f"{PAGES} pages open, each beyond the first", (many - one) / (PAGES - 1), "% of a core")
        yield Row("memory with them", process.memory_info().rss / 1e6, "MB")


def _share(ui: UiProcess, process: psutil.Process, paths: Sequence[str], seconds: float) -> float:
    """Percent of a core that the console takes while these pages are open."""
    with _opened(ui, paths):
        before, began = process.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after = process.cpu_times()
        taken = after.user + after.system - before.user - before.system
        return 100 * taken / (time.monotonic() - began)


@contextlib.contextmanager
def _opened(ui: UiProcess, paths: Sequence[str]) -> Iterator[None]:
    closed = threading.Event()

    def poll(path: str, delay: float) -> None:
        closed.wait(delay)
        while not closed.is_set():
            _ask(ui, path)
            closed.wait(EVERY_S)

    delays = [EVERY_S * number / len(paths) for number in range(len(paths))]
    threads = [threading.Thread(target=poll, args=one) for one in zip(paths, delays, strict=True)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        closed.set()
        for thread in threads:
            thread.join()


def _ask(ui: UiProcess, path: str) -> float:
    """Seconds until the answer is there."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"{ui.address}{path}", timeout=120) as answer:
        answer.read()
    return time.perf_counter() - began


def _beside_a_producer(bootstrap: str, seconds: float) -> Iterator[Row]:
    """In turns, so that a drift of the machine hits both."""
    with UiProcess(bootstrap) as ui:
        _produced(bootstrap, seconds)
        alone, beside = [], []
        for _ in range(ROUNDS):
            alone.append(_produced(bootstrap, seconds))
            with _opened(ui, [PATHS[number % 4] for number in range(PAGES)]):
                beside.append(_produced(bootstrap, seconds))
        ratio = statistics.median(one / other for one, other in zip(beside, alone, strict=True))
        yield Row(f"producer beside {PAGES} pages", statistics.median(beside), "MB/s", statistics.median(alone))
        yield Row("median of the ratios in turn", ratio, "")


def _day(bootstrap: str, points: int) -> tuple[float, float]:
    """Memory (MB) after two simulated hours and after all points, of a sampler that looks once a point."""
    process, sampler = psutil.Process(), Sampler(ClientSettings.of(bootstrap))
    real, early = time.time, 0.0
    for number in range(points):
        time.time = lambda number=number: real() + STEP_S * number  # type: ignore[misc]
        for look in (sampler._look_at_topics, sampler._look_at_groups, sampler._look_at_logs):
            look()
        if number == 2 * 3600 // STEP_S:
            early = process.memory_info().rss / 1e6
    return early, process.memory_info().rss / 1e6


def _produced(bootstrap: str, seconds: float) -> float:
    """MB/s that one producer gets acknowledged at full speed."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "queue.buffering.max.kbytes": 65536}
    )
    value, sent, began = b"x" * 1000, 0, time.monotonic()
    while time.monotonic() - began < seconds:
        try:
            producer.produce("load", value)
            sent += 1
        except BufferError:
            producer.poll(0.01)
    producer.flush(60)
    return sent * len(value) / 1e6 / (time.monotonic() - began)
