"""Coordinators are killed again and again while groups commit and transactions are copied: nothing is lost or doubled.

Three brokers, all topics with three replicas, the internal ones too (P7). The clients are those of history_run.py: two
transactional producers, a copier with its offsets in its transactions, and a group of two readers.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from pathlib import Path

import pytest

from broker.coordinator.sharded_coordinator import partition_for
from broker.embedded import EmbeddedCluster
from broker.protocol.topic_names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from broker.protocol.topic_partition import TopicPartition
from tests.support.cluster import StateWatch
from tests.support.history import History, Outcome
from tests.support.history_run import COPIED_PARTITIONS, SETTINGS, WRITTEN_PARTITIONS, run_clients
from tests.support.waiting import eventually

PARTITIONS = 3
REPLICATED = {
    **SETTINGS,
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": str(PARTITIONS),
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "zookeeper.session.timeout.ms": "3000",
    "replica.lag.time.max.ms": "3000",
}
COMMITTED_BETWEEN = 25
"""Transactions before the next kill. Otherwise a test ends before much has happened: failover is fast."""
INTERNAL = [
    TopicPartition(topic, partition)
    for topic in (GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC)
    for partition in range(PARTITIONS)
]


def committed(history: History) -> int:
    """How many transactions have been committed."""
    found = {id(write.transaction): write.transaction for write in tuple(history.writes)}
    return sum(one is not None and one.outcome is Outcome.OK for one in found.values())


def reached(history: History, count: int) -> bool:
    return committed(history) >= count


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [2, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_coordinators_that_are_killed_lose_and_double_nothing(tmp_path: Path, kills: int) -> None:
    history = History()
    with EmbeddedCluster(3, tmp_path, REPLICATED) as kafka, StateWatch(kafka.zookeeper, history) as states:
        everything = [*WRITTEN_PARTITIONS, *COPIED_PARTITIONS, *INTERNAL]
        victims = itertools.cycle(
            [
                TopicPartition(TRANSACTION_STATE_TOPIC, partition_for("copier", PARTITIONS)),
                TopicPartition(GROUP_OFFSETS_TOPIC, partition_for("copier", PARTITIONS)),
                TopicPartition(TRANSACTION_STATE_TOPIC, partition_for("w1", PARTITIONS)),
            ]
        )

        def kill() -> None:
            for _ in range(kills):
                states.wait_for_isr(everything, 3)
                enough = committed(history) + COMMITTED_BETWEEN
                eventually(partial(reached, history, enough), timeout=60)
                tp = next(victims)
                victim = kafka.brokers[states.state(tp).leader]
                print(f"{time.strftime('%H:%M:%S')} kill the leader of {tp}", flush=True)
                victim.kill()
                states.wait_for_isr(everything, 2)
                victim.start()
            states.wait_for_isr(everything, 3)

        run_clients(kafka.bootstrap, kill, history, replicas=3)
