"""Members of ZooKeeper groups: registered and owning while their session lives, no longer."""

from __future__ import annotations

import threading

import pytest

from broker.errors import BrokerError
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_membership import ConsumerMembership
from tests.support.waiting import eventually
from tests.zookeeper.conftest import Connect

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


@pytest.fixture
def membership(zk: ZooKeeper) -> ConsumerMembership:
    return ConsumerMembership(zk)


@pytest.fixture
def other(connect: Connect) -> ConsumerMembership:
    """Another session."""
    return ConsumerMembership(connect())


def test_a_member_is_there_until_it_goes_or_its_session_ends(membership: ConsumerMembership, connect: Connect) -> None:
    zk = connect()
    ConsumerMembership(zk).register("g", "c2", b"two")
    membership.register("g", "c1", b"one")
    membership.register("g", "c1", b"more")
    assert membership.members("g") == {"c1": b"more", "c2": b"two"}
    membership.deregister("g", "c1")
    membership.deregister("g", "c1")
    zk.close()
    eventually(lambda: membership.members("g") == {})


def test_a_partition_has_one_owner(membership: ConsumerMembership, other: ConsumerMembership) -> None:
    assert membership.claim("g", A0, "c1-0")
    assert membership.claim("g", A0, "c1-0"), "it is ours already"
    assert not other.claim("g", A0, "c2-0")
    other.release("g", A0, "c2-0")
    assert membership.owners("g") == {A0: "c1-0"}
    membership.release("g", A0, "c1-0")
    membership.release("g", A0, "c1-0")
    assert other.claim("g", A0, "c2-0")


def test_what_an_earlier_session_left_is_taken_over(
    membership: ConsumerMembership, other: ConsumerMembership, connect: Connect
) -> None:
    assert other.claim("g", A0, "c1-0")
    other.register("g", "c1", b"one")
    assert membership.claim("g", A0, "c1-0")
    membership.register("g", "c1", b"one")
    assert membership.members("g") == {"c1": b"one"}
    assert membership.owners("g") == {A0: "c1-0"}


def test_only_the_owner_commits(membership: ConsumerMembership, other: ConsumerMembership) -> None:
    membership.claim("g", A0, "c1-0")
    membership.claim("g", A1, "c1-0")
    membership.commit("g", {A0: 5, A1: 6}, "c1-0")
    assert membership.offsets("g") == {A0: 5, A1: 6}
    with pytest.raises(BrokerError, match="/owners/a/0: c2-0 is not the owner any more"):
        other.commit("g", {A0: 7}, "c2-0")
    membership.release("g", A1, "c1-0")
    with pytest.raises(BrokerError, match="/owners/a/1"):
        membership.commit("g", {A0: 8, A1: 9}, "c1-0")
    assert membership.offsets("g") == {A0: 5, A1: 6}, "all or nothing"


def test_members_that_come_and_go_are_noticed(membership: ConsumerMembership, other: ConsumerMembership) -> None:
    noticed = threading.Event()
    end = membership.watch_members("g", noticed.set)
    for act in (lambda: None, lambda: other.register("g", "c2", b""), lambda: other.deregister("g", "c2")):
        act()
        assert noticed.wait(10)
        noticed.clear()
    end()
