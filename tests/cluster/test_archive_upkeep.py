"""What the controller keeps in the archive: backups that no deposed one overwrites, and the end of deleted topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.archive.layout import topic_directory
from broker.archive.manifest import Start
from broker.archive.manifest_store import ManifestStore
from broker.clock import ManualClock
from broker.cluster.archive_upkeep import ArchiveUpkeep
from broker.cluster.archived_topics import ArchivedTopics
from broker.cluster.cluster_backup import BackupFiles, ClusterBackup
from broker.cluster.cluster_restore import read_deleted
from broker.cluster.deleted_archives import deleted_path, topic_path
from broker.config.archive_settings import ArchiveSettings
from broker.errors import BrokerError, ConfigError
from broker.storage.storage import Storage, open_storage
from broker.zookeeper.archive_nodes import ARCHIVE_ID_KEY, ARCHIVE_KEY, ArchiveNodes, DeletedTopic, deletion_path
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerEpoch
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.operations import BadVersion, NoNode
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import uuid_to_text

DAY_MS = 86_400_000


class World:
    """A store, an archive, and a broker that may be the controller."""

    def __init__(self, zk: LocalStore, storage: Storage, clock: ManualClock) -> None:
        self.zk = zk
        self.storage = storage
        self.clock = clock
        self.registry = Registry(zk, clock)
        self.registry.ensure_paths()
        self.cluster_id = self.registry.cluster_id()
        self.files = BackupFiles(storage, self.cluster_id)
        self.archives = ArchivedTopics(storage, self.cluster_id, ArchiveNodes(zk), self.registry)

    def controller(self, epoch: int) -> ArchiveUpkeep:
        groups: Any = SimpleNamespace(read=_no_groups)
        topics: Any = SimpleNamespace(metadata=self.registry.load_metadata())
        election: Any = SimpleNamespace(epoch=ControllerEpoch(epoch, epoch))
        store = ClusterStore(self.registry, ChangeNotifications(self.zk))
        settings = ArchiveSettings(archive_deleted_topic_retention_ms=DAY_MS)
        return ArchiveUpkeep(self.storage, self.zk, store, topics, election, lambda _: groups, settings, self.clock)

    def look(self, upkeep: ArchiveUpkeep) -> None:
        """Once, with the metadata of now."""
        cast(Any, upkeep)._topics.metadata = self.registry.load_metadata()
        asyncio.run(upkeep.look())
        assert upkeep.failures == {}

    def archived_topic(self, name: str) -> Any:
        """One with a manifest of one entry, of leader epoch 4."""
        record = self.registry.create_topic(name, {0: [1]}, {ARCHIVE_KEY: "true"})
        store = ManifestStore(self.storage, self.cluster_id, record.topic_id, 0)
        store.commit(store.load(), 4, 1, Start(0))
        return record


async def _no_groups() -> dict[str, Any]:
    return {}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with LocalStore(tmp_path / "metadata", clock) as zk:
        yield World(zk, open_storage(str(tmp_path / "archive")), clock)


def newest(world: World) -> tuple[int, ClusterBackup]:
    number, backup = world.files.newest()
    assert backup is not None
    return number, backup


def test_a_backup_is_written_when_something_has_changed(world: World) -> None:
    upkeep = world.controller(1)
    world.look(upkeep)
    world.look(upkeep)
    assert newest(world)[0] == 1
    world.registry.create_topic("t", {0: [1]})
    world.look(upkeep)
    number, backup = newest(world)
    assert (number, list(backup.topics())) == (2, ["t"])


def test_a_deposed_controller_overwrites_nothing(world: World) -> None:
    old = world.controller(1)
    world.look(old)
    new = world.controller(2)
    world.look(new)
    world.registry.create_topic("t", {0: [1]})
    world.look(new)
    written = newest(world)
    world.registry.create_topic("late", {0: [1]})
    world.look(old)
    assert newest(world) == written
    world.look(new)
    assert newest(world)[1].topics().keys() == {"late", "t"}


def test_a_failure_is_told_once_and_tried_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    class Away:
        def __getattr__(self, name: str) -> Any:
            raise OSError("s3://key:secret@bucket is away")

    upkeep = world.controller(1)
    storage, files = world.storage, cast(Any, upkeep)._files
    files._storage = Away()
    asyncio.run(upkeep.look())
    asyncio.run(upkeep.look())
    assert [one.message for one in caplog.records].count(
        "cannot back up the cluster's metadata, trying again: s3://key:***@bucket is away"
    ) == 1
    files._storage = storage
    world.look(upkeep)
    assert newest(world)[0] == 1


def test_the_archive_of_a_deleted_topic_stays_for_its_time(world: World) -> None:
    upkeep = world.controller(1)
    record, other = world.archived_topic("t"), world.archived_topic("other")
    world.look(upkeep)
    root = topic_directory(world.cluster_id, record.topic_id)
    assert b'"name": "t"' in world.storage.read(f"{root}/topic.json")
    world.registry.deletions.delete("t")
    world.look(upkeep)
    assert world.storage.names(root) == ["0", "deleted.json", "topic.json"]
    world.clock.advance(DAY_MS + 1)
    world.look(upkeep)
    assert world.storage.names(root) == []
    assert ArchiveNodes(world.zk).deleted() == []
    assert world.storage.names(topic_directory(world.cluster_id, other.topic_id)) == ["0", "topic.json"]


def test_a_topic_without_an_archive_leaves_no_note(world: World) -> None:
    world.registry.create_topic("t", {0: [1]})
    world.registry.deletions.delete("t")
    assert ArchiveNodes(world.zk).deleted() == []


def test_an_archive_has_one_topic(world: World) -> None:
    record = world.archived_topic("t")
    named = uuid_to_text(record.topic_id)
    with pytest.raises(ConfigError, match="topic t has this archive"):
        world.archives.claim(named, 1)
    world.registry.deletions.delete("t")
    with pytest.raises(ConfigError, match="no records of such a topic"):
        world.archives.claim("A" * 22, 1)
    one, rival = world.archives.claim(named, 1), world.archives.claim(named, 1)
    assert one.first_epochs == {0: 5}
    config = {ARCHIVE_KEY: "true", ARCHIVE_ID_KEY: named}
    world.registry.create_topic("u", {0: [1]}, config, first_epochs=one.first_epochs, claim=one.operations)
    with pytest.raises(BadVersion):
        world.registry.create_topic("v", {0: [1]}, config, first_epochs={0: 5}, claim=rival.operations)
    assert world.registry.topic_names() == ["u"]
    (state,) = world.registry.partition_states(world.registry.topics()["u"].partitions()).values()
    assert (state.leader, state.leader_epoch, state.is_restored) == (1, 5, True)
    with pytest.raises(ConfigError, match="topic u has this archive"):
        world.archives.claim(named, 1)


def test_a_claim_and_an_end_exclude_each_other(world: World) -> None:
    record = world.archived_topic("t")
    named = uuid_to_text(record.topic_id)
    world.registry.deletions.delete("t")
    nodes = ArchiveNodes(world.zk)
    ((deleted, version),) = nodes.deleted()
    claim = world.archives.claim(named, 1)
    assert nodes.begin_erasing(deleted, version)
    with pytest.raises((BadVersion, NoNode)):
        world.registry.create_topic("u", {0: [1]}, {}, first_epochs={}, claim=claim.operations)
    with pytest.raises(ConfigError, match="its archive is being"):
        world.archives.claim(named, 1)
    nodes.forget(deleted)
    world.registry.create_topic("w", {0: [1]}, {}, first_epochs={}, claim=world.archives.claim(named, 1).operations)
    assert not nodes.begin_erasing(deleted, version)


def test_an_archive_that_cannot_be_read_is_no_reason_to_create_anew(world: World, tmp_path: Path) -> None:
    record = world.archived_topic("t")
    world.registry.deletions.delete("t")
    place = topic_directory(world.cluster_id, record.topic_id)
    (tmp_path / "archive" / place / "0" / "manifest" / f"{0:020}.json").write_bytes(b"{")
    with pytest.raises(BrokerError, match="the archive cannot be read"):
        world.archives.claim(uuid_to_text(record.topic_id), 1)


def test_an_archive_that_its_topic_has_turned_off_is_not_free(world: World) -> None:
    """The topic may turn it on again, and then there would be two."""
    record = world.archived_topic("t")
    named = uuid_to_text(record.topic_id)
    world.registry.deletions.delete("t")
    claim = world.archives.claim(named, 1)
    config = {ARCHIVE_KEY: "true", ARCHIVE_ID_KEY: named}
    world.registry.create_topic("u", {0: [1]}, config, first_epochs={0: 5}, claim=claim.operations)
    off = {ARCHIVE_KEY: "false", "remote.log.delete.on.disable": "true"}
    world.registry.alter_topic_config("u", off)
    with pytest.raises(ConfigError, match="topic u has this archive"):
        world.archives.claim(named, 1)
    world.registry.deletions.delete("u")
    ((deleted, _),) = ArchiveNodes(world.zk).deleted()  # what is left of the archive is deleted, too
    assert deleted.archive_id == record.topic_id


def test_a_topic_that_is_deleted_again_stays_for_its_time_again(world: World) -> None:
    upkeep = world.controller(1)
    record = world.archived_topic("t")
    named = uuid_to_text(record.topic_id)
    path = deleted_path(world.cluster_id, record.topic_id)
    world.registry.deletions.delete("t")
    world.look(upkeep)
    first = DeletedTopic.decode(path, world.storage.read(path))
    world.clock.advance(DAY_MS - 1)
    claim = world.archives.claim(named, 1)
    config = {ARCHIVE_KEY: "true", ARCHIVE_ID_KEY: named}
    world.registry.create_topic("u", {0: [1]}, config, first_epochs={0: 5}, claim=claim.operations)
    world.look(upkeep)  # the broker that created it could not reach the archive
    assert not world.storage.exists(path)
    world.registry.deletions.delete("u")
    world.look(upkeep)
    again = DeletedTopic.decode(path, world.storage.read(path))
    assert (again.name, again.deleted_ms - first.deleted_ms) == ("u", DAY_MS - 1)
    world.clock.advance(DAY_MS - 1)
    world.look(upkeep)
    assert world.storage.exists(path)
    world.clock.advance(2)
    world.look(upkeep)
    assert world.storage.names(topic_directory(world.cluster_id, record.topic_id)) == []


def test_a_deletion_replaces_an_earlier_note(world: World) -> None:
    """And a `deleted.json` that a lost cluster has left, which says when the topic was deleted then."""
    record = world.archived_topic("t")
    nodes, path = ArchiveNodes(world.zk), deleted_path(world.cluster_id, record.topic_id)
    old = DeletedTopic(record.topic_id, "t", 1, record.config, 0)
    world.storage.create(path, old.encode())
    world.zk.create(deletion_path(record.topic_id), old.encode(), parents=True)
    world.registry.deletions.delete("t")
    world.look(world.controller(1))
    ((deleted, _),) = nodes.deleted()
    assert deleted.deleted_ms == world.clock.now_ms()
    assert DeletedTopic.decode(path, world.storage.read(path)) == deleted


def test_a_topic_that_is_deleted_while_its_archive_is_claimed_keeps_it(world: World) -> None:
    record = world.archived_topic("t")
    real = world.registry.topics

    def topics() -> Any:
        world.registry.deletions.delete("t")
        return real()

    cast(Any, world.archives)._registry = SimpleNamespace(topics=topics)
    claim = world.archives.claim(uuid_to_text(record.topic_id), 1)
    world.registry.create_topic("u", {0: [1]}, {}, first_epochs={}, claim=claim.operations)
    assert ArchiveNodes(world.zk).deleted() == []  # or the note would be there when the new topic is deleted


def test_what_changes_of_topics_is_told_at_once(world: World) -> None:
    """The next backup is a minute away."""
    upkeep = world.controller(1)
    listeners: dict[str, Any] = {}
    topics = cast(Any, upkeep)._topics
    topics.add_change_listener = partial(listeners.__setitem__, "change")
    topics.add_deletion_listener = partial(listeners.__setitem__, "deletion")

    async def until(exists: Callable[[], bool]) -> None:
        while not exists():
            await asyncio.sleep(0.01)

    async def live() -> None:
        running = asyncio.create_task(upkeep.run())
        await until(lambda: world.files.newest()[0] == 1)
        record = world.archived_topic("t")
        topics.metadata = world.registry.load_metadata()
        listeners["change"](["t"])
        await until(lambda: world.storage.exists(topic_path(world.cluster_id, record.topic_id)))
        world.registry.deletions.delete("t")
        topics.metadata = world.registry.load_metadata()
        await listeners["deletion"](record.partitions())
        await until(lambda: world.storage.exists(deleted_path(world.cluster_id, record.topic_id)))
        running.cancel()

    asyncio.run(asyncio.wait_for(live(), 60))
    assert newest(world)[0] == 1


def test_a_controller_that_may_not_write_backups_says_so(world: World) -> None:
    world.look(world.controller(7))
    upkeep = world.controller(2)
    asyncio.run(upkeep.look())
    assert "a backup of controller epoch 7" in upkeep.problem


def test_an_archive_that_is_being_erased_says_so(world: World) -> None:
    """A cluster that is restored then must not give out the rest of it."""
    record = world.archived_topic("t")
    world.registry.deletions.delete("t")
    upkeep = world.controller(1)
    world.look(upkeep)
    world.clock.advance(DAY_MS + 1)
    removed: list[str] = []

    class Stopping:
        def __getattr__(self, name: str) -> Any:
            return getattr(world.storage, name)

        def remove(self, path: str) -> None:
            removed.append(path)
            raise OSError("killed")

    cast(Any, upkeep)._deleted._storage = Stopping()
    asyncio.run(upkeep.look())
    assert len(removed) == 1
    found = read_deleted(world.storage, world.cluster_id, record.topic_id)
    assert found is not None
    assert found.is_being_erased
