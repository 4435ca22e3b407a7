"""Consumer groups with clients we did not write: members that stay, move and die, and what admins see and change.

The broker lets sessions be short, so that a dead member is missed within a second.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import MemberToRemove
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import OffsetAndMetadata

from tests.conftest import SESSION_SETTINGS
from tests.support.broker_process import BrokerProcess
from tests.support.topics import Topic
from tests.support.waiting import eventually

TIMEOUT = 30.0
SESSION_MS = 1_000

# A member in a process of its own, which says what it has and is then killed.
VICTIM = """
import sys
from confluent_kafka import Consumer
bootstrap, group, topic = sys.argv[1:]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "session.timeout.ms": 1000,
                     "heartbeat.interval.ms": 100})
consumer.subscribe([topic])
while True:
    consumer.poll(0.05)
    if consumer.assignment():
        print(len(consumer.assignment()), flush=True)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, zookeeper: str) -> Iterator[BrokerProcess]:
    settings = {
        **SESSION_SETTINGS,
        "group.min.session.timeout.ms": "500",
        "transaction.state.log.num.partitions": "4",
    }
    directory = tmp_path_factory.mktemp("groups") / "data"
    with BrokerProcess(directory, settings, zookeeper=f"{zookeeper}/compat-groups") as process:
        yield process
    assert "Traceback" not in process.output, process.output[-4_000:]


