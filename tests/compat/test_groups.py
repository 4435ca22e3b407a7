"""Consumer groups with clients we did not write: members that stay, move and die, and offsets in transactions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.group_members import SESSION_MS, TIMEOUT, Member, described, share
from tests.support.kafka import Kafka
from tests.support.polling import polled
from tests.support.topics import Topic
from tests.support.waiting import eventually

# A member in a process of its own, which says what it has and is then killed.
VICTIM = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic, session_ms = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": session_ms,
                     "heartbeat.interval.ms": 100})
consumer.subscribe([topic])
while True:
    consumer.poll(0.05)
    if consumer.assignment():
        print(len(consumer.assignment()), flush=True)
"""


@pytest.fixture
def broker(groups_broker: Kafka) -> Kafka:
    return groups_broker


@pytest.fixture
def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


# --- members


def test_static_member_that_restarts_moves_nothing(
    broker: Kafka, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    """KIP-345: an instance that is back within its session finds its partitions, and the others notice nothing."""
    Topic(broker.bootstrap, topic, 4)
    settings = {"session_timeout_ms": 20_000}
    stays = member(group, topic, group_instance_id="stays", **settings)
    leaves = member(group, topic, group_instance_id="leaves", **settings)
    share([stays, leaves], 4)
    before, given = leaves.has, list(stays.given)
    ids = {one.group_instance_id: one.member_id for one in described(admin, group).members}
    leaves.consumer.close()
    back = member(group, topic, group_instance_id="leaves", **settings)
    eventually(lambda: (stays.has, back.has)[1] == before, timeout=TIMEOUT)
    assert (stays.given, stays.taken) == (given, stays.taken[: len(given) - 1])
    assert described(admin, group).state is ConsumerGroupState.STABLE
    ids_after = {one.group_instance_id: one.member_id for one in described(admin, group).members}
    assert ids_after["stays"] == ids["stays"]
    assert ids_after["leaves"] != ids["leaves"]


def test_static_member_with_a_taken_instance_id_is_fenced(
    broker: Kafka, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 2)
    first = member(group, topic, group_instance_id="same", session_timeout_ms=20_000)
    eventually(lambda: len(first.has) == 2, timeout=TIMEOUT)
    second = member(group, topic, group_instance_id="same", session_timeout_ms=20_000)
    eventually(lambda: len(second.has) == 2, timeout=TIMEOUT)

    def fenced() -> bool:
        message = first.consumer.poll(0.02)
        error = None if message is None else message.error()
        return error is not None and error.code() == KafkaError._FATAL and "fenced" in error.str()

    eventually(fenced, timeout=TIMEOUT)
    assert len(second.has) == 2


def test_cooperative_rebalance_takes_only_what_moves(
    broker: Kafka, member: Callable[..., Member], topic: str, group: str
) -> None:
    """KIP-429: two rebalances of the classic protocol; a partition that stays is never revoked."""
    Topic(broker.bootstrap, topic, 4)
    settings = {"partition_assignment_strategy": "cooperative-sticky", "session_timeout_ms": 20_000}
    first = member(group, topic, **settings)
    eventually(lambda: len(first.has) == 4, timeout=TIMEOUT)
    second = member(group, topic, **settings)
    share([first, second], 4)
    moved = sorted({0, 1, 2, 3} - first.has)
    assert [taken for taken in first.taken if taken] == [moved]
    assert [given for given in second.given if given] == [moved]
    second.consumer.close()
    eventually(lambda: len(first.has) == 4, timeout=TIMEOUT)
    assert [taken for taken in first.taken if taken] == [moved]


def test_killed_member_is_missed_when_its_session_ends(
    broker: Kafka, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 4)
    command = [sys.executable, "-c", VICTIM, broker.bootstrap, group, topic, str(SESSION_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "4\n"
        survivor = member(group, topic)
        eventually(lambda: len(survivor.has) == 2, timeout=TIMEOUT)
        victim.kill()
    eventually(lambda: len(survivor.has) == 4, timeout=TIMEOUT)
    assert len(described(admin, group).members) == 1


def test_cooperative_members_of_kafka_python_share(broker: Kafka, topic: str, group: str) -> None:
    Topic(broker.bootstrap, topic, 4)

    def consumer() -> KafkaConsumer:
        made = KafkaConsumer(
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            session_timeout_ms=6_000,
            heartbeat_interval_ms=100,
            partition_assignment_strategy=[CooperativeStickyAssignor],
        )
        made.partitions_for_topic(topic)
        made.subscribe([topic])
        return made

    with closing(consumer()) as first, closing(consumer()) as second, polled(first):
        eventually(lambda: len(first.assignment()) == 4, timeout=TIMEOUT)
        with polled(second):
            eventually(lambda: [len(one.assignment()) for one in (first, second)] == [2, 2], timeout=TIMEOUT)
            assert {p.partition for p in first.assignment() | second.assignment()} == {0, 1, 2, 3}


async def test_static_member_of_aiokafka_comes_back(broker: Kafka, admin: AdminClient, topic: str, group: str) -> None:
    Topic(broker.bootstrap, topic, 2).number(4)

    async def start() -> AIOKafkaConsumer:
        made = AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            group_instance_id="one",
            auto_offset_reset="earliest",
            session_timeout_ms=6_000,
            heartbeat_interval_ms=100,
        )
        await made.start()
        return made

    first = await start()
    assert (await asyncio.wait_for(first.getone(), TIMEOUT)).value == b"0"
    await first.commit()
    member_id = described(admin, group).members[0].member_id
    await first.stop()
    second = await start()
    assert (await asyncio.wait_for(second.getone(), TIMEOUT)).value == b"1"
    (again,) = described(admin, group).members
    assert (again.group_instance_id, again.member_id == member_id) == ("one", False)
    await second.stop()


# --- offsets


def transactional_producer(broker: Kafka, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT)
    return producer


def test_offsets_move_with_the_transaction(
    broker: Kafka, member: Callable[..., Member], topic: str, group: str
) -> None:
    """Consume, transform, produce: the position moves when, and only when, the transaction is committed."""
    Topic(broker.bootstrap, topic, 1).number(3)
    one = member(group, topic)
    eventually(lambda: len(one.has) == 1, timeout=TIMEOUT)
    producer = transactional_producer(broker, group)

    def committed() -> int:
        return int(one.consumer.committed([TopicPartition(topic, 0)], TIMEOUT)[0].offset)

    for offset, commit, expected in ((1, False, -1001), (2, True, 2), (3, False, 2)):
        producer.begin_transaction()
        positions = [TopicPartition(topic, 0, offset)]
        producer.send_offsets_to_transaction(positions, one.consumer.consumer_group_metadata(), TIMEOUT)
        if commit:
            producer.commit_transaction(TIMEOUT)
        else:
            producer.abort_transaction(TIMEOUT)
        assert committed() == expected


def test_member_that_was_replaced_cannot_move_the_offsets(
    broker: Kafka, member: Callable[..., Member], topic: str, group: str
) -> None:
    """KIP-447: what a member of an older generation has read, one of the next reads as well."""
    Topic(broker.bootstrap, topic, 2)
    old = member(group, topic)
    eventually(lambda: len(old.has) == 2, timeout=TIMEOUT)
    stale = old.consumer.consumer_group_metadata()
    share([old, member(group, topic)], 2)
    producer = transactional_producer(broker, group)
    producer.begin_transaction()
    with pytest.raises(KafkaException) as raised:
        producer.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], stale, TIMEOUT)
    assert raised.value.args[0].code() == KafkaError.ILLEGAL_GENERATION
    producer.abort_transaction(TIMEOUT)


