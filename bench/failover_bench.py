"""How long clients are held up when a broker is killed or restarted, and what a controlled stop takes.

Three brokers, 6 partitions with three replicas and min.insync.replicas=2. A writer with acks=all and a reader in a
group work all the time, with librdkafka's default time-outs.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Iterator

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.measure import Row
from broker.embedded import EmbeddedCluster
from tests.support.steady_load import SteadyLoad
from tests.support.waiting import eventually

SETTINGS = {
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
ROUNDS = 5
HEAVY_MB_S = 40
"""About what a broker of this machine can take beside two others."""
OTHER, CONTROLLER, COORDINATOR = "a broker that is not the controller", "the controller", "the group's coordinator"


def run(scale: float = 1.0) -> Iterator[Row]:
    """The worst of several rounds, each with new clients. The note has the median."""
    rounds = max(1, round(ROUNDS * scale))
    loads: list[SteadyLoad] = []
    with EmbeddedCluster(3, settings=SETTINGS) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})

        def load() -> SteadyLoad:
            loads.append(SteadyLoad(cluster.bootstrap).start())
            return loads[-1]

        for who in (OTHER, CONTROLLER, COORDINATOR):
            yield from _rows(f"kill -9 of {who}", [_killed(cluster, admin, load(), who) for _ in range(rounds)])
        found, stops = [], []
        for _ in range(rounds):
            steady = load()
            stops += _rolling_restart(cluster, admin)
            found.append((steady.longest_write, steady.longest_read))
            steady.stop()
        yield from _rows("rolling restart", found)
        yield Row("controlled stop under steady load, the whole process", max(stops), "s", note=_median(stops))
        stops = _rolling_restart(cluster, admin)
        yield Row("controlled stop without load", max(stops), "s", note=_median(stops))
        with _writing(cluster.bootstrap, admin) as failed:
            stops = [took for _ in range(2) for took in _rolling_restart(cluster, admin)]
        yield Row(f"controlled stop while {HEAVY_MB_S} MB/s are written", max(stops), "s", note=_median(stops))
        yield Row("… failed produces", len(failed), "")
        yield Row("failed produces", sum(len(one.failed) for one in loads), "")
        yield Row("acknowledged records that were not read", sum(len(one.unread) for one in loads), "")


def _rolling_restart(cluster: EmbeddedCluster, admin: AdminClient) -> list[float]:
    """How long the stop of each broker took, s."""
    stops = []
    for broker in cluster.brokers.values():
        start = time.perf_counter()
        broker.stop()
        stops.append(time.perf_counter() - start)
        broker.start()
        wait_for_isrs(admin)
    return stops


@contextlib.contextmanager
def _writing(bootstrap: str, admin: AdminClient) -> Iterator[list[KafkaError]]:
    """Write messages of 1 KiB all the time, so that each stop finds records that are not on disk yet."""
    admin.create_topics([NewTopic("heavy", 6, 3)])["heavy"].result(20)
    failed: list[KafkaError] = []
    stopping = threading.Event()

    def delivered(error: KafkaError | None, _: object) -> None:
        if error is not None:
            failed.append(error)

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        start, value, sent = time.monotonic(), os.urandom(1024), 0
        while not stopping.is_set():
            while sent * len(value) / 1e6 > HEAVY_MB_S * (time.monotonic() - start):
                producer.poll(0.001)
            try:
                producer.produce("heavy", value, on_delivery=delivered)
                sent += 1
            except BufferError:
                producer.poll(0.01)
        producer.flush(60)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield failed
    finally:
        stopping.set()
        thread.join()


def _killed(cluster: EmbeddedCluster, admin: AdminClient, load: SteadyLoad, who: str) -> tuple[float, float]:
    found = admin.list_topics(timeout=10)
    coordinator = admin.list_topics("__consumer_offsets", timeout=10).topics["__consumer_offsets"].partitions[0].leader
    victim = {CONTROLLER: found.controller_id, COORDINATOR: coordinator}.get(who)
    if victim is None:
        victim = next(i for i in cluster.brokers if i not in (found.controller_id, coordinator))
    load.reset()
    before = len(load.read)
    cluster.brokers[victim].kill()
    eventually(lambda: len(load.read) > before + 600, timeout=60)
    load.stop()
    cluster.brokers[victim].start()
    wait_for_isrs(admin)
    return load.longest_write, load.longest_read


def wait_for_isrs(admin: AdminClient) -> None:
    """Return when all replicas of all topics are in sync."""

    def are_full() -> bool:
        topics = admin.list_topics(timeout=10).topics.values()
        return all(len(p.isrs) == len(p.replicas) and p.leader > 0 for t in topics for p in t.partitions.values())

    eventually(are_full, timeout=60)


def _rows(case: str, found: list[tuple[float, float]]) -> Iterator[Row]:
    for name, pauses in zip(("writer", "reader"), zip(*found, strict=True), strict=True):
        yield Row(f"{case}: longest pause of the {name}", max(pauses), "s", note=_median(pauses))


def _median(values: list[float] | tuple[float, ...]) -> str:
    return f"(median {statistics.median(values):.2f} s)"