@pytest.fixture
def admin(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python_admin(broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


class Member:
    """A member of librdkafka that remembers what it was given and what was taken from it."""

    def __init__(self, broker: BrokerProcess, group: str, topic: str, **settings: Any) -> None:
        self.given: list[list[int]] = []
        self.taken: list[list[int]] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 100,
                "enable.auto.commit": False,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.given.append(sorted(partition.partition for partition in partitions))

    def _taken(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken.append(sorted(partition.partition for partition in partitions))

    @property
    def has(self) -> set[int]:
        self.consumer.poll(0.02)
        return {partition.partition for partition in self.consumer.assignment()}


@pytest.fixture
def member(broker: BrokerProcess) -> Iterator[Callable[..., Member]]:
    """`member(group, topic, **settings)`; each is closed after the test."""
    made: list[Member] = []

    def make(group: str, topic: str, **settings: Any) -> Member:
        made.append(Member(broker, group, topic, **settings))
        return made[-1]

    yield make
    for one in made:
        one.consumer.close()


def described(admin: AdminClient, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(TIMEOUT)


def share(members: list[Member], partitions: int) -> None:
    """Wait until the members have all partitions between them, each about as many."""

    def shared() -> bool:
        held = [one.has for one in members]
        fair = max(map(len, held)) - min(map(len, held)) <= 1
        return fair and sum(map(len, held)) == partitions == len(set[int]().union(*held))

    eventually(shared, timeout=TIMEOUT)


# --- members


def test_static_member_that_restarts_moves_nothing(
    broker: BrokerProcess, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
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
    broker: BrokerProcess, member: Callable[..., Member], topic: str, group: str
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
    broker: BrokerProcess, member: Callable[..., Member], topic: str, group: str
) -> None:
    """KIP-429: two rebalances of the classic protocol; a partition that stays is never revoked."""
    Topic(broker.bootstrap, topic, 4)
    settings = {"partition_assignment_strategy": "cooperative-sticky"}
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
    broker: BrokerProcess, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 4)
    command = [sys.executable, "-c", VICTIM, broker.bootstrap, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        assert victim.stdout.readline() == "4\n"
        survivor = member(group, topic)
        eventually(lambda: len(survivor.has) == 2, timeout=TIMEOUT)
        victim.kill()
    eventually(lambda: len(survivor.has) == 4, timeout=TIMEOUT)
    assert len(described(admin, group).members) == 1


def test_cooperative_members_of_kafka_python_share(broker: BrokerProcess, topic: str, group: str) -> None:
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

    members = [consumer(), consumer()]

    def shared() -> bool:
        for one in members:
            one.poll(20)
        return [len(one.assignment()) for one in members] == [2, 2]

    eventually(shared, timeout=TIMEOUT)
    for one in members:
        one.close()


async def test_static_member_of_aiokafka_comes_back(
    broker: BrokerProcess, admin: AdminClient, topic: str, group: str
) -> None:
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


# --- admins


def test_admin_lists_groups_by_state_and_type(
    broker: BrokerProcess, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 1)
    one = member(group, topic)
    eventually(lambda: len(one.has) == 1, timeout=TIMEOUT)

    def listed(**filters: Any) -> dict[str, Any]:
        found = admin.list_consumer_groups(request_timeout=TIMEOUT, **filters).result(TIMEOUT)
        assert not found.errors
        return {entry.group_id: entry for entry in found.valid}

    entry = listed()[group]
    assert (entry.state, entry.type) == (ConsumerGroupState.STABLE, ConsumerGroupType.CLASSIC)
    assert not entry.is_simple_consumer_group
    assert group in listed(states={ConsumerGroupState.STABLE})
    assert group not in listed(states={ConsumerGroupState.EMPTY})
    assert group in listed(types={ConsumerGroupType.CLASSIC})
    assert group not in listed(types={ConsumerGroupType.CONSUMER})


def test_admin_describes_members_and_what_may_be_done(
    broker: BrokerProcess, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 2)
    one = member(group, topic, client_id="the-client", group_instance_id="the-instance")
    eventually(lambda: len(one.has) == 2, timeout=TIMEOUT)
    found = admin.describe_consumer_groups([group], include_authorized_operations=True)[group].result(TIMEOUT)
    assert (found.state, found.partition_assignor) == (ConsumerGroupState.STABLE, "range")
    assert {"READ", "DELETE", "DESCRIBE"} <= {operation.name for operation in found.authorized_operations}
    (only,) = found.members
    assert (only.client_id, only.group_instance_id, only.host) == ("the-client", "the-instance", "/127.0.0.1")
    assert {tp.partition for tp in only.assignment.topic_partitions} == {0, 1}


def test_admin_deletes_groups_that_are_empty(
    broker: BrokerProcess, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 1)
    one = member(group, topic)
    eventually(lambda: len(one.has) == 1, timeout=TIMEOUT)

    def delete(name: str) -> int | None:
        try:
            admin.delete_consumer_groups([name], request_timeout=TIMEOUT)[name].result(TIMEOUT)
        except KafkaException as error:
            return int(error.args[0].code())
        return None

    assert delete(group) == KafkaError.NON_EMPTY_GROUP
    assert delete(group + "-unknown") == KafkaError.GROUP_ID_NOT_FOUND
    one.consumer.close()
    eventually(lambda: described(admin, group).state is ConsumerGroupState.EMPTY)
    assert delete(group) is None
    assert delete(group) == KafkaError.GROUP_ID_NOT_FOUND


def test_admin_alters_offsets(broker: BrokerProcess, admin: AdminClient, topic: str, group: str) -> None:
    Topic(broker.bootstrap, topic, 2)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 6)])
    admin.alter_consumer_group_offsets([wanted])[group].result(TIMEOUT)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(TIMEOUT)
    assert {tp.partition: tp.offset for tp in found.topic_partitions} == {0: 5, 1: 6}


def test_kafka_pythons_admin_alters_deletes_and_resets(
    broker: BrokerProcess, python_admin: KafkaAdminClient, topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 2).number(3)
    zero, one = PythonTopicPartition(topic, 0), PythonTopicPartition(topic, 1)
    python_admin.alter_group_offsets(group, {zero: OffsetAndMetadata(1, "", -1), one: OffsetAndMetadata(0, "", -1)})

    def offsets() -> dict[int, int]:
        return {tp.partition: held.offset for tp, held in python_admin.list_group_offsets({group: None})[group].items()}

    assert offsets() == {0: 1, 1: 0}
    python_admin.delete_group_offsets(group, [one])
    assert offsets() == {0: 1}
    python_admin.reset_group_offsets(group, {zero: 2})
    assert offsets() == {0: 2}
    python_admin.delete_groups([group])
    assert group not in {entry["group_id"] for entry in python_admin.list_groups()}


def test_offsets_of_a_topic_somebody_reads_are_not_deleted(
    broker: BrokerProcess, python_admin: KafkaAdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 1).number(1)
    one = member(group, topic)
    eventually(lambda: len(one.has) == 1, timeout=TIMEOUT)
    one.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    answer = python_admin.delete_group_offsets(group, [PythonTopicPartition(topic, 0)])
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in repr(answer) or "GroupSubscribedToTopic" in repr(answer)


def test_kafka_pythons_admin_removes_a_static_member(
    broker: BrokerProcess,
    admin: AdminClient,
    python_admin: KafkaAdminClient,
    member: Callable[..., Member],
    topic: str,
    group: str,
) -> None:
    Topic(broker.bootstrap, topic, 2)
    one = member(group, topic, group_instance_id="gone", session_timeout_ms=20_000)
    eventually(lambda: len(one.has) == 2, timeout=TIMEOUT)
    one.consumer.close()
    assert len(described(admin, group).members) == 1
    python_admin.remove_group_members(group, [MemberToRemove(group_instance_id="gone")])
    eventually(lambda: described(admin, group).state is ConsumerGroupState.EMPTY)


# --- offsets


def transactional_producer(broker: BrokerProcess, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(TIMEOUT)
    return producer


def test_offsets_move_with_the_transaction(
    broker: BrokerProcess, member: Callable[..., Member], topic: str, group: str
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
    broker: BrokerProcess, member: Callable[..., Member], topic: str, group: str
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


async def test_aiokafka_sends_offsets_in_a_transaction(broker: BrokerProcess, topic: str, group: str) -> None:
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
                seen.append(message.value())
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
