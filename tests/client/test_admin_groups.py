"""Groups listed, described and deleted, their offsets changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


@pytest.fixture
def member(broker: Kafka, make_topic: TopicMaker, group: str) -> Iterator[Consumer]:
    """A consumer that has its two partitions."""
    topic = make_topic(2)
    properties = {"group.id": group, "client.id": "someone", "auto.offset.reset": "earliest"}
    with Consumer(broker.bootstrap, properties) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.05) == [] and len(consumer.assignment()) == 2)
        yield consumer


def test_a_group_is_listed_and_described_with_its_members(
    admin: Admin, member: Consumer, topic: str, group: str
) -> None:
    (listed,) = [one for one in admin.list_groups(states=["stable"]) if one.group_id == group]
    assert (listed.protocol_type, listed.state, listed.group_type) == ("consumer", "Stable", "classic")
    assert group not in {one.group_id for one in admin.list_groups(states=["Empty"])}
    described = admin.describe_group(group)
    assert (described.state, described.protocol, described.active) == ("Stable", "range", True)
    (only,) = described.members
    assert (only.client_id, only.host) == ("someone", "127.0.0.1")
    assert only.partitions == (TopicPartition(topic, 0), TopicPartition(topic, 1))


def test_what_an_active_group_forbids(admin: Admin, member: Consumer, topic: str, group: str) -> None:
    first = TopicPartition(topic, 0)
    member.commit({first: 0})
    with pytest.raises(BrokerError) as raised:
        admin.alter_group_offsets(group, {first: 3})
    assert raised.value.code is ErrorCode.unknown_member_id
    with pytest.raises(BrokerError, match=group) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.non_empty_group
    failure = admin.delete_group_offsets(group, [first])[first]
    assert failure is not None
    assert failure.code is ErrorCode.group_subscribed_to_topic


def test_offsets_of_an_empty_group_are_set_and_deleted(admin: Admin, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic(2)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    admin.alter_group_offsets(group, {first: 3, second: 4})
    assert admin.group_offsets(group) == {first: 3, second: 4}
    assert admin.describe_group(group).state == "Empty"
    assert admin.delete_group_offsets(group, [first]) == {first: None}
    assert admin.group_offsets(group) == {second: 4}
    admin.delete_group(group)
    assert admin.group_offsets(group) == {}


def test_a_group_that_is_not_there_is_dead(admin: Admin, group: str) -> None:
    described = admin.describe_group(group)
    assert (described.state, described.members, described.active) == ("Dead", (), False)
    with pytest.raises(BrokerError) as raised:
        admin.delete_group(group)
    assert raised.value.code is ErrorCode.group_id_not_found
