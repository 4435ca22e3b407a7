"""Records the history of one run: clients work while something disturbs the brokers, then everything is read.

Two transactional producers and an idempotent one write to three partitions, a copier reads them and writes each value
once more in transactions with its offsets, two members of a group read; all read committed records only.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.protocol.topic_partition import TopicPartition
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
WRITTEN_PARTITIONS = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
COPIED_PARTITIONS = [TopicPartition(COPIES, p) for p in range(PARTITIONS)]
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.segment.bytes": "200000",
}
"""Of the brokers: short waits, and many segments."""


def run_clients(
    bootstrap: str, disturb: Callable[[], object], history: History, *, replicas: int = 1, transactions: bool = True
) -> None:
    """Let clients work while `disturb` runs, and record what they do and see. When it ends, all brokers must run.

    Without `transactions` there are no transactional producers and no copier, but idempotent producers. Fails when the
    history has an anomaly, or the copier has not copied each record once.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, replicas) for name in (TOPIC, COPIES)]).values():
        created.result(60)
    writing, reading = threading.Event(), threading.Event()
    writer = TransactionalWriter if transactions else PlainWriter
    writers: list[Client] = [
        writer("w1", bootstrap, writing, history, WRITTEN_PARTITIONS),
        writer("w2", bootstrap, writing, history, WRITTEN_PARTITIONS),
        PlainWriter("plain", bootstrap, writing, history, WRITTEN_PARTITIONS),
    ]
    readers: list[Client] = [
        *([Copier("copier", bootstrap, reading, TOPIC, COPIES)] if transactions else []),
        GroupReader("r1", bootstrap, reading, history, TOPIC),
        GroupReader("r2", bootstrap, reading, history, TOPIC),
    ]
    for client in (*writers, *readers):
        client.start()
    try:
        disturb()
        if transactions:  # on a busy machine few have ended by now
            eventually(lambda: _has_enough(_outcomes(history)), timeout=60, interval=0.1)
        writing.set()
        for client in writers:
            client.join_or_raise(120)
        read_what_was_written(bootstrap, history)
        if transactions:
            _wait_for_copier(bootstrap, history)
    finally:
        writing.set()
        reading.set()
        for client in writers:
            client.join(60)
    for client in readers:
        client.join_or_raise(60)
    _assert_sound(history, transactions)
    if transactions:
        copied = read_to_end(bootstrap, _stable_ends(admin, COPIED_PARTITIONS))
        once = Counter(value for records in copied.values() for _, value in records)
        assert once == Counter(value for records in history.final.values() for _, value in records)


def read_what_was_written(bootstrap: str, history: History) -> None:
    """Note what the last reader of committed records sees, when no transaction is open."""
    history.final = read_to_end(
        bootstrap, _stable_ends(AdminClient({"bootstrap.servers": bootstrap}), WRITTEN_PARTITIONS)
    )


def _assert_sound(history: History, transactions: bool) -> None:
    """No anomaly, and enough has happened: a history of nothing has none either."""
    if transactions:
        outcomes = _outcomes(history)
        assert _has_enough(outcomes), outcomes
    assert sum(write.must_be_there for write in history.writes) >= 200
    assert sum(len(poll.records) for poll in history.polls) >= 200
    found = anomalies(history)
    assert not found, f"{len(found)} anomalies: {found[:20]}"


def _outcomes(history: History) -> Counter[Outcome]:
    found = {id(w.transaction): w.transaction for w in tuple(history.writes) if w.transaction is not None}
    return Counter(transaction.outcome for transaction in found.values())


def _has_enough(outcomes: Counter[Outcome]) -> bool:
    return outcomes[Outcome.OK] >= 20 and outcomes[Outcome.FAILED] >= 5


# What `committed` of librdkafka gives, and does not try again, when the coordinator moves after the last fault.
_COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._TRANSPORT,
}


def _wait_for_copier(bootstrap: str, history: History) -> None:
    """Until the copier's group has committed the last record of every partition."""
    group = Consumer({"bootstrap.servers": bootstrap, "group.id": "copier"})
    last = {tp: records[-1][0] for tp, records in history.final.items()}

    def done() -> bool:
        try:
            at = group.committed([Assigned(tp.topic, tp.partition) for tp in last], timeout=10)
        except KafkaException as error:
            if error.args[0].code() not in _COORDINATOR_MOVES:
                raise
            return False
        return all(one.offset > last[TopicPartition(one.topic, one.partition)] for one in at)

    eventually(done, timeout=90, interval=0.2)
    group.close()


def _stable_ends(admin: AdminClient, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    """Where the partitions end, once no transaction is open in them: the last ones left behind have timed out."""

    def ends(isolation: IsolationLevel) -> dict[TopicPartition, int]:
        asked = {Assigned(tp.topic, tp.partition): OffsetSpec.latest() for tp in tps}
        found = admin.list_offsets(asked, isolation_level=isolation)
        return {TopicPartition(at.topic, at.partition): future.result(60).offset for at, future in found.items()}

    eventually(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED), timeout=60)
    return ends(IsolationLevel.READ_UNCOMMITTED)
