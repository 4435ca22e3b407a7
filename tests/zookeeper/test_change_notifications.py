"""Notification nodes between brokers."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kazoo.security import make_digest_acl

from broker.clock import ManualClock
from broker.errors import ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.change_notifications import ChangeNotifications, NodeChanges
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_store import Watch
from broker.zookeeper.operations import ANY_VERSION, NodeStat
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import MalformedNode
from tests.support.waiting import eventually
from tests.zookeeper.conftest import Connect


def test_config_changes_are_told_to_every_broker_once_and_in_order(connect: Connect, registry: Registry) -> None:
    writer = ChangeNotifications(connect())
    writer.notify_config_change("topics/before")
    first: list[str] = []
    second: list[str] = []
    for seen in (first, second):
        ChangeNotifications(connect()).watch_config_changes(seen.extend)
    told = ["topics/before", *(f"topics/{number}" for number in range(20))]
    for path in told[1:]:
        writer.notify_config_change(path)
    eventually(lambda: len(first) == len(second) == len(told))
    assert first == second == told


def test_isr_changes_carry_their_partitions(zk: ZooKeeper, registry: Registry) -> None:
    seen: queue.Queue[list[TopicPartition]] = queue.Queue()
    changes = ChangeNotifications(zk)
    changes.watch_isr_changes(seen.put)
    changes.notify_isr_change([TopicPartition("t", 0), TopicPartition("t", 1)])
    assert seen.get(timeout=60) == [TopicPartition("t", 0), TopicPartition("t", 1)]
    assert zk.children("/isr_change_notification") == ["isr_change_0000000000"]


def test_a_notification_that_cannot_be_read_does_not_hold_up_the_others(zk: ZooKeeper, registry: Registry) -> None:
    seen: queue.Queue[list[TopicPartition]] = queue.Queue()
    changes = ChangeNotifications(zk)
    changes.watch_isr_changes(seen.put)
    zk.create("/isr_change_notification/isr_change_", b"not json", sequence=True)
    changes.notify_isr_change([TopicPartition("t", 0)])
    assert seen.get(timeout=60) == [TopicPartition("t", 0)]


def test_old_changes_are_deleted_by_whoever_sees_them(tmp_path: Path) -> None:
    """Old by the clock of the store: a broker with a fast clock deletes nothing that others have not read yet."""
    clock = ManualClock(now_ms=0)
    with LocalStore(tmp_path / "metadata", clock) as store:
        changes = ChangeNotifications(store)
        seen: queue.Queue[list[str]] = queue.Queue()
        changes.watch_config_changes(seen.put)
        changes.notify_config_change("topics/old")
        assert seen.get(timeout=60) == ["topics/old"]
        assert len(store.children("/config/changes")) == 1

        clock.advance(16 * 60 * 1000)
        changes.notify_config_change("topics/new")
        assert seen.get(timeout=60) == ["topics/new"]
        eventually(lambda: store.children("/config/changes") == ["config_change_0000000001"])


def decoded(path: str, data: bytes) -> list[str]:
    if data == b"broken":
        raise MalformedNode(path, data, "it is broken")
    return [data.decode()]


class Slow(LocalStore):
    """Counts reads, and deletes nothing while it is `away`."""

    away = False
    read = 0

    def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, NodeStat] | None]:
        self.read += len(paths)
        return super().get_many(paths)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        if self.away:
            raise ConnectionFailed("the store is away")
        super().delete(path, version)


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[tuple[Slow, ManualClock]]:
    clock = ManualClock(now_ms=0)
    with Slow(tmp_path / "metadata", clock) as store:
        store.ensure_path("/changes")
        yield store, clock


def test_a_node_is_read_once(slow: tuple[Slow, ManualClock]) -> None:
    """A thousand changes in 15 minutes would otherwise be 500,000 reads on the thread of all watches."""
    store, _ = slow
    seen: queue.Queue[list[str]] = queue.Queue()
    NodeChanges(store, "/changes", decoded).watch(seen.put)
    for number in range(20):
        store.create("/changes/change_", str(number).encode(), sequence=True)
        assert seen.get(timeout=60) == [str(number)]
    assert store.read == 20


def test_news_are_told_also_where_old_nodes_cannot_be_deleted(slow: tuple[Slow, ManualClock]) -> None:
    store, clock = slow
    seen: queue.Queue[list[str]] = queue.Queue()
    NodeChanges(store, "/changes", decoded).watch(seen.put)
    store.create("/changes/change_", b"old", sequence=True)
    assert seen.get(timeout=60) == ["old"]
    clock.advance(16 * 60 * 1000)
    store.away = True
    store.create("/changes/change_", b"new", sequence=True)
    assert seen.get(timeout=60) == ["new"]
    store.away = False
    store.create("/changes/change_", b"newer", sequence=True)
    assert seen.get(timeout=60) == ["newer"]
    eventually(lambda: len(store.children("/changes")) == 2)


def test_a_node_without_a_number_hides_none(slow: tuple[Slow, ManualClock]) -> None:
    store, _ = slow
    seen: queue.Queue[list[str]] = queue.Queue()
    for name in ("zzz", "change_12", "other_0000000000x"):
        store.create(f"/changes/{name}", b"no change")
    NodeChanges(store, "/changes", decoded).watch(seen.put)
    for prefix in ("b_", "a_"):  # by age, whatever they are called
        store.create(f"/changes/{prefix}", prefix.encode(), sequence=True)
        assert seen.get(timeout=60) == [prefix]


def test_a_change_that_cannot_be_read_counts_as_missed(slow: tuple[Slow, ManualClock]) -> None:
    """It may have been about a right that was revoked."""
    store, _ = slow
    seen: queue.Queue[list[str]] = queue.Queue()
    missed: queue.Queue[str] = queue.Queue()
    NodeChanges(store, "/changes", decoded).watch(seen.put, lambda: missed.put("missed"))
    store.create("/changes/change_", b"broken", sequence=True)
    assert missed.get(timeout=60) == "missed"
    store.create("/changes/change_", b"sound", sequence=True)
    assert seen.get(timeout=60) == ["sound"]
    assert missed.empty()


def test_a_change_that_zookeeper_does_not_give_hides_none(zk: ZooKeeper) -> None:
    seen: queue.Queue[list[str]] = queue.Queue()
    missed: queue.Queue[str] = queue.Queue()
    zk.ensure_path("/changes")
    path = zk.create("/changes/change_", b"secret", sequence=True)
    zk._client.set_acls(zk._full(path), [make_digest_acl("somebody", "else", all=True)])
    zk.create("/changes/change_", b"open", sequence=True)
    NodeChanges(zk, "/changes", decoded).watch(seen.put, lambda: missed.put("missed"))
    assert seen.get(timeout=60) == ["open"]
    assert missed.get(timeout=60) == "missed"


def test_nodes_that_were_deleted_before_they_were_read_are_noticed(tmp_path: Path) -> None:
    """A broker that was without ZooKeeper for longer than the nodes are kept would miss a right that was revoked."""
    clock = ManualClock(now_ms=0)
    with LocalStore(tmp_path / "metadata", clock) as store:
        seen: queue.Queue[list[str]] = queue.Queue()
        missed: queue.Queue[str] = queue.Queue()

        def watch(changes: NodeChanges[str]) -> Watch:
            return changes.watch(seen.put, lambda: missed.put("missed"))

        changes = NodeChanges(store, "/changes", decoded)
        for name in ("first", "second"):
            store.create("/changes/change_", name.encode(), sequence=True, parents=True)
        first_watch = watch(changes)
        assert seen.get(timeout=60) == ["first", "second"]
        store.create("/changes/change_", b"third", sequence=True)
        assert seen.get(timeout=60) == ["third"]
        first_watch.cancel()

        store.create("/changes/change_", b"fourth", sequence=True)
        store.create("/changes/change_", b"fifth", sequence=True)
        second_watch = watch(changes)
        assert seen.get(timeout=60) == ["fourth", "fifth"]
        second_watch.cancel()
        assert missed.empty()

        store.create("/changes/change_", b"sixth", sequence=True)
        store.create("/changes/change_", b"seventh", sequence=True)
        store.delete("/changes/change_0000000005")
        watch(changes)
        assert seen.get(timeout=60) == ["seventh"]
        assert missed.get(timeout=60) == "missed"
        store.create("/changes/change_", b"eighth", sequence=True)
        assert seen.get(timeout=60) == ["eighth"]
        assert missed.empty()
