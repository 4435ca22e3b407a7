"""Many rounds of leaders that are killed while they copy to the archive, and the table of what came of them.

    python -m tests.support.archive_kills [--rounds 200] [--seed N] [--cells one-* …] [--directory D]

A round makes a topic of small segments, produces numbered records, and lets the leader stand still at a step of a copy.
There it is killed with SIGKILL (`one`: a broker that starts again; `three`: a cluster, in which another one leads on),
or stopped with SIGSTOP until the next leader has archived more, and then wakes (`late`). More records follow. Then all
but the active segment has to be archived and gone from the leader's disk, `verify --deep` has to be clean, at most the
objects of interrupted copies are left over, and a consumer gets each acknowledged record once.

tests/faults/test_archive_kills.py plays every step once, and 200 rounds in the slow set.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from broker.archive.layout import PartitionPlace
from broker.archive.manifest import Manifest
from broker.archive.manifest_store import ManifestStore
from broker.archive.prune import leftovers
from broker.archive.verify import verify_partition
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition as Partition
from broker.storage.storage import open_storage
from tests.support.held_broker import STEPS, HeldBroker
from tests.support.kill_rounds import Matrix, Played, command
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.waiting import eventually

SEGMENT = 4096
"""Bytes; a record has about 100."""
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
    "unclean.leader.election.enable": "false",
}
_SECOND_BLOW = 0.25
_FAR_FUTURE_MS = 10**14


class Cell(NamedTuple):
    """What is struck, and where."""

    kind: str
    step: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.step.replace(' ', '-')}"


CELLS = tuple(Cell(kind, step) for kind in ("one", "three", "late") for step in STEPS)


@dataclass
class ArchiveKills(Played):
    """`kills` count those that only sleep, too; `leftovers` are objects of interrupted copies."""

    acknowledged: int = 0
    segments: int = 0
    leftovers: int = 0

    shown: ClassVar = {"kills": "kills", "acknowledged": "records", "segments": "segments", "leftovers": "left over"}


class HeldCluster(ReplicatedCluster):
    """Three brokers that can be held."""

    broker_class = HeldBroker


class ArchiveMatrix(Matrix[ArchiveKills]):
    """Brokers and their archive, which the rounds share; they start when a round needs them."""

    played = ArchiveKills

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._one: HeldBroker | None = None
        self._three: HeldCluster | None = None
        self.url = f"file://{directory}/archive"

    def brokers(self, kind: str) -> dict[int, HeldBroker]:
        """The brokers of a cell's kind by their ids, all of which run."""
        settings = {
            "archive.url": self.url,
            "remote.log.storage.system.enable": "true",
            "log.retention.check.interval.ms": "200",
            "log.flush.scheduler.interval.ms": "50",
        }
        if kind == "one":
            if self._one is None:
                self._one = HeldBroker(self._directory / "one", settings, standalone=True)
                self._running.callback(self._one.kill)
            self._one.start()
            return {0: self._one}
        if self._three is None:
            self._three = HeldCluster(self._directory / "three", {**settings, "zookeeper.session.timeout.ms": "3000"})
            self._running.callback(self._three.kill)
            self._three.start()
        for broker in self._three.brokers.values():
            broker.start()
        return self._three.brokers  # type: ignore[return-value]

    def _play(self, played: ArchiveKills) -> None:
        brokers = self.brokers(played.cell.kind)
        with _Round(self, brokers, f"round-{next(self._numbers)}", played) as round_:
            round_.play()


