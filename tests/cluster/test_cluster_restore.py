"""A backup is written into an empty store: what is there then, what is refused, and a restore that ends anywhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.archive.layout import PartitionPlace
from broker.archive.manifest import Start
from broker.archive.manifest_store import ManifestStore
from broker.cluster.cluster_backup import ClusterBackup, CommittedOffset, read_backup
from broker.cluster.cluster_restore import PRODUCER_IDS_SKIPPED, MovedOffset, plan_restore, restore_into
from broker.cluster.deleted_archives import deleted_path
from broker.errors import ConfigError, ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER
from broker.storage.storage import Storage, open_storage
from broker.zookeeper import znodes
from broker.zookeeper.acl_store import AclStore
from broker.zookeeper.archive_nodes import ARCHIVE_KEY, ArchiveNodes, DeletedTopic
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.registry import Registry
from tests.support.failing_store import FailingStore

GROUPS = "__consumer_offsets"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "archive"))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[FailingStore]:
    with FailingStore(tmp_path / "target") as store:
        yield store


@pytest.fixture
def backup(tmp_path: Path) -> ClusterBackup:
    """Of a cluster with two topics, a user, generated ids, and two groups."""
    with LocalStore(tmp_path / "source") as zk:
        registry = Registry(zk)
        registry.ensure_paths()
        AclStore(zk).ensure_paths()
        registry.create_topic("t", {0: [1, 2], 1: [2, 1]}, {"retention.ms": "5"})
        registry.create_topic(GROUPS, {0: [1], 1: [2]})
        registry.alter_user_config("alice", {"SCRAM-SHA-256": "x"})
        registry.allocate_producer_ids(1)
        registry.generate_broker_id()
        offsets = {
            "g": {TopicPartition("t", 0): CommittedOffset(7, 1), TopicPartition("t", 1): CommittedOffset(0)},
            "h": {TopicPartition("gone", 0): CommittedOffset(3)},
        }
        return read_backup(zk, registry.load_metadata(), 4, 0, offsets)


def restore(store: LocalStore, storage: Storage, backup: ClusterBackup) -> None:
    restore_into(store, plan_restore(storage, backup), lambda group, count: len(group) % count)


def dump(store: LocalStore) -> dict[str, bytes]:
    return {node.path: node.data for node in store.nodes()}


def test_everything_is_there_and_waits_for_its_first_leader(
    storage: Storage, backup: ClusterBackup, target: LocalStore
) -> None:
    found = plan_restore(storage, backup)
    assert found.moved == (
        MovedOffset("g", TopicPartition("t", 0), 7, 0),
        MovedOffset("h", TopicPartition("gone", 0), 3, None),
    )
    assert (found.brokers, found.without_archive) == ([1, 2], ["t"])
    restore(target, storage, backup)
    registry = Registry(target)
    assert registry.cluster_id() == backup.cluster_id
    assert registry.topics() == backup.topics()
    states = registry.partition_states([TopicPartition("t", 0), TopicPartition(GROUPS, 1)])
    assert {(one.leader, one.isr, one.is_restored) for one in states.values()} == {(NO_LEADER, (), True)}
    assert registry.user_configs() == {"alice": {"SCRAM-SHA-256": "x"}}
    assert registry.allocate_producer_ids(1)[0] > backup.last_producer_id + PRODUCER_IDS_SKIPPED
    assert registry.generate_broker_id() == 1002
    nodes = ArchiveNodes(target)
    (paths,) = nodes.restored_partitions().values()
    assert nodes.restored_offsets(paths) == {"g": [["t", 0, 0, -1, ""], ["t", 1, 0, -1, ""]]}


@pytest.mark.parametrize("writes", [0, 1, 2, 5, 7, 8, 9])
def test_a_restore_that_ended_anywhere_is_done_again(
    storage: Storage, backup: ClusterBackup, target: FailingStore, tmp_path: Path, writes: int
) -> None:
    """The second one may have a later backup, without a topic of the first."""
    later = ClusterBackup.decode(backup.encode())
    first = ClusterBackup(
        **{**vars(backup), "nodes": {**backup.nodes, "/brokers/topics/x": backup.nodes["/brokers/topics/t"]}}
    )
    target.writes_left = writes
    try:
        restore(target, storage, first)
    except ConnectionFailed:
        assert target.exists(znodes.CLUSTER_ID) is None
    else:
        return
    target.writes_left = 1_000_000
    restore(target, storage, later)
    with LocalStore(tmp_path / "whole") as whole:
        restore(whole, storage, later)
        assert dump(target) == dump(whole)


def test_a_store_with_a_cluster_or_topics_is_refused(
    storage: Storage, backup: ClusterBackup, target: LocalStore, tmp_path: Path
) -> None:
    restore(target, storage, backup)
    before = dump(target)
    with pytest.raises(ConfigError, match=f"has cluster {backup.cluster_id}"):
        restore(target, storage, backup)
    assert dump(target) == before
    with LocalStore(tmp_path / "other") as other:
        Registry(other).ensure_paths()
        Registry(other).create_topic("t", {0: [1]})
        with pytest.raises(ConfigError, match="has 1 topics and 0 brokers"):
            restore(other, storage, backup)


def test_deleted_topics_are_still_known(storage: Storage, backup: ClusterBackup, target: LocalStore) -> None:
    deleted = DeletedTopic(znodes.new_uuid(), "old", 3, {"remote.storage.enable": "true"}, 5)
    storage.create(deleted_path(backup.cluster_id, deleted.archive_id), deleted.encode())
    restore(target, storage, backup)
    assert [one for one, _ in ArchiveNodes(target).deleted()] == [deleted]


def test_controllers_go_on_counting(storage: Storage, backup: ClusterBackup, target: LocalStore) -> None:
    """Of two backups the one of the later controller counts: those of the restored cluster must not be the earlier."""
    restore(target, storage, backup)
    elected = Registry(target).controller.elect(1)
    assert elected is not None
    assert elected.epoch == backup.controller_epoch + 1


def test_no_broker_begins_a_cluster_in_an_unfinished_restore(
    storage: Storage, backup: ClusterBackup, target: FailingStore
) -> None:
    target.writes_left = 1
    with pytest.raises(ConnectionFailed):
        restore(target, storage, backup)
    target.writes_left = 1_000_000
    with pytest.raises(ConfigError, match="run `pykafka log restore` again"):
        Registry(target).cluster_id()
    restore(target, storage, backup)
    assert Registry(target).cluster_id() == backup.cluster_id


def test_a_broken_archive_of_one_partition_holds_up_no_other(storage: Storage, backup: ClusterBackup) -> None:
    nodes = {**backup.nodes, znodes.topic_config_path("t"): znodes.encode_config({ARCHIVE_KEY: "true"}).decode()}
    backup = dataclasses.replace(backup, nodes=nodes)
    topic_id = backup.topics()["t"].topic_id
    whole = ManifestStore(storage, backup.cluster_id, topic_id, 1)
    whole.commit(whole.load(), 9, 1, Start(0))
    storage.create(PartitionPlace(backup.cluster_id, topic_id, 0).entry(0), b"{")
    found = plan_restore(storage, backup)
    assert found.unreadable.keys() == {TopicPartition("t", 0)}
    assert found.ends[TopicPartition("t", 1)].epoch == 9
    assert found.offsets["g"][TopicPartition("t", 0)].offset == 7  # nobody knows that it is too high


def test_users_quotas_acls_and_settings_come_back_exactly(storage: Storage, tmp_path: Path, target: LocalStore) -> None:
    entities = {
        "/config/users/alice": {"SCRAM-SHA-512": "salt=a", "producer_byte_rate": "1024"},
        "/config/users/CN%3Dbob%2COU%3D%C3%A9": {"request_percentage": "50.5"},
        "/config/users/<default>": {"consumer_byte_rate": "7"},
        "/config/users/alice/clients/c%20d": {"consumer_byte_rate": "8"},
        "/config/users/<default>/clients/<default>": {"producer_byte_rate": "9"},
        "/config/clients/c": {"producer_byte_rate": "10"},
        "/config/clients/<default>": {},
        "/config/ips/10.0.0.1": {"connection_creation_rate": "3"},
        "/config/brokers/<default>": {"log.cleaner.backoff.ms": "14000"},
        "/config/brokers/1": {"log.retention.ms": "5"},
        "/config/topics/t": {"retention.ms": "5", "max.message.bytes": "99"},
    }
    acl = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"}]}'
    acls = ["/kafka-acl/Topic/t", "/kafka-acl/Group/*", "/kafka-acl-extended/prefixed/Topic/x"]
    with LocalStore(tmp_path / "source") as source:
        registry = Registry(source)
        registry.ensure_paths()
        AclStore(source).ensure_paths()
        registry.create_topic("t", {0: [1]}, entities["/config/topics/t"])
        for path, config in entities.items():
            if path != "/config/topics/t":
                source.create(path, znodes.encode_config(config), parents=True)
        for path in acls:
            source.create(path, acl, parents=True)
        offsets = {"g \u00e9": {TopicPartition("t", 0): CommittedOffset(0, 3, "m \u2603")}}
        backup = ClusterBackup.decode(read_backup(source, registry.load_metadata(), 4, 0, offsets).encode())
        restore(target, storage, backup)
        roots = ("/config", "/kafka-acl", "/brokers/topics/t")
        before, after = (
            {path: data for path, data in dump(store).items() if path.startswith(roots) and "/partitions/" not in path}
            for store in (source, target)
        )
    assert after == before
    assert after.keys() >= {*entities, *acls}
    assert backup.offsets == offsets
