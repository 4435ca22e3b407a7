"""What the admins of librdkafka and kafka-python see of groups, and change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka.admin import MemberToRemove
from kafka.structs import OffsetAndMetadata

from tests.support.group_members import TIMEOUT, Member, described
from tests.support.kafka import Kafka
from tests.support.topics import Topic
from tests.support.waiting import eventually


@pytest.fixture
def broker(groups_broker: Kafka) -> Kafka:
    return groups_broker


@pytest.fixture
def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def python_admin(broker: Kafka) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def test_admin_lists_groups_by_state_and_type(
    broker: Kafka, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
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
    broker: Kafka, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
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
    broker: Kafka, admin: AdminClient, member: Callable[..., Member], topic: str, group: str
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


def test_admin_alters_offsets(broker: Kafka, admin: AdminClient, topic: str, group: str) -> None:
    Topic(broker.bootstrap, topic, 2)
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 6)])
    admin.alter_consumer_group_offsets([wanted])[group].result(TIMEOUT)
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked], require_stable=True)[group].result(TIMEOUT)
    assert {tp.partition: tp.offset for tp in found.topic_partitions} == {0: 5, 1: 6}


def test_kafka_pythons_admin_alters_deletes_and_resets(
    broker: Kafka, python_admin: KafkaAdminClient, topic: str, group: str
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
    broker: Kafka, python_admin: KafkaAdminClient, member: Callable[..., Member], topic: str, group: str
) -> None:
    Topic(broker.bootstrap, topic, 1).number(1)
    one = member(group, topic)
    eventually(lambda: len(one.has) == 1, timeout=TIMEOUT)
    one.consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    answer = python_admin.delete_group_offsets(group, [PythonTopicPartition(topic, 0)])
    assert "GROUP_SUBSCRIBED_TO_TOPIC" in repr(answer) or "GroupSubscribedToTopic" in repr(answer)


def test_kafka_pythons_admin_removes_a_static_member(
    broker: Kafka,
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
