"""A cluster with many replicated partitions: what it costs when idle, and how soon all have leaders after a death.

Three brokers. One topic has all the partitions, then many topics have ten each; all have three replicas.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench.measure import Row
from broker.embedded import EmbeddedCluster
from tests.support.waiting import eventually

PARTITIONS = 1000
IDLE_S = 10.0
BUSY = 10.0
"""Percent of a core that no idle broker takes."""
SETTINGS = {"min.insync.replicas": "2"}


def run(scale: float = 1.0) -> Iterator[Row]:
    """`scale` is the share of the partitions."""
    count = max(int(PARTITIONS * scale), 10)
    for topics in (1, count // 10):
        with EmbeddedCluster(3, settings=SETTINGS) as cluster:
            yield from _measure(cluster, topics, count)


def _measure(cluster: EmbeddedCluster, topics: int, count: int) -> Iterator[Row]:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = [NewTopic(f"t{number}", count // topics, 3) for number in range(topics)]
    start = time.perf_counter()
    for created in admin.create_topics(new, operation_timeout=120, request_timeout=120).values():
        created.result()
    eventually(lambda: _led(admin, topics) == [3] * count, timeout=120)
    case = f"{count:,} partitions in {topics:,} topics"
    yield Row(f"creating {case}", time.perf_counter() - start, "s")
    yield from _idle(cluster, case)
    yield from _elections(cluster, admin, topics, count, case)


def _idle(cluster: EmbeddedCluster, case: str) -> Iterator[Row]:
    processes = [psutil.Process(broker.pid) for broker in cluster.brokers.values()]
    calm = threading.Event()  # never set: to wait is all it is for
    # What the creation of the partitions set off has ended.
    eventually(lambda: max(process.cpu_percent(1.0) for process in processes) < BUSY, timeout=120)
    before = [sum(process.cpu_times()[:2]) for process in processes]
    calm.wait(IDLE_S)
    used = [sum(process.cpu_times()[:2]) - was for process, was in zip(processes, before, strict=True)]
    yield Row(f"CPU of an idle broker, {case}", max(used) / IDLE_S * 100, "% of a core")
    yield Row(f"memory of a broker, {case}", max(process.memory_info().rss for process in processes) / 1e6, "MB")


def _elections(cluster: EmbeddedCluster, admin: AdminClient, topics: int, count: int, case: str) -> Iterator[Row]:
    found = admin.list_topics(timeout=30)
    victim = next(broker for broker in cluster.brokers if broker != found.controller_id)
    for name, broker in ("a broker", victim), ("the controller", found.controller_id):
        others = [other.bootstrap for other in cluster.brokers.values() if other is not cluster.brokers[broker]]
        watching = AdminClient({"bootstrap.servers": ",".join(others), "log_level": 0})
        assert _led(watching, topics) == [3] * count
        cluster.brokers[broker].kill()
        start = time.perf_counter()
        eventually(lambda watching=watching: _led(watching, topics) == [2] * count, timeout=60, interval=0.01)  # type: ignore[misc]
        yield Row(f"kill -9 of {name}: until all ISRs and leaders are new, {case}", time.perf_counter() - start, "s")
        start = time.perf_counter()
        cluster.brokers[broker].start()
        eventually(lambda: _led(admin, topics) == [3] * count, timeout=120)
        yield Row(f"start of {name}, until it is in all ISRs, {case}", time.perf_counter() - start, "s")


def _led(admin: AdminClient, topics: int) -> list[int]:
    """Sizes of the ISRs of partitions that have a leader in it."""
    found = admin.list_topics(timeout=30).topics
    partitions = [p for n in range(topics) if f"t{n}" in found for p in found[f"t{n}"].partitions.values()]
    return [len(one.isrs) for one in partitions if one.leader in one.isrs]
