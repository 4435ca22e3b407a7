"""Producers, transactions and consumers while three brokers are killed, frozen and cut off: no promise is broken.

Every topic has three replicas and min.insync.replicas=2, so each acknowledged record is on two brokers (P1). After the
run the replicas are equal byte for byte (P3), and no epoch had two leaders (P4, P5). The clients are those of
history_run.py, the faults those of cluster.py.

Until replication is wired in, only the last test runs by itself; the others with PYKAFKA_TEST_REPLICATION=1.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from broker.embedded import EmbeddedBroker
from broker.protocol.topic_partition import TopicPartition
from tests.support.cluster import ClusterFaults, LinkedCluster, StateWatch
from tests.support.history import History, anomalies
from tests.support.history_run import COPIED_PARTITIONS, SETTINGS, WRITTEN_PARTITIONS, run_clients
from tests.support.replica_audit import partition_directories, replica_anomalies
from tests.support.waiting import eventually

REPLICATED = {
    **SETTINGS,
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "transaction.state.log.num.partitions": "3",
    "log.cleaner.enable": "false",  # each broker would compact its own replicas of the internal topics
}
PARTITIONS = [
    *WRITTEN_PARTITIONS,
    *COPIED_PARTITIONS,
    *(TopicPartition(topic, p) for topic in ("__consumer_offsets", "__transaction_state") for p in range(3)),
]

replication = pytest.mark.skipif(
    "PYKAFKA_TEST_REPLICATION" not in os.environ, reason="replication is not wired in: PYKAFKA_TEST_REPLICATION=1"
)


@replication
@pytest.mark.timeout(400)
def test_brokers_that_are_killed_and_frozen_break_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, ClusterFaults.PROCESSES, seconds=60, seed=1)


@replication
@pytest.mark.timeout(400)
def test_brokers_that_are_cut_off_break_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, ClusterFaults.LINKS, seconds=60, seed=1)


@replication
@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(2, 7))
def test_ten_minutes_of_faults_break_no_promise(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, (*ClusterFaults.PROCESSES, *ClusterFaults.LINKS, "kill_zookeeper"), seconds=600, seed=seed)


def _run(directory: Path, kinds: Sequence[str], *, seconds: float, seed: int) -> None:
    history = History()
    with LinkedCluster(3, directory, REPLICATED) as cluster, StateWatch(cluster.zookeeper, history) as states:
        states.follow(PARTITIONS)
        faults = ClusterFaults(cluster, kinds, random.Random(seed))
        run_clients(cluster.bootstrap, lambda: faults.run(seconds), history, replicas=3)
        states.wait_for_isr(PARTITIONS, 3)
        eventually(lambda: _audit(cluster.brokers) == [], timeout=30, interval=0.5)
        assert anomalies(history) == []
    for tp in PARTITIONS:
        assert len(partition_directories(cluster.brokers, tp)) == 3
    assert _audit(cluster.brokers) == []


def _audit(brokers: dict[int, EmbeddedBroker]) -> list[object]:
    return [found for tp in PARTITIONS for found in replica_anomalies(tp, partition_directories(brokers, tp))]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_of_single_replicas_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    """A partition is away while its broker is, and transactions cannot span brokers: idempotent producers only."""
    history = History()
    settings = {**SETTINGS, "offsets.topic.num.partitions": "3"}
    with LinkedCluster(3, tmp_path, settings) as cluster, StateWatch(cluster.zookeeper, history) as states:
        states.follow(WRITTEN_PARTITIONS)
        faults = ClusterFaults(cluster, ClusterFaults.PROCESSES + ClusterFaults.LINKS, random.Random(1))
        run_clients(cluster.bootstrap, lambda: faults.run(40), history, transactions=False)
        assert history.states
