"""Records the history of one run: clients work while something disturbs the brokers, then everything is read.

Two transactional producers and an idempotent one write to three partitions, a copier reads them and writes each value
once more in transactions with its offsets, two members of a group read; all read committed records only.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.client.consumer import Consumer as OurConsumer
from broker.client.producer import Producer as OurProducer
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from tests.support.history import History, Outcome, Poll, Transaction, Write, anomalies
from tests.support.waiting import eventually

# --- Clients that write, copy and read while a broker is killed, and note what they did and saw in a `History`.
# Each is a thread with a client of its own (librdkafka, but for the copier); `stop` is set when it shall come to an
# end. Nothing of a client's troubles is an error here: what counts is what stands in the history.

TRANSACTION_TIMEOUT_MS = 8_000
CALL_S = 5.0


def _settings(bootstrap: str) -> dict[str, object]:
    return {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 200, "socket.timeout.ms": 6_000}


class Client(threading.Thread):
    """One client; a failure that is the test's own fault is raised by `join_or_raise`."""

    def __init__(self, name: str, bootstrap: str, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._servers = bootstrap
        self._ending = stop
        self._failure: BaseException | None = None

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self._failure = failure

    def work(self) -> None:
        raise NotImplementedError

    def join_or_raise(self, timeout_s: float) -> None:
        self.join(timeout_s)
        assert not self.is_alive(), f"{self.name} did not come to an end within {timeout_s:g} s"
        if self._failure is not None:
            raise self._failure


class PlainWriter(Client):
    """An idempotent producer that writes one record after another to random partitions, with requests in flight."""

    def __init__(
        self, name: str, bootstrap: str, stop: threading.Event, history: History, tps: Sequence[TopicPartition]
    ) -> None:
        super().__init__(name, bootstrap, stop)
        self._history = history
        self._tps = tps

    def work(self) -> None:
        idempotent = {"enable.idempotence": True, "delivery.timeout.ms": 60_000}
        producer = Producer({**_settings(self._servers), **idempotent})
        dice, number = random.Random(self.name), 0
        while not self._ending.is_set():
            write = Write(self.name, number, dice.choice(self._tps), f"{self.name}-{number}")
            self._history.writes.append(write)
            _send(producer, write)
            number += 1
            producer.poll(0.005)
        assert producer.flush(60) == 0


def _send(producer: Producer, write: Write) -> None:
    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            write.outcome, write.offset = Outcome.OK, message.offset()

    producer.produce(write.tp.topic, write.value.encode(), partition=write.tp.partition, on_delivery=delivered)


class TransactionalWriter(Client):
    """Transactions of a few records, some aborted on purpose; after a fatal error the id begins anew."""

    def __init__(
        self, name: str, bootstrap: str, stop: threading.Event, history: History, tps: Sequence[TopicPartition]
    ) -> None:
        super().__init__(name, bootstrap, stop)
        self._history = history
        self._tps = tps
        self._dice = random.Random(name)
        self._number = 0

    def work(self) -> None:
        while not self._ending.is_set():
            producer = _transactional(self._servers, self.name)
            while not self._ending.is_set():
                if not self._transaction(producer):
                    break

    def _transaction(self, producer: Producer) -> bool:
        """One transaction; False when the producer cannot go on."""
        transaction = Transaction(f"{self.name}@{self._number}", time.monotonic())
        try:
            producer.begin_transaction()
            for _ in range(self._dice.randint(1, 4)):
                value = f"{self.name}-{self._number}"
                write = Write(self.name, self._number, self._dice.choice(self._tps), value, transaction=transaction)
                self._history.writes.append(write)
                self._number += 1
                _send(producer, write)
            if self._dice.random() < 0.2:
                _retrying(lambda: producer.abort_transaction(CALL_S))
                transaction.outcome = Outcome.FAILED
            else:
                transaction.outcome = _commit(producer)
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                _retrying(lambda: producer.abort_transaction(CALL_S))
                transaction.outcome = Outcome.FAILED
                return True
            return False  # fenced or worse: how the transaction ended is not known
        transaction.ended = time.monotonic()
        return True


class Copier(Client):
    """Reads one topic and writes each value once more to another, with its offsets in the same transaction.

    On our own client: librdkafka's `send_offsets_to_transaction` may wait for ever once its broker went away in the
    middle of it (librdkafka issue 5456).
    """

    def __init__(self, name: str, servers: str, stop: threading.Event, source: str, target: str) -> None:
        super().__init__(name, servers, stop)
        self._source = source
        self._target = target

    def work(self) -> None:
        settings = {"group.id": self.name, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
        while not self._ending.is_set():
            try:
                with OurConsumer(self._servers, {**settings, "enable.auto.commit": "false"}) as consumer:
                    consumer.subscribe([self._source])
                    self._copy_with(consumer)
            except PykafkaError:
                continue  # whatever was open is given up: the next one begins at what is committed

    def _copy_with(self, consumer: OurConsumer) -> None:
        settings = {"transactional.id": self.name, "transaction.timeout.ms": str(TRANSACTION_TIMEOUT_MS)}
        with OurProducer(self._servers, {**settings, "linger.ms": "0"}) as producer:
            producer.init_transactions()
            while not self._ending.is_set():
                records = consumer.poll(0.2)
                if not records:
                    continue
                producer.begin_transaction()
                for record in records:
                    producer.send(self._target, value=record.value, partition=record.partition)
                offsets = {tp: consumer.position(tp) for tp in consumer.assignment()}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                producer.commit_transaction()


class GroupReader(Client):
    """A member of a group that reads committed records and notes every poll."""

    def __init__(self, name: str, bootstrap: str, stop: threading.Event, history: History, topic: str) -> None:
        super().__init__(name, bootstrap, stop)
        self._history = history
        self._topic = topic
        self._fresh: set[TopicPartition] = set()

    def work(self) -> None:
        consumer = _committed_reader(self._servers, "readers", {"auto.commit.interval.ms": 500})
        consumer.subscribe([self._topic], on_assign=self._assigned)
        try:
            while not self._ending.is_set():
                messages = [m for m in consumer.consume(500, timeout=0.2) if m.error() is None]
                records = [_record(message) for message in messages]
                if records:
                    fresh, self._fresh = frozenset(self._fresh), set()
                    self._history.polls.append(Poll(self.name, records, fresh))
        finally:
            consumer.close()

    def _assigned(self, _: Consumer, assigned: Sequence[Assigned]) -> None:
        self._fresh |= {TopicPartition(a.topic, a.partition) for a in assigned}


def read_to_end(bootstrap: str, ends: dict[TopicPartition, int]) -> dict[TopicPartition, list[tuple[int, str]]]:
    """Every committed record below `ends`, as one new reader gets them."""
    found: dict[TopicPartition, list[tuple[int, str]]] = {tp: [] for tp in ends}
    consumer = _committed_reader(bootstrap, "last", {"enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([Assigned(tp.topic, tp.partition, OFFSET_BEGINNING) for tp in ends])
    open_ones = set(ends)
    deadline = time.monotonic() + 60
    while open_ones:
        assert time.monotonic() < deadline, f"the last reader did not reach the end of {open_ones}"
        for message in consumer.consume(1000, timeout=0.2):
            error = message.error()
            if error is None:
                tp, offset, value = _record(message)
                found[tp].append((offset, value))
            elif error.code() == KafkaError._PARTITION_EOF:
                tp = TopicPartition(message.topic() or "", message.partition() or 0)
                if (message.offset() or 0) >= ends[tp]:
                    open_ones.discard(tp)
    consumer.close()
    return found


def _record(message: Message) -> tuple[TopicPartition, int, str]:
    tp = TopicPartition(message.topic() or "", message.partition() or 0)
    return tp, message.offset() or 0, (message.value() or b"").decode()


def _committed_reader(bootstrap: str, group: str, more: dict[str, object]) -> Consumer:
    return Consumer(
        {
            **_settings(bootstrap),
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "fetch.wait.max.ms": 100,
            **more,
        }
    )


def _transactional(bootstrap: str, transactional_id: str) -> Producer:
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
    producer = Producer({**_settings(bootstrap), **settings})
    _retrying(lambda: producer.init_transactions(CALL_S))
    return producer


def _commit(producer: Producer) -> Outcome:
    try:
        _retrying(lambda: producer.commit_transaction(CALL_S))
    except KafkaException as failure:
        if not failure.args[0].txn_requires_abort():
            raise
        _retrying(lambda: producer.abort_transaction(CALL_S))
        return Outcome.FAILED
    return Outcome.OK


def _retrying(call: Callable[[], object], within_s: float = 90.0) -> None:
    """A call of a transactional producer may time out while the broker is away: it is made again as it was."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            call()
            return
        except KafkaException as failure:
            if not failure.args[0].retriable() or time.monotonic() > deadline:
                raise


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
