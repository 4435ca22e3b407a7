"""The picture of the cluster that handlers read."""

from __future__ import annotations

import uuid

from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER, ClusterMetadata, PartitionInfo, Topic
from broker.zookeeper.znodes import PartitionState, TopicRecord

ID = uuid.UUID(int=7)


def topic(name: str, topic_id: uuid.UUID = ID) -> Topic:
    return Topic(name, topic_id, {0: PartitionInfo(1, 0, (1,), (1,))})


def test_a_topic_is_put_together_from_its_record_and_the_states_of_its_partitions() -> None:
    record = TopicRecord("t", ID, {1: (2, 1), 0: (1, 2)}, {"retention.ms": "1"}, {0: (1,)}, {0: (2,)})
    states = {TopicPartition("t", 1): PartitionState(leader=2, leader_epoch=5, isr=(2,), controller_epoch=1, version=3)}
    made = record.topic(states)
    assert list(made.partitions.items()) == [
        (0, PartitionInfo(NO_LEADER, 0, (1, 2), (), -1, (1,), (2,))),
        (1, PartitionInfo(2, 5, (2, 1), (2,), version=3)),
    ]
    assert [info.target for info in made.partitions.values()] == [(1,), (2, 1)]
    assert (made.topic_id, made.config) == (ID, {"retention.ms": "1"})


def test_topics_are_found_by_name_and_id_and_partitions_by_number() -> None:
    metadata = ClusterMetadata("id", topics={"t": topic("t")})
    assert metadata.topic_by_id(ID) == metadata.topics["t"]
    assert metadata.topic_by_id(uuid.UUID(int=8)) is None
    assert metadata.partition(TopicPartition("t", 0)) == PartitionInfo(1, 0, (1,), (1,))
    assert metadata.partition(TopicPartition("t", 1)) is None
    assert metadata.partition(TopicPartition("u", 0)) is None


def test_a_change_makes_a_new_picture_and_leaves_the_old_one() -> None:
    old = ClusterMetadata("id", topics={"t": topic("t")})
    recreated = topic("t", uuid.UUID(int=8))
    new = old.with_topics([recreated, topic("u", uuid.UUID(int=9))])
    assert set(old.topics) == {"t"}
    assert new.topic_by_id(ID) is None
    assert new.topic_by_id(uuid.UUID(int=8)) == recreated
    assert set(new.without_topics(["t", "none"]).topics) == {"u"}
    assert (old.controller_id, old.with_controller(1).controller_id) == (-1, 1)


def test_the_brokers_own_topics_are_internal() -> None:
    assert topic("__consumer_offsets").is_internal
    assert not topic("__mine").is_internal
