"""Groups whose members the coordinator assigns (KIP-848), by librdkafka's and Java's consumers and admins."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, AdminClient, ResourceType
from py4j.protocol import Py4JJavaError

from broker.protocol.api_keys import ApiKey
from tests.compat.test_acls import binding
from tests.support.consumer_process import ConsumerProcess
from tests.support.group_members import TIMEOUT, described
from tests.support.guarded import Guarded
from tests.support.kafka import Kafka, need
from tests.support.kafka_java import KafkaJava, each, thrown, type_of
from tests.support.topics import Topic
from tests.support.waiting import eventually

NEW = {"group.protocol": "consumer"}
PARTITIONS = 6


@pytest.fixture
def broker(groups_broker: Kafka) -> Kafka:
    need(groups_broker.bootstrap, ApiKey.CONSUMER_GROUP_HEARTBEAT)
    return groups_broker


@pytest.fixture
def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def process(broker: Kafka, group: str) -> Iterator[Callable[..., ConsumerProcess]]:
    """`process(topic, **properties)`: a member in a process of its own, ended after the test."""
    made: list[ConsumerProcess] = []

    def make(topic: str, **properties: Any) -> ConsumerProcess:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        made.append(ConsumerProcess(broker.bootstrap, group, topic, {**NEW, **named}))
        return made[-1]

    yield make
    for one in made:
        one.resume()
        one.stop()


class JavaMember:
    """Java's consumer in a thread; it commits what it has read after each poll."""

    def __init__(self, java: KafkaJava, broker: Kafka, group: str, topic: str, **properties: str) -> None:
        named = {name.replace("_", "."): value for name, value in properties.items()}
        given = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": "false", **named}
        self.records: list[tuple[int, int]] = []
        self.assigned: set[int] = set()
        self.error: Exception | None = None
        self._java = java
        self._consumer = java.consumer({**NEW, **given})
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group. May be called again."""
        self._stopped.set()
        self._thread.join()
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                found = self._consumer.poll(self._java.duration(100))
                self.assigned = {tp.partition() for tp in each(self._consumer.assignment())}
                for tp in each(found.partitions()):  # not each record: py4j would make an object of it
                    rows, partition = found.records(tp), tp.partition()
                    ends = rows.get(0).offset(), rows.get(rows.size() - 1).offset()
                    self.records += [(partition, offset) for offset in range(ends[0], ends[1] + 1)]
                if not found.isEmpty():
                    self._consumer.commitSync()
            self._consumer.close()
        except Py4JJavaError as error:
            self.error = RuntimeError(str(error.java_exception.toString()))


@pytest.fixture
def java_member(java: KafkaJava, broker: Kafka, group: str) -> Iterator[Callable[..., JavaMember]]:
    made: list[JavaMember] = []

    def make(topic: str, **properties: str) -> JavaMember:
        made.append(JavaMember(java, broker, group, topic, **properties))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def write(records: Topic, count: int) -> None:
    """So many records, the same number to each partition."""
    for partition in range(PARTITIONS):
        records.number(count // PARTITIONS, partition)


def share(members: list[Any], partitions: int = PARTITIONS) -> None:
    """Wait until they have all partitions between them, each about as many."""

    def shared() -> bool:
        held = [len(one.assigned) for one in members]
        together = set[int]().union(*(one.assigned for one in members))
        return max(held) - min(held) <= 1 and sum(held) == partitions == len(together)

    eventually(shared, timeout=TIMEOUT)


@pytest.mark.parametrize("count", [600, pytest.param(3_000, marks=pytest.mark.slow)])
def test_a_group_of_both_clients_loses_nothing_when_one_is_killed(
    broker: Kafka,
    process: Callable[..., ConsumerProcess],
    java_member: Callable[..., JavaMember],
    topic: str,
    count: int,
) -> None:
    records = Topic(broker.bootstrap, topic, PARTITIONS)
    victim, other = process(topic), process(topic)
    members: list[Any] = [other, java_member(topic)]
    share([victim, *members])
    write(records, count // 2)
    eventually(lambda: len(victim.records) > 20)
    victim.kill()
    if count > 1_000:
        members.append(process(topic))
    write(records, count // 2)
    share(members)

    def read() -> Counter[tuple[int, int]]:
        return Counter(one for member in (victim, *members) for one in member.records)

    eventually(lambda: len(read()) == count, timeout=TIMEOUT)
    twice = {one for one, times in read().items() if times > 1}
    uncommitted = {(p, offset) for p, offset in victim.records if offset >= victim.committed.get(p, 0)}
    assert twice <= uncommitted, "what it had not committed is read again, and nothing else"


def test_a_member_that_sleeps_through_its_session_commits_nothing(
    broker: Kafka, process: Callable[..., ConsumerProcess], admin: AdminClient, topic: str, group: str
) -> None:
    records = Topic(broker.bootstrap, topic, PARTITIONS)
    sleeper, other = process(topic), process(topic)
    share([sleeper, other])
    sleeper.pause()
    write(records, 300)
    eventually(lambda: len(other.assigned) == PARTITIONS)
    eventually(lambda: sum(other.committed.values()) == 300)
    sleeper.resume()
    share([sleeper, other])
    assert sleeper.lost, "it was told that others had its partitions meanwhile"
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT).topic_partitions
    assert sum(one.offset for one in found) == 300, "nothing that it had in hand went over the other's commits"


def test_a_pattern_finds_new_topics_within_a_heartbeat_and_matches_whole_names(
    broker: Kafka, process: Callable[..., ConsumerProcess], java: KafkaJava, topic: str, group: str
) -> None:
    Topic(broker.bootstrap, f"{topic}-1", 2)
    member = process(f"^{topic}-[0-9]")
    eventually(lambda: member.assigned == {0, 1})
    Topic(broker.bootstrap, f"{topic}-1-not").number(5)
    Topic(broker.bootstrap, f"{topic}-2").number(5, 0)
    eventually(lambda: len(member.records) == 5)
    consumer = java.consumer({**NEW, "bootstrap.servers": broker.bootstrap, "group.id": f"{group}-java"})
    consumer.subscribe(java.kafka.clients.consumer.SubscriptionPattern(f"{topic}-[12]"))

    def both() -> bool:
        java.poll(consumer)
        return {str(tp) for tp in each(consumer.assignment())} == {f"{topic}-1-0", f"{topic}-1-1", f"{topic}-2-0"}

    eventually(both)
    wrong = java.consumer({**NEW, "bootstrap.servers": broker.bootstrap, "group.id": f"{group}-wrong"})
    wrong.subscribe(java.kafka.clients.consumer.SubscriptionPattern("(["))
    assert type_of(thrown(lambda: [java.poll(wrong) for _ in range(100)])) == "InvalidRegularExpression"


def test_admins_see_a_consumer_group_with_its_epochs(
    broker: Kafka, process: Callable[..., ConsumerProcess], admin: AdminClient, java: KafkaJava, topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, PARTITIONS)
    member = process(topic, client_id="the-client", group_instance_id="the-instance")
    eventually(lambda: len(member.assigned) == PARTITIONS)
    stable = ConsumerGroupState.STABLE

    def listed(**filters: Any) -> dict[str, Any]:
        found = admin.list_consumer_groups(request_timeout=TIMEOUT, **filters).result(TIMEOUT)
        assert not found.errors
        return {entry.group_id: entry for entry in found.valid}

    eventually(lambda: listed()[group].state == stable)
    assert listed()[group].type == ConsumerGroupType.CONSUMER
    assert group in listed(types={ConsumerGroupType.CONSUMER}, states={stable})
    assert group not in listed(types={ConsumerGroupType.CLASSIC})
    found = described(admin, group)
    assert (found.state, found.type, found.partition_assignor) == (stable, ConsumerGroupType.CONSUMER, "uniform")
    (only,) = found.members
    assert (only.client_id, only.group_instance_id, only.host) == ("the-client", "the-instance", "/127.0.0.1")
    assert {tp.partition for tp in only.assignment.topic_partitions} == set(range(PARTITIONS))
    assert {tp.partition for tp in only.target_assignment.topic_partitions} == set(range(PARTITIONS))

    java_admin = java.admin({"bootstrap.servers": broker.bootstrap})
    seen = java_admin.describeConsumerGroups([group]).describedGroups().get(group).get()
    assert (str(seen.type()), str(seen.groupState())) == ("Consumer", "Stable")
    epochs = seen.groupEpoch().get(), seen.targetAssignmentEpoch().get()
    (one,) = each(seen.members())
    assert epochs == (one.memberEpoch().get(),) * 2
    assert one.upgraded().get() is True, "a member of the new protocol"
    groups = {one.groupId(): str(one.type().get()) for one in each(java_admin.listGroups().all().get())}
    assert groups[group] == "Consumer"
    refused = thrown(lambda: java_admin.describeClassicGroups([group]).describedGroups().get(group).get())
    assert type_of(refused) == "GroupIdNotFoundException"


def test_admins_change_a_consumer_group_only_when_it_is_empty(
    broker: Kafka, process: Callable[..., ConsumerProcess], admin: AdminClient, java: KafkaJava, topic: str, group: str
) -> None:
    records = Topic(broker.bootstrap, topic, PARTITIONS)
    write(records, 60)
    member = process(topic)
    eventually(lambda: sum(member.committed.values()) == 60)
    java_admin = java.admin({"bootstrap.servers": broker.bootstrap})
    first = java.partition(topic, 0)
    place = java.kafka.clients.consumer.OffsetAndMetadata(3)

    def failure(call: Callable[[], Any]) -> str:
        return type_of(thrown(lambda: call().all().get()))

    assert failure(lambda: java_admin.deleteConsumerGroups([group])) == "GroupNotEmptyException"
    assert failure(lambda: java_admin.alterConsumerGroupOffsets(group, {first: place})) == "UnknownMemberIdException"
    subscribed = "GroupSubscribedToTopicException"
    assert failure(lambda: java_admin.deleteConsumerGroupOffsets(group, {first})) == subscribed
    member.stop()
    eventually(lambda: described(admin, group).state == ConsumerGroupState.EMPTY)
    java_admin.alterConsumerGroupOffsets(group, {first: place}).all().get()
    java_admin.deleteConsumerGroupOffsets(group, {java.partition(topic, 1)}).all().get()
    found = java_admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
    assert found.get(first).offset() == 3
    assert found.size() == PARTITIONS - 1
    again = process(topic)
    eventually(lambda: len(again.records) == 7 + 10, timeout=TIMEOUT)
    again.stop()
    eventually(lambda: described(admin, group).state == ConsumerGroupState.EMPTY)
    java_admin.deleteConsumerGroups([group]).all().get()
    assert group not in {one.groupId() for one in each(java_admin.listGroups().all().get())}


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_commits_that_cross_rebalances_are_accepted(
    broker: Kafka, process: Callable[..., ConsumerProcess], topic: str, group: str, rounds: int
) -> None:
    """A member that keeps half of its partitions commits for them all the time, while another comes and goes."""
    Topic(broker.bootstrap, topic, 2)
    stays = Consumer({**NEW, "bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False})
    stays.subscribe([topic])
    refused: list[str] = []
    commits = 0

    def polled(done: Callable[[], bool]) -> bool:
        nonlocal commits
        stays.poll(0.05)
        for tp in stays.assignment()[:1]:
            try:
                made = stays.commit(offsets=[TopicPartition(topic, tp.partition, 0)], asynchronous=False)
                refused.extend(one.error.name() for one in made if one.error is not None)
            except KafkaException as error:
                refused.append(error.args[0].name())
            commits += 1
        return done()

    def come_and_go(guest: ConsumerProcess) -> None:
        eventually(lambda: polled(lambda: len(stays.assignment()) == len(guest.assigned) == 1))
        guest.stop()
        eventually(lambda: polled(lambda: len(stays.assignment()) == 2))

    eventually(lambda: polled(lambda: len(stays.assignment()) == 2))
    for _ in range(rounds):
        come_and_go(process(topic))
    stays.close()
    assert refused == [], f"of {commits}"


def test_it_asks_for_the_rights_of_the_group_and_of_its_topics(
    guarded: Guarded, java: KafkaJava, topic: str, group: str
) -> None:
    need(guarded.super_user["bootstrap.servers"], ApiKey.CONSUMER_GROUP_HEARTBEAT)
    admin = AdminClient(guarded.super_user)
    seen, hidden = (Topic(guarded.super_user["bootstrap.servers"], f"{topic}-{name}", 1) for name in ("seen", "hidden"))
    for one in (seen, hidden):
        one.number(5)
    of_alice = {**NEW, **guarded.alice, "group.id": group}

    def outcome(subscription: Any) -> str:
        consumer = java.consumer(of_alice)
        consumer.subscribe(subscription)
        got: list[Any] = []

        def some() -> bool:
            got.extend(java.poll(consumer))
            return len(got) == 5

        try:
            eventually(some)
        except Py4JJavaError as error:
            return type_of(error.java_exception)
        finally:
            consumer.close()
        return ",".join(sorted({one.topic() for one in got}))

    def allow(name: str, kind: ResourceType) -> None:
        made = admin.create_acls([binding(name, AclOperation.READ, kind=kind)])
        for future in made.values():
            future.result(TIMEOUT)

    allow(seen.name, ResourceType.TOPIC)
    assert outcome([seen.name]) == "GroupAuthorizationException"
    allow(group, ResourceType.GROUP)
    assert outcome([seen.name]) == seen.name
    assert outcome([seen.name, hidden.name]) == "TopicAuthorizationException"
    pattern = java.kafka.clients.consumer.SubscriptionPattern(f"{topic}-.*")
    group_two = f"{group}-2"
    allow(group_two, ResourceType.GROUP)
    of_alice["group.id"] = group_two
    assert outcome(pattern) == seen.name, "what it may not describe does not match"


@pytest.mark.parametrize("count", [600, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_members_change_their_protocol_one_after_the_other_and_back(
    broker: Kafka, java_member: Callable[..., JavaMember], admin: AdminClient, topic: str, group: str, count: int
) -> None:
    """While records flow nothing is missing, and the group never stops for longer than a session."""
    records = Topic(broker.bootstrap, topic, PARTITIONS)
    size, session_ms = (4 if count > 1_000 else 2), 10_000
    protocols: dict[str, dict[str, str]] = {
        "classic": {"group_protocol": "classic", "session_timeout_ms": str(session_ms)},
        "consumer": {},
    }
    everybody = [java_member(topic, **protocols["classic"]) for _ in range(size)]
    members = list(everybody)
    share(members)
    done = 0

    def flow() -> None:
        nonlocal done
        written = count // (size * 2)
        write(records, written // PARTITIONS * PARTITIONS)
        done += written // PARTITIONS * PARTITIONS
        begun = time.monotonic()
        eventually(lambda: len({one for member in everybody for one in member.records}) == done, timeout=TIMEOUT)
        assert time.monotonic() - begun < session_ms / 1_000 * 2, "it stopped"

    for protocol, kind in (("consumer", ConsumerGroupType.CONSUMER), ("classic", ConsumerGroupType.CLASSIC)):
        for index in range(size):
            members[index].stop()
            members[index] = java_member(topic, **protocols[protocol])
            everybody.append(members[index])
            flow()
            assert described(admin, group).type == (
                kind if protocol == "consumer" or index == size - 1 else ConsumerGroupType.CONSUMER
            )
        share(members)
