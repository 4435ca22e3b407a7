"""Clients that write, copy and read while a broker is killed, and note what they did and saw in a `History`.

Each is a thread with a client of its own (librdkafka, but for the copier); `stop` is set when it shall come to an
end. Nothing of a client's troubles is an error here: what counts is what stands in the history.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import (
    TopicPartition as Assigned,
)

from broker.client.consumer import Consumer as OurConsumer
from broker.client.producer import Producer as OurProducer
from broker.errors import PykafkaError
from broker.protocol.topic_partition import TopicPartition
from tests.support.history import History, Outcome, Poll, Transaction, Write

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
