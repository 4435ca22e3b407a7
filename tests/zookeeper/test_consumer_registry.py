"""Consumer groups in ZooKeeper, in the nodes of Kafka's first consumers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.errors import BrokerError
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import MalformedNode
from tests.support.waiting import eventually
from tests.zookeeper.conftest import Connect

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


@pytest.fixture
def other(connect: Connect) -> ConsumerRegistry:
    """Another session."""
    return ConsumerRegistry(connect())


def test_a_member_is_there_until_it_goes_or_its_session_ends(consumers: ConsumerRegistry, connect: Connect) -> None:
    zk = connect()
    ConsumerRegistry(zk).register("g", "c2", b"two")
    consumers.register("g", "c1", b"one")
    consumers.register("g", "c1", b"more")
    assert consumers.members("g") == {"c1": b"more", "c2": b"two"}
    consumers.deregister("g", "c1")
    consumers.deregister("g", "c1")
    zk.close()
    eventually(lambda: consumers.members("g") == {})


def test_a_partition_has_one_owner(consumers: ConsumerRegistry, other: ConsumerRegistry) -> None:
    assert consumers.claim("g", A0, "c1-0")
    assert consumers.claim("g", A0, "c1-0"), "it is ours already"
    assert not other.claim("g", A0, "c2-0")
    other.release("g", A0, "c2-0")
    assert consumers.owners("g") == {A0: "c1-0"}
    consumers.release("g", A0, "c1-0")
    consumers.release("g", A0, "c1-0")
    assert other.claim("g", A0, "c2-0")


def test_what_an_earlier_session_left_is_taken_over(
    consumers: ConsumerRegistry, other: ConsumerRegistry, connect: Connect
) -> None:
    assert other.claim("g", A0, "c1-0")
    other.register("g", "c1", b"one")
    assert consumers.claim("g", A0, "c1-0")
    consumers.register("g", "c1", b"one")
    assert consumers.members("g") == {"c1": b"one"}
    assert consumers.owners("g") == {A0: "c1-0"}


def test_only_the_owner_commits(consumers: ConsumerRegistry, other: ConsumerRegistry) -> None:
    consumers.claim("g", A0, "c1-0")
    consumers.claim("g", A1, "c1-0")
    consumers.commit("g", {A0: 5, A1: 6}, "c1-0")
    assert consumers.offsets("g") == {A0: 5, A1: 6}
    with pytest.raises(BrokerError, match="/owners/a/0: c2-0 is not the owner any more"):
        other.commit("g", {A0: 7}, "c2-0")
    consumers.release("g", A1, "c1-0")
    with pytest.raises(BrokerError, match="/owners/a/1"):
        consumers.commit("g", {A0: 8, A1: 9}, "c1-0")
    assert consumers.offsets("g") == {A0: 5, A1: 6}, "all or nothing"


def test_members_that_come_and_go_are_noticed(consumers: ConsumerRegistry, other: ConsumerRegistry) -> None:
    noticed = threading.Event()
    end = consumers.watch_members("g", noticed.set)
    for act in (lambda: None, lambda: other.register("g", "c2", b""), lambda: other.deregister("g", "c2")):
        act()
        assert noticed.wait(60)
        noticed.clear()
    end()