async def test_aiokafka_sends_offsets_in_a_transaction(broker: Kafka, topic: str, group: str) -> None:
    Topic(broker.bootstrap, topic, 1)
    tp = AioTopicPartition(topic, 0)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=group)
    await producer.start()
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, enable_auto_commit=False)
    await consumer.start()
    consumer.assign([tp])
    async with producer.transaction():
        await producer.send_and_wait(topic, b"one")
        await producer.send_offsets_to_transaction({tp: 1}, group)
    async with asyncio.timeout(TIMEOUT):
        while await consumer.committed(tp) is None:  # the marker may yet have to reach the group's coordinator
            await asyncio.sleep(0.02)
    assert await consumer.committed(tp) == 1
    await producer.begin_transaction()
    await producer.send_offsets_to_transaction({tp: 9}, group)
    await producer.abort_transaction()
    assert await consumer.committed(tp) == 1
    await consumer.stop()
    await producer.stop()


def test_group_goes_on_after_the_broker_is_killed(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    """Offsets, members and their generation outlive kill -9: nobody reads a record twice."""
    broker = broker_factory({**SESSION_SETTINGS, "group.min.session.timeout.ms": "500"})
    records = Topic(broker.bootstrap, topic, 1)
    records.number(10)
    one = Member(broker, group, topic, session_timeout_ms=20_000)
    seen: list[bytes] = []

    def read(count: int) -> None:
        def enough() -> bool:
            message = one.consumer.poll(0.05)
            if message is not None and message.error() is None:
                seen.append(message.value() or b"")
            return len(seen) >= count

        eventually(enough, timeout=TIMEOUT)
        one.consumer.commit(asynchronous=False)

    read(10)
    broker.kill()
    broker.start()
    records.number(5, first=10)
    read(15)
    assert seen == [b"%d" % number for number in range(15)]
    assert (one.given, one.taken) == ([[0]], [])
    one.consumer.close()
    another = Member(broker, group, topic)
    found = another.consumer.committed([TopicPartition(topic, 0)], TIMEOUT)
    assert [partition.offset for partition in found] == [15]
    another.consumer.close()
