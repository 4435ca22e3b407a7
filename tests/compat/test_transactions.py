"""Transactional producers and readers of committed data of three clients we did not write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.support.kafka import Kafka
from tests.support.topics import Topic
from tests.support.waiting import eventually

TIMEOUT = 60.0


@pytest.fixture
def made(broker: Kafka, topic: str) -> Topic:
    return Topic(broker.bootstrap, topic, 2)


def producer_of(broker: Kafka, transactional_id: str, **settings: Any) -> Producer:
    dotted = {key.replace("_", "."): value for key, value in settings.items()}
    defaults = {"bootstrap.servers": broker.bootstrap, "transactional.id": transactional_id, "log_level": 0}
    producer = Producer({**defaults, **dotted})
    producer.init_transactions(TIMEOUT)
    return producer


def consumer_settings(broker: Kafka, group: str, *, committed: bool = True) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "enable.partition.eof": True,
        "enable.auto.commit": False,
    }


def read_to_end(broker: Kafka, topic: str, *, committed: bool = True, partitions: int = 2) -> list[bytes]:
    """All values up to where a reader gets at the moment, sorted."""
    consumer = Consumer(consumer_settings(broker, f"reader-of-{topic}", committed=committed))
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    values: list[bytes] = []
    ended: set[int] = set()
    try:
        while len(ended) < partitions:
            message = consumer.poll(TIMEOUT)
            assert message is not None, f"nothing came; so far {values}"
            if message.error():
                ended.add(message.partition() or 0)
            else:
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return sorted(values)


# --- confluent-kafka


def test_confluent_commits_and_aborts(broker: Kafka, made: Topic) -> None:
    producer = producer_of(broker, made.name)
    for number in range(6):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce(made.name, b"%d-%d" % (number, partition), partition=partition)
        if number % 3 == 1:
            producer.flush()
            producer.abort_transaction(TIMEOUT)
        else:
            producer.commit_transaction(TIMEOUT)
    kept = [b"%d-%d" % (number, partition) for number in (0, 2, 3, 5) for partition in (0, 1)]
    assert read_to_end(broker, made.name) == kept
    assert len(read_to_end(broker, made.name, committed=False)) == 12


def test_confluent_reader_of_committed_data_sees_a_transaction_at_once_when_it_ends(broker: Kafka, made: Topic) -> None:
    producer = producer_of(broker, made.name)
    producer.begin_transaction()
    producer.produce(made.name, b"a", partition=0)
    producer.flush()
    assert read_to_end(broker, made.name) == []
    consumer = Consumer(consumer_settings(broker, f"group-of-{made.name}"))
    consumer.assign([TopicPartition(made.name, 0, 0)])
    end_of_committed = consumer.poll(TIMEOUT)
    assert end_of_committed is not None
    assert end_of_committed.error()
    producer.commit_transaction(TIMEOUT)
    message = consumer.poll(TIMEOUT)
    assert message is not None
    assert message.value() == b"a"
    consumer.close()


def test_confluent_consumes_transforms_and_produces_exactly_once(broker: Kafka, made: Topic, group: str) -> None:
    made.number(6)
    out = Topic(broker.bootstrap, made.name + "-out", 2)
    producer = producer_of(broker, made.name)
    consumer = Consumer(consumer_settings(broker, group))
    consumer.subscribe([made.name])

    def step(*, commit: bool) -> None:
        """Take three records over, all in one transaction."""
        taken: list[Any] = []
        while len(taken) < 3:
            message = consumer.poll(TIMEOUT)
            assert message is not None
            if not message.error():
                taken.append(message)
        producer.begin_transaction()
        for message in taken:
            producer.produce(out.name, b"out-" + message.value(), partition=0)
        next_offset = TopicPartition(made.name, 0, taken[-1].offset() + 1)
        producer.send_offsets_to_transaction([next_offset], consumer.consumer_group_metadata(), TIMEOUT)
        if commit:
            producer.commit_transaction(TIMEOUT)
        else:
            producer.abort_transaction(TIMEOUT)

    def committed() -> int:
        (found,) = consumer.committed([TopicPartition(made.name, 0)], TIMEOUT)
        return int(found.offset)

    step(commit=True)
    assert committed() == 3
    step(commit=False)
    assert committed() == 3
    consumer.seek(TopicPartition(made.name, 0, committed()))
    step(commit=True)
    assert committed() == 6
    consumer.close()
    assert read_to_end(broker, out.name) == [b"out-%d" % number for number in range(6)]


def test_confluent_zombie_is_fenced(broker: Kafka, made: Topic) -> None:
    zombie = producer_of(broker, made.name)
    zombie.begin_transaction()
    zombie.produce(made.name, b"zombie", partition=0)
    zombie.flush()
    successor = producer_of(broker, made.name)
    with pytest.raises(KafkaException) as raised:
        zombie.commit_transaction(TIMEOUT)
    assert raised.value.args[0].fatal()
    successor.begin_transaction()
    successor.produce(made.name, b"successor", partition=0)
    successor.commit_transaction(TIMEOUT)
    assert read_to_end(broker, made.name) == [b"successor"]


def test_confluent_transaction_that_takes_too_long_is_aborted(broker: Kafka, made: Topic) -> None:
    producer = producer_of(broker, made.name, transaction_timeout_ms=3000, message_timeout_ms=3000)
    producer.begin_transaction()
    producer.produce(made.name, b"late", partition=0)
    producer.flush()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    open_end = {TopicPartition(made.name, 0): OffsetSpec.latest()}

    def stable_end() -> int:
        found = admin.list_offsets(open_end, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(next(iter(found.values())).result(TIMEOUT).offset)

    eventually(lambda: stable_end() == 2, TIMEOUT)
    with pytest.raises(KafkaException):
        producer.commit_transaction(TIMEOUT)
    assert read_to_end(broker, made.name) == []


# --- kafka-python


@pytest.fixture
def python_producer(broker: Kafka, topic: str) -> Iterator[Callable[[], kafka.KafkaProducer]]:
    opened: list[kafka.KafkaProducer] = []

    def make() -> kafka.KafkaProducer:
        producer = kafka.KafkaProducer(
            bootstrap_servers=broker.bootstrap, transactional_id=topic, max_block_ms=int(TIMEOUT * 1000)
        )
        opened.append(producer)
        producer.init_transactions()
        return producer

    yield make
    for producer in opened:
        producer.close(0)


def read_with_kafka_python(broker: Kafka, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=broker.bootstrap, isolation_level="read_committed", consumer_timeout_ms=int(TIMEOUT * 1000)
    )
    tps = [kafka.TopicPartition(topic, number) for number in (0, 1)]
    consumer.assign(tps)
    consumer.seek_to_beginning(*tps)
    try:
        return sorted(message.value for _, message in zip(range(count), consumer, strict=False))
    finally:
        consumer.close()


def test_kafka_python_commits_and_aborts(
    broker: Kafka, made: Topic, python_producer: Callable[[], kafka.KafkaProducer]
) -> None:
    producer = python_producer()
    for number in range(4):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.send(made.name, b"%d-%d" % (number, partition), partition=partition)
        if number % 2:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    kept = [b"0-0", b"0-1", b"2-0", b"2-1"]
    assert read_with_kafka_python(broker, made.name, 4) == kept
    assert read_to_end(broker, made.name) == kept


def test_kafka_python_commits_offsets(
    broker: Kafka, made: Topic, group: str, python_producer: Callable[[], kafka.KafkaProducer]
) -> None:
    producer = python_producer()
    tp = kafka.TopicPartition(made.name, 0)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    for commit, offset, then in ((True, 5, 5), (False, 9, 5)):
        producer.begin_transaction()
        producer.send(made.name, b"a", partition=0)
        producer.send_offsets_to_transaction({tp: kafka.OffsetAndMetadata(offset, "", -1)}, group)
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        eventually(lambda: consumer.committed(tp) is not None)  # the marker may yet have to reach the coordinator
        assert consumer.committed(tp) == then
    consumer.close()


def test_kafka_python_zombie_is_fenced(
    broker: Kafka, made: Topic, python_producer: Callable[[], kafka.KafkaProducer]
) -> None:
    zombie = python_producer()
    zombie.begin_transaction()
    zombie.send(made.name, b"zombie", partition=0)
    zombie.flush()
    successor = python_producer()
    with pytest.raises(kafka.errors.KafkaError):
        zombie.commit_transaction()
    successor.begin_transaction()
    successor.send(made.name, b"successor", partition=0)
    successor.commit_transaction()
    assert read_to_end(broker, made.name) == [b"successor"]


# --- aiokafka


async def test_aiokafka_commits_aborts_and_reads(broker: Kafka, made: Topic) -> None:
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=made.name) as producer:
        for number in range(4):
            await producer.begin_transaction()
            for partition in (0, 1):
                await producer.send_and_wait(made.name, b"%d-%d" % (number, partition), partition=partition)
            await (producer.abort_transaction() if number % 2 else producer.commit_transaction())
    consumer = aiokafka.AIOKafkaConsumer(
        made.name,
        bootstrap_servers=broker.bootstrap,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with consumer:
        values = [(await asyncio.wait_for(consumer.getone(), TIMEOUT)).value for _ in range(4)]
    assert sorted(values) == [b"0-0", b"0-1", b"2-0", b"2-1"]


async def test_aiokafka_commits_offsets(broker: Kafka, made: Topic, group: str) -> None:
    tp = aiokafka.TopicPartition(made.name, 0)
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)

    async def committed_is(offset: int) -> None:
        """The marker is written after the end of the transaction is acknowledged."""
        async with asyncio.timeout(TIMEOUT):
            while await consumer.committed(tp) != offset:
                await asyncio.sleep(0.02)

    async with (
        aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=made.name) as producer,
        consumer,
    ):
        consumer.assign([tp])
        async with producer.transaction():
            await producer.send(made.name, b"a", partition=0)
            await producer.send_offsets_to_transaction({tp: 5}, group)
        await committed_is(5)
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({tp: 9}, group)
        await producer.abort_transaction()
        await committed_is(5)


async def test_aiokafka_zombie_is_fenced(broker: Kafka, made: Topic) -> None:
    zombie = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=made.name)
    await zombie.start()
    await zombie.begin_transaction()
    await zombie.send_and_wait(made.name, b"zombie", partition=0)
    async with aiokafka.AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=made.name) as successor:
        with pytest.raises(aiokafka.errors.ProducerFenced):
            await zombie.commit_transaction()
        async with successor.transaction():
            await successor.send(made.name, b"successor", partition=0)
    await zombie.stop()
    assert await asyncio.to_thread(read_to_end, broker, made.name) == [b"successor"]


def test_kafka_python_admin_sees_transactions_and_ends_one(
    broker: Kafka, made: Topic, python_producer: Callable[[], kafka.KafkaProducer]
) -> None:
    producer = python_producer()
    producer.begin_transaction()
    sent = producer.send(made.name, b"open", partition=0)
    producer.flush()
    assert sent.succeeded()
    admin = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    tp = kafka.TopicPartition(made.name, 0)
    try:
        described = admin.describe_transactions([made.name])[made.name]
        assert described.state == "Ongoing"
        listed = admin.list_transactions(producer_id_filters=[described.producer_id], state_filters=["Ongoing"])
        assert [one.transactional_id for found in listed.values() for one in found] == [made.name]
        (state,) = admin.describe_producers([tp])[tp].active_producers
        assert (state.producer_id, state.current_transaction_start_offset) == (described.producer_id, 0)
        admin.abort_transaction(
            kafka.admin.AbortTransactionSpec(tp, state.producer_id, state.producer_epoch, state.coordinator_epoch)
        )
        assert read_to_end(broker, made.name) == []
        assert read_to_end(broker, made.name, committed=False) == [b"open"]
    finally:
        admin.close()
