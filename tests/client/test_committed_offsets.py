"""A group's committed offsets: stored, fetched, fenced."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer as LibrdkafkaConsumer
from confluent_kafka import TopicPartition as LibrdkafkaPartition

from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupOffsets, Membership
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.support.kafka import Kafka


@pytest.fixture
def offsets(cluster: Cluster, group: str) -> GroupOffsets:
    return GroupOffsets(cluster, group)


def test_a_group_nobody_has_heard_of_has_no_offsets(offsets: GroupOffsets, make_topic: TopicMaker) -> None:
    assert offsets.fetch() == {}
    assert offsets.fetch([TopicPartition(make_topic(), 0)]) == {}
    assert offsets.fetch([]) == {}


def test_what_is_committed_is_fetched_all_or_some(offsets: GroupOffsets, make_topic: TopicMaker) -> None:
    topic = make_topic(3)
    first, second, third = (TopicPartition(topic, index) for index in range(3))
    offsets.commit({first: 5, second: 0}, "a note")
    assert offsets.fetch() == {first: 5, second: 0}
    assert offsets.fetch([second, third]) == {second: 0}
    offsets.commit({first: 3})
    assert offsets.fetch([first]) == {first: 3}, "a commit may go back"
    offsets.commit({})


def test_librdkafka_sees_the_same_offsets(offsets: GroupOffsets, broker: Kafka, make_topic: TopicMaker) -> None:
    tp = TopicPartition(make_topic(), 0)
    offsets.commit({tp: 42})
    consumer = LibrdkafkaConsumer({"bootstrap.servers": broker.bootstrap, "group.id": offsets.group})
    assert consumer.committed([LibrdkafkaPartition(tp.topic, 0)], timeout=60)[0].offset == 42
    consumer.commit(offsets=[LibrdkafkaPartition(tp.topic, 0, 43)], asynchronous=False)
    consumer.close()
    assert offsets.fetch() == {tp: 43}


def test_a_member_nobody_knows_may_not_commit(offsets: GroupOffsets, make_topic: TopicMaker) -> None:
    with pytest.raises(BrokerError) as raised:
        offsets.commit({TopicPartition(make_topic(), 0): 1}, member=Membership(3, "stranger"))
    assert raised.value.code in (ErrorCode.illegal_generation, ErrorCode.group_id_not_found)  # which: by version
    assert offsets.group in str(raised.value)


def test_too_long_a_note_is_refused(offsets: GroupOffsets, make_topic: TopicMaker) -> None:
    with pytest.raises(BrokerError) as raised:
        offsets.commit({TopicPartition(make_topic(), 0): 1}, "x" * 5000)
    assert raised.value.code is ErrorCode.offset_metadata_too_large
