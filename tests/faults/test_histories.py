"""Producers, transactions and consumers while the broker is killed and frozen: the history must have no anomaly.

Two transactional producers and an idempotent one write to three partitions, a copier reads them and writes each
value once more in transactions with its offsets, two members of a group read; all read committed records only.
Meanwhile the broker gets SIGKILL and starts again, or SIGSTOP for a while. 45 seconds in every test run, ten minutes
in the slow set.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, IsolationLevel
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.protocol.topic_partition import TopicPartition
from tests.support.broker_process import BrokerProcess
from tests.support.history import History, Outcome, anomalies
from tests.support.history_clients import (
    Client,
    Copier,
    GroupReader,
    PlainWriter,
    TransactionalWriter,
    read_to_end,
)
from tests.support.waiting import eventually

TOPIC, COPIES, PARTITIONS = "history", "copies", 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.segment.bytes": "200000",
}


@pytest.mark.timeout(300)
def test_a_broker_that_is_killed_and_frozen_breaks_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, seconds=40, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_broker_that_is_killed_and_frozen_for_ten_minutes_breaks_no_promise(tmp_path: Path) -> None:
    _run(tmp_path, seconds=600, seed=2)


def _run(directory: Path, *, seconds: float, seed: int) -> None:
    history = History()
    tps = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
    copies = [TopicPartition(COPIES, p) for p in range(PARTITIONS)]
    with BrokerProcess(directory / "data", SETTINGS) as broker:
        _create_topics(broker)
        writing, reading = threading.Event(), threading.Event()
        writers: list[Client] = [
            TransactionalWriter("t1", broker.bootstrap, writing, history, tps),
            TransactionalWriter("t2", broker.bootstrap, writing, history, tps),
            PlainWriter("plain", broker.bootstrap, writing, history, tps),
        ]
        readers: list[Client] = [
            Copier("copier", broker.bootstrap, reading, TOPIC, COPIES),
            GroupReader("r1", broker.bootstrap, reading, history, TOPIC),
            GroupReader("r2", broker.bootstrap, reading, history, TOPIC),
        ]
        for client in (*writers, *readers):
            client.start()
        faults = _disturb(broker, seconds, random.Random(seed))
        writing.set()
        for client in writers:
            client.join_or_raise(120)
        history.final = read_to_end(broker.bootstrap, _stable_ends(broker, tps))
        _wait_for_copier(broker, history)
        reading.set()
        for client in readers:
            client.join_or_raise(60)
        copied = read_to_end(broker.bootstrap, _stable_ends(broker, copies))
    assert faults >= seconds / 10
    _assert_enough_happened(history)
    assert anomalies(history) == []
    once = Counter(value for records in copied.values() for _, value in records)
    assert once == Counter(value for records in history.final.values() for _, value in records)


def _create_topics(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, COPIES)]).values():
        created.result(10)


def _disturb(broker: BrokerProcess, seconds: float, dice: random.Random) -> int:
    """Kill or freeze the broker again and again; gives how often."""
    calm = threading.Event()  # never set: to wait is all it is for
    faults, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        calm.wait(dice.uniform(1.0, 4.0))
        if dice.random() < 0.6:
            broker.kill()
            calm.wait(dice.uniform(0, 0.5))
            broker.start()
        else:
            os.kill(broker.pid, signal.SIGSTOP)
            calm.wait(dice.uniform(0.2, 2.5))
            os.kill(broker.pid, signal.SIGCONT)
        faults += 1
    return faults


def _wait_for_copier(broker: BrokerProcess, history: History) -> None:
    """Until the copier's group has committed the last record of every partition."""
    group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "copier"})
    last = {tp: records[-1][0] for tp, records in history.final.items()}

    def done() -> bool:
        at = group.committed([Assigned(tp.topic, tp.partition) for tp in last], timeout=10)
        return all(one.offset > last[TopicPartition(one.topic, one.partition)] for one in at)

    eventually(done, timeout=90, interval=0.2)
    group.close()


def _stable_ends(broker: BrokerProcess, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the partitions end, once no transaction is open in them: the last ones left behind have timed out."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def ends(isolation: IsolationLevel) -> dict[TopicPartition, int]:
        asked = {Assigned(tp.topic, tp.partition): OffsetSpec.latest() for tp in tps}
        found = admin.list_offsets(asked, isolation_level=isolation)
        return {TopicPartition(at.topic, at.partition): future.result(10).offset for at, future in found.items()}

    eventually(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED), timeout=60)
    return ends(IsolationLevel.READ_UNCOMMITTED)


def _assert_enough_happened(history: History) -> None:
    """A history of nothing has no anomaly either."""
    transactions = {id(w.transaction): w.transaction for w in history.writes if w.transaction is not None}
    outcomes = Counter(transaction.outcome for transaction in transactions.values())
    assert outcomes[Outcome.OK] >= 20, outcomes
    assert outcomes[Outcome.FAILED] >= 5, outcomes
    assert sum(write.must_be_there for write in history.writes) >= 200
    assert sum(len(poll.records) for poll in history.polls) >= 200
