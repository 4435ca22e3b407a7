"""Producers, transactions and consumers while brokers are killed, frozen and cut off: no promise is broken.

Every topic has three replicas and min.insync.replicas=2, so each acknowledged record is on two brokers (P1). After the
run the replicas are equal byte for byte (P3), and no epoch had two leaders (P4, P5). The clients are those of
history_run.py, the faults those of cluster.py. Half a minute in every test run, ten with each seed in the slow set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.embedded import EmbeddedBroker
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import DEFAULT, QuotaEntity
from broker.security.acl_types import (
    CLUSTER_NAME,
    AccessControlEntry,
    Acl,
    AclOperation,
    AclResourceType,
    ResourcePattern,
)
from tests.support.cluster import ClusterFaults, KillRounds, LinkedCluster, StateWatch
from tests.support.history import Anomaly, History, anomalies
from tests.support.history_run import COPIED_PARTITIONS, SETTINGS, WRITTEN_PARTITIONS, run_clients
from tests.support.randomness import seeded
from tests.support.replica_audit import compacted_anomalies, partition_directories, replica_anomalies
from tests.support.waiting import eventually

GUARDED_S = 180
REPLICATED = {
    **SETTINGS,
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "log.cleaner.enable": "false",  # so that replicas of the internal topics are equal, too
    # Short, so that more happens: faults last up to 8 s.
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "3000",
    "replica.socket.timeout.ms": "3000",
}
COMPACTING = {
    "log.cleaner.enable": "true",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "offsets.topic.segment.bytes": "20000",
    "transaction.state.log.segment.bytes": "20000",
}
GUARDED = {
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until `guard` has made some
}
QUOTAS = {"producer_byte_rate": 40_000.0, "consumer_byte_rate": 80_000.0, "request_percentage": 20.0}
OFFSETS_PARTITIONS = [TopicPartition("__consumer_offsets", p) for p in range(3)]
INTERNAL_PARTITIONS = [*OFFSETS_PARTITIONS, *(TopicPartition("__transaction_state", p) for p in range(3))]
PARTITIONS = [
    *WRITTEN_PARTITIONS,
    *COPIED_PARTITIONS,
    *INTERNAL_PARTITIONS,
]
HARDEST = ("leave_one", "kill_all", "kill", "leave_one", "cut_from_zookeeper", "pause", "kill_all", "leave_one")
EVERYTHING = ClusterFaults.PROCESSES + ClusterFaults.LINKS + ClusterFaults.MACHINES


@pytest.mark.timeout(400)
def test_faults_of_brokers_and_links_break_no_promise(tmp_path: Path) -> None:
    _disturb(tmp_path, seconds=30, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("seed", "zookeepers", "compacted"), [(2, 1, False), (3, 1, True), (4, 3, False), (5, 3, True), (6, 3, False)]
)
def test_ten_minutes_of_faults_break_no_promise(tmp_path: Path, seed: int, zookeepers: int, compacted: bool) -> None:
    _disturb(tmp_path, seconds=600, seed=seed, zookeepers=zookeepers, compacted=compacted)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_deaths_of_two_brokers_or_all_break_no_promise(tmp_path: Path, seed: int) -> None:
    """They come back with their disks, so nothing is lost, although more than one dies at a time."""
    with checked_cluster(tmp_path) as (cluster, states, run):
        dice = seeded(seed)
        faults = ClusterFaults(cluster, HARDEST * 2, dice, lambda: states.wait_for_isr(PARTITIONS, 3))
        run(faults.run_all)
        print(f"faults: {dict(faults.made)}")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_faults_break_no_promise_where_acls_and_quotas_decide(tmp_path: Path) -> None:
    """Clients and brokers are allowed by ACLs what they do, and every client is throttled."""
    with checked_cluster(tmp_path, more=GUARDED) as (cluster, states, run):
        guard(cluster.bootstrap)
        faults = ClusterFaults(cluster, EVERYTHING, seeded(7), lambda: states.wait_for_isr(PARTITIONS, 3))
        run(lambda: faults.run(GUARDED_S))
        print(f"faults: {dict(faults.made)}")


def guard(bootstrap: str) -> None:
    """Allow what is done without a login, and limit it."""
    everything = AccessControlEntry("User:ANONYMOUS", AclOperation.ALL)
    types = (AclResourceType.TOPIC, AclResourceType.GROUP, AclResourceType.TRANSACTIONAL_ID)
    patterns = [ResourcePattern(AclResourceType.CLUSTER, CLUSTER_NAME), *(ResourcePattern(one, "*") for one in types)]
    with Cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        admin.create_acls([Acl(pattern, everything) for pattern in patterns])
        admin.alter_client_quotas(QuotaEntity(user=DEFAULT), QUOTAS)


@pytest.mark.timeout(300)
def test_kills_under_load_break_no_promise(tmp_path: Path) -> None:
    _kill(tmp_path, rounds=4, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_two_hundred_kills_under_load_break_no_promise(tmp_path: Path) -> None:
    _kill(tmp_path, rounds=200, seed=2)


def _disturb(directory: Path, *, seconds: float, seed: int, zookeepers: int = 1, compacted: bool = False) -> None:
    with checked_cluster(directory, zookeepers, compacted=compacted) as (cluster, states, run):
        dice = seeded(seed)
        faults = ClusterFaults(cluster, EVERYTHING, dice, lambda: states.wait_for_isr(PARTITIONS, 3))
        run(lambda: faults.run(seconds))
        print(f"faults: {dict(faults.made)}")


def _kill(directory: Path, *, rounds: int, seed: int) -> None:
    with checked_cluster(directory) as (cluster, states, run):
        kills = KillRounds(cluster, states, WRITTEN_PARTITIONS, OFFSETS_PARTITIONS, seeded(seed))
        run(lambda: kills.run(rounds))
        print(f"killed: {dict(kills.made)}")


@contextmanager
def checked_cluster(
    directory: Path, zookeepers: int = 1, *, compacted: bool = False, more: Mapping[str, str] | None = None
) -> Iterator[tuple[LinkedCluster, StateWatch, Callable[[Callable[[], object]], None]]]:
    """A cluster, its states, and what runs clients during a disturbance and checks every promise afterwards.

    `compacted`: the brokers compact the internal topics as soon as they can. `more`: settings of the brokers.
    """
    history = History()
    settings = {**REPLICATED, **(COMPACTING if compacted else {}), **(more or {})}
    audit = partial(replicas_differ, compacted=compacted)
    with (
        LinkedCluster(3, directory, settings, zookeepers=zookeepers) as cluster,
        StateWatch(cluster.zookeeper, history) as states,
    ):
        states.follow(PARTITIONS)

        def run(disturb: Callable[[], object]) -> None:
            run_clients(cluster.bootstrap, disturb, history, replicas=3)
            states.wait_for_isr(PARTITIONS, 3)
            eventually(lambda: audit(cluster.brokers) == [], interval=0.5)
            assert anomalies(history) == []
            acknowledged = sum(write.must_be_there for write in history.writes)
            read = sum(len(poll.records) for poll in history.polls)
            print(f"acknowledged: {acknowledged} of {len(history.writes)}, read: {read}, states: {len(history.states)}")

        yield cluster, states, run
    for tp in PARTITIONS:
        assert len(partition_directories(cluster.brokers, tp)) == 3
    assert audit(cluster.brokers) == []
    if compacted:
        assert all("compacted __consumer_offsets" in one.log_file.read_text() for one in cluster.brokers.values())


def replicas_differ(brokers: Mapping[int, EmbeddedBroker], *, compacted: bool = False) -> list[Anomaly]:
    """What is wrong between the replicas."""
    return [
        found
        for tp in PARTITIONS
        for found in (compacted_anomalies if compacted and tp in INTERNAL_PARTITIONS else replica_anomalies)(
            tp, partition_directories(brokers, tp)
        )
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_of_single_replicas_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """A partition is away while its broker is, and transactions cannot span brokers: idempotent producers only."""
    history = History()
    settings = {**SETTINGS, "offsets.topic.num.partitions": "3"}
    with LinkedCluster(3, tmp_path, settings) as cluster, StateWatch(cluster.zookeeper, history) as states:
        states.follow(WRITTEN_PARTITIONS)
        faults = ClusterFaults(cluster, ClusterFaults.PROCESSES + ClusterFaults.LINKS, seeded(1))
        run_clients(cluster.bootstrap, lambda: faults.run(40), history, transactions=False)
        assert history.states