class _Round:
    def __init__(self, matrix: ArchiveMatrix, brokers: dict[int, HeldBroker], topic: str, played: ArchiveKills) -> None:
        self._cell, self._brokers, self._topic, self._played = played.cell, brokers, topic, played
        self._dice = random.Random(played.seed)
        self._bootstrap = ",".join(broker.bootstrap for broker in brokers.values())
        self._storage = open_storage(matrix.url)
        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "socket.timeout.ms": 3_000,  # of a leader that sleeps
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self._sent = itertools.count()
        self._acknowledged: dict[int, int] = {}
        """Number → offset."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for broker in self._brokers.values():
            broker.release()
            broker.resume()
            broker.start()

    def play(self) -> None:
        with Cluster(self._bootstrap) as cluster:
            Admin(cluster).create_topic(self._topic, 1, len(self._brokers), TOPIC)
            topic, cluster_id = cluster.topic(self._topic), cluster.cluster_id()
        assert topic.topic_id is not None
        assert cluster_id is not None
        self._place = PartitionPlace(cluster_id, topic.topic_id, 0)
        self._store = ManifestStore(self._storage, cluster_id, topic.topic_id, 0)
        self._produce(self._dice.randrange(0, 200))
        for _ in range(1 + (self._dice.random() < _SECOND_BLOW)):
            self._strike()
        self._produce(150)
        self._audit()

    def _strike(self) -> None:
        """Let the leader stand still at the step, and kill it or let it sleep."""
        self._heal()
        leader = self._brokers[self._leader()]
        leader.hold(self._cell.step)
        self._produce(self._dice.randrange(80, 160))
        leader.wait_until_held()
        self._played.kills += 1
        leader.release()
        if self._cell.kind != "late":
            leader.kill()
            if self._cell.kind == "three":
                self._produce(self._dice.randrange(1, 100))
            leader.start()
            return
        before = self._store.load()
        leader.pause()
        self._produce(120)  # the next leader archives them
        eventually(lambda: self._store.load().epoch > before.epoch and self._store.load().end > before.end, timeout=60)
        leader.resume()

    def _leader(self) -> int:
        with Cluster(self._bootstrap) as cluster:
            return cluster.leader(Partition(self._topic, 0)).id

    def _heal(self) -> None:
        """Return when all replicas are in sync."""

        def healed() -> bool:
            with Cluster(self._bootstrap) as cluster:
                one = cluster.topic(self._topic).partitions[0]
                return one.leader >= 0 and len(one.isr) == len(self._brokers)

        eventually(healed, timeout=60, interval=0.05)

    def _produce(self, count: int) -> None:
        """Each record in a batch of its own, so that segments close."""
        for _ in range(count):
            number = next(self._sent)
            self._producer.produce(self._topic, f"{number}".rjust(100), partition=0, on_delivery=self._delivered)
            if number % 4 == 3:
                self._producer.flush(60)
        self._producer.flush(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        value, offset = message.value(), message.offset()
        assert value is not None
        assert offset is not None
        self._acknowledged[int(value)] = offset

    # --- the judge

    def _audit(self) -> None:
        self._heal()
        end = max(self._acknowledged.values()) + 1
        assert sorted(self._acknowledged) == list(range(next(self._sent))), "records were not acknowledged"
        eventually(lambda: self._is_archived(end), interval=0.05)
        manifest = self._store.load()
        self._check_manifest(manifest)
        report = verify_partition(
            self._storage, self._place, deep=True, orphan_ms=_FAR_FUTURE_MS, now_ms=time.time_ns() // 10**6
        )
        assert not report.problems, f"verify: {report.problems[:3]}"
        left = leftovers(self._storage, self._place, _FAR_FUTURE_MS).orphans
        played = self._played
        played.acknowledged, played.segments = len(self._acknowledged), len(manifest.segments)
        played.leftovers = len(left)
        # A log and an aux of each interrupted copy; and the file that a store without rename has as temporary one.
        assert len(left) <= 3 * played.kills, f"left over: {[one.path for one in left]}"
        self._read(end)

    def _is_archived(self, end: int) -> bool:
        """Whether the leader has one segment, and all others are archived and gone."""
        leader = self._brokers[self._leader()]
        logs = sorted(leader.data_dir.glob(f"**/{self._topic}-0/*.log"))
        return len(logs) == 1 and self._store.load().end == int(logs[0].stem) > end - SEGMENT // 50

    def _check_manifest(self, manifest: Manifest) -> None:
        assert manifest.start == 0
        ends = [0, *(segment.end for segment in manifest.segments)]
        assert [segment.base for segment in manifest.segments] == ends[:-1], "gap or overlap"

    def _read(self, end: int) -> None:
        """A client that is not ours reads all of it."""
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap, "group.id": "audit", "enable.auto.commit": False, "log_level": 0}
        )
        try:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            found: dict[int, int] = {}
            counts: Counter[int] = Counter()
            deadline = time.monotonic() + 60
            while len(found) < len(self._acknowledged):
                assert time.monotonic() < deadline, f"read {len(found)} of {len(self._acknowledged)} records"
                for message in consumer.consume(500, 0.5):
                    assert message.error() is None, message.error()
                    value, offset = message.value(), message.offset()
                    assert value is not None
                    assert offset is not None
                    found[int(value)] = offset
                    counts[int(value)] += 1
        finally:
            consumer.close()
        assert found == self._acknowledged, "records have other offsets than they were acknowledged with"
        assert max(counts.values()) == 1, "records came twice"


if __name__ == "__main__":
    command(__doc__, ArchiveMatrix, CELLS)
