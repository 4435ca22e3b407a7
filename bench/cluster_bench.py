"""Three brokers that replicate against one: throughput, CPU of leader and followers, synchronous sends, catching up.

All clients use acks=all. Topics of the three brokers have three replicas and min.insync.replicas=2.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from bench.bare_server import TOPIC
from bench.broker_bench import Figures, produce, synchronous
from bench.measure import Row, Target
from broker.embedded import EmbeddedCluster
from tests.support.waiting import eventually

ROUNDS = 3
PARTITIONS = 4
SIZES = ((1024, 300_000), (100, 600_000))
"""(bytes of a message, how many)."""
AWAY = 600_000
"""Messages of 1 KiB that a broker misses while it is away."""


@dataclasses.dataclass
class ClusterTarget(Target):
    """All brokers of a cluster, measured together."""

    processes: Mapping[int, psutil.Process] = dataclasses.field(default_factory=dict)

    @contextlib.contextmanager
    def timed(self) -> Iterator[dict[str, float]]:
        """As `Target.timed`; also the CPU seconds of each broker, by its id."""
        result: dict[str, float] = {}
        before = {broker: one.cpu_times() for broker, one in self.processes.items()}
        start = time.perf_counter()
        yield result
        result["wall"] = time.perf_counter() - start
        for broker, one in self.processes.items():
            after = one.cpu_times()
            result[str(broker)] = after.user + after.system - before[broker].user - before[broker].system
        result["cpu"] = sum(result[str(broker)] for broker in self.processes)


@contextlib.contextmanager
def cluster(count: int) -> Iterator[tuple[EmbeddedCluster, ClusterTarget]]:
    settings = {
        "num.partitions": str(PARTITIONS),
        "default.replication.factor": str(count),
        "min.insync.replicas": str(min(2, count)),
    }
    with tempfile.TemporaryDirectory() as directory, EmbeddedCluster(count, Path(directory), settings) as kafka:
        pids = {broker: psutil.Process(one.pid) for broker, one in kafka.brokers.items()}
        yield kafka, ClusterTarget(f"{count} brokers", kafka.bootstrap, pids[1], pids)


def run(scale: float = 1.0) -> Iterator[Row]:
    """Medians of rounds that go through one broker (the ceiling's column) and three in turn."""
    seen: dict[int, dict[str, list[Figures]]] = {1: {}, 3: {}}
    for _ in range(ROUNDS):
        for count, figures in seen.items():
            with cluster(count) as (_, target):
                for size, messages in SIZES:
                    text = f"produce {size} B, {PARTITIONS} partitions"
                    figures.setdefault(text, []).append(produce(target, size, int(messages * scale), PARTITIONS, "all"))
                figures.setdefault("synchronous send 100 B", []).append(synchronous(target, acks="all"))
    for case, rounds in seen[3].items():
        for unit in rounds[0]:
            three, one = (statistics.median(found[unit] for found in seen[count][case]) for count in (3, 1))
            yield Row(case, three, unit, one, "(three replicas; ceiling: one broker)")
    yield from _roles(int(300_000 * scale))
    yield from _catch_up(int(AWAY * scale))


def _roles(messages: int) -> Iterator[Row]:
    """CPU of the leader and of each follower of a topic with one partition."""
    with cluster(3) as (_, target):
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[1, 2, 3]])])[TOPIC].result()
        with target.timed() as took:
            produce(target, 1024, messages, 1, "all")
        gigabytes = messages * 1024 / 1e9
        yield Row("leader, produce 1 KiB", took["1"] / gigabytes, "CPU s/GB")
        yield Row("follower, produce 1 KiB", (took["2"] + took["3"]) / 2 / gigabytes, "CPU s/GB")


def _catch_up(messages: int) -> Iterator[Row]:
    """How fast a broker that was away gets what it missed, from its start until it is in every ISR."""
    with cluster(3) as (kafka, target):
        admin = AdminClient({"bootstrap.servers": kafka.brokers[1].bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result()
        kafka.brokers[3].stop()
        target.processes = {broker: one for broker, one in target.processes.items() if broker != 3}
        produce(target, 1024, messages, PARTITIONS, "all")
        kafka.brokers[3].start()
        returned, cpu = time.perf_counter(), psutil.Process(kafka.brokers[3].pid)
        eventually(lambda: _isr_sizes(admin) == {3}, timeout=600)
        took = time.perf_counter() - returned
        spent, gigabytes = cpu.cpu_times(), messages * 1024 / 1e9
        yield Row("a returning replica catches up", gigabytes * 1e3 / took, "MB/s")
        yield Row("a returning replica with its start", (spent.user + spent.system) / gigabytes, "CPU s/GB")


def _isr_sizes(admin: AdminClient) -> set[int]:
    return {len(one.isrs) for one in admin.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions.values()}
