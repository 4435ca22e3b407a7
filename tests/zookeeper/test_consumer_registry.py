"""Consumer groups in ZooKeeper, as Kafka's first consumers kept them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import MalformedNode

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@pytest.fixture
def consumers(zk: ZooKeeper, registry: Registry) -> ConsumerRegistry:
    return ConsumerRegistry(zk)


def test_what_early_consumers_wrote_is_read(zk: ZooKeeper, consumers: ConsumerRegistry) -> None:
    subscription = b'{"version":1,"subscription":{"a":1},"pattern":"static","timestamp":"1"}'
    zk.create("/consumers/g/ids/c-1", subscription, parents=True)
    zk.create("/consumers/g/owners/a/1", b"c-1-0", parents=True)
    zk.create("/consumers/g/offsets/a/1", b"42", parents=True)
    assert consumers.groups() == ["g"]
    assert consumers.members("g") == {"c-1": subscription}
    assert consumers.owners("g") == {A1: "c-1-0"}
    assert consumers.offsets("g") == {A1: 42}


def test_an_unknown_group_is_empty(consumers: ConsumerRegistry) -> None:
    assert (consumers.groups(), consumers.members("g"), consumers.owners("g"), consumers.offsets("g")) == (
        [],
        {},
        {},
        {},
    )


def test_offsets_are_set_and_others_kept(zk: ZooKeeper, consumers: ConsumerRegistry) -> None:
    consumers.set_offsets("g", {A0: 1, A1: 2})
    consumers.set_offsets("g", {A1: 3, B0: 4})
    assert consumers.offsets("g") == {A0: 1, A1: 3, B0: 4}
    assert zk.get("/consumers/g/offsets/b/0")[0] == b"4"


def test_offsets_set_at_the_same_time_are_all_there(consumers: ConsumerRegistry) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: consumers.set_offsets("g", {A0: i, TopicPartition("c", i): i}), range(8)))
    offsets = consumers.offsets("g")
    assert offsets.pop(A0) in range(8)
    assert offsets == {TopicPartition("c", i): i for i in range(8)}


def test_an_offset_that_is_no_number_is_reported_with_its_node(zk: ZooKeeper, consumers: ConsumerRegistry) -> None:
    zk.create("/consumers/g/offsets/a/0", b"many", parents=True)
    with pytest.raises(MalformedNode, match="/consumers/g/offsets/a/0 in ZooKeeper holds b'many'"):
        consumers.offsets("g")
