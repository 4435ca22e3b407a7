"""The backup of a cluster's metadata: its bytes, its numbers, and what of a store it holds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import cluster_backup
from broker.cluster.cluster_backup import BackupFiles, BackupUnreadable, ClusterBackup, CommittedOffset, read_backup
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import QuotaEntity
from broker.security.acl_types import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    ResourcePattern,
)
from broker.storage.storage import open_storage
from broker.zookeeper.acl_store import AclStore
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.registry import Registry

texts = st.text(max_size=8)
partitions = st.builds(TopicPartition, texts, st.integers(0, 9))
committed = st.builds(CommittedOffset, st.integers(0, 2**62), st.integers(-1, 9), texts)
backups = st.builds(
    ClusterBackup,
    texts,
    st.integers(0, 99),
    st.integers(0, 2**50),
    st.dictionaries(st.sampled_from(["/brokers/topics/t", "/config/users/a", "/kafka-acl/Topic/t"]), texts),
    st.dictionaries(partitions, st.integers(0, 99), max_size=3),
    st.dictionaries(texts, st.dictionaries(partitions, committed, min_size=1, max_size=3), max_size=3),
    st.integers(-1, 2**62),
    st.integers(0, 99),
)


@pytest.fixture
def files(tmp_path: Path) -> BackupFiles:
    return BackupFiles(open_storage(str(tmp_path / "archive")), "c")


@pytest.fixture
def zk(tmp_path: Path) -> Iterator[LocalStore]:
    with LocalStore(tmp_path / "metadata") as store:
        Registry(store).ensure_paths()
        AclStore(store).ensure_paths()
        yield store


@given(backups)
def test_a_backup_is_read_as_it_was_written(backup: ClusterBackup) -> None:
    assert ClusterBackup.decode(backup.encode()) == backup


@given(
    st.binary() | st.recursive(st.none() | st.integers() | texts, st.lists).map(lambda one: json.dumps(one).encode())
)
def test_hostile_bytes_are_no_backup(data: bytes) -> None:
    with pytest.raises(BackupUnreadable):
        ClusterBackup.decode(data)


@given(st.data())
def test_a_changed_backup_is_one_or_none(data: st.DataObject) -> None:
    bytes_ = bytearray(data.draw(backups).encode())
    bytes_[data.draw(st.integers(0, len(bytes_) - 1))] = data.draw(st.integers(0, 255))
    try:
        ClusterBackup.decode(bytes(bytes_))
    except BackupUnreadable:
        pass


@pytest.mark.parametrize(
    "path", ["/cluster/id", "/brokers/topics/t/partitions", "/brokers/topics/..", "/config/users/../x", "/admin/x", ""]
)
def test_a_backup_sets_no_other_nodes(path: str) -> None:
    with pytest.raises(BackupUnreadable, match="no node of a backup"):
        ClusterBackup.decode(ClusterBackup("c", 1, 0, {path: ""}).encode())


def test_the_backup_of_the_last_controller_counts(files: BackupFiles) -> None:
    assert files.newest() == (0, None)
    late, ours = ClusterBackup("c", 4, 1000), ClusterBackup("c", 5, 900)
    files.create(1, ours)
    with pytest.raises(FileExistsError):
        files.create(1, late)
    files.create(2, late)
    assert files.newest() == (2, ours)
    files.create(3, ClusterBackup("c", 5, 1100))
    assert files.newest() == (3, ClusterBackup("c", 5, 1100))


def test_an_unreadable_backup_is_passed_over(files: BackupFiles, tmp_path: Path) -> None:
    files.create(1, ClusterBackup("c", 1, 0))
    (tmp_path / "archive" / "c" / "cluster" / f"{2:020}.json").write_bytes(b'{"version":1')
    assert files.newest() == (2, ClusterBackup("c", 1, 0))
    (tmp_path / "archive" / "c" / "cluster" / f"{1:020}.json").unlink()
    with pytest.raises(BackupUnreadable):
        files.newest()


def test_old_backups_are_deleted(files: BackupFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_backup, "KEPT", 2)
    for number in range(1, 6):
        files.create(number, ClusterBackup("c", 1, number))
    files.delete_old()
    assert files.newest() == (5, ClusterBackup("c", 1, 5))
    with pytest.raises(FileExistsError):
        files.create(4, ClusterBackup("c", 1, 0))
    files.create(3, ClusterBackup("c", 1, 0))


def test_it_holds_what_zookeeper_has_and_no_password(zk: LocalStore) -> None:
    registry = Registry(zk)
    registry.create_topic("t", {0: [1, 2]}, {"retention.ms": "5"})
    registry.alter_user_config("älice", {"SCRAM-SHA-256": "salt=1,stored_key=2", "secret": "clear"})
    registry.quotas.alter(QuotaEntity(user="älice", client_id="c"), {"producer_byte_rate": "7"})
    registry.alter_broker_config(
        "<default>", {"log.cleaner.backoff.ms": "14", "listener.name.a.ssl.keystore.password": "clear", "x": "clear"}
    )
    registry.allocate_producer_ids(1)
    registry.generate_broker_id()
    pattern = ResourcePattern(AclResourceType.TOPIC, "t", PatternType.PREFIXED)
    entry = AccessControlEntry("User:a", AclOperation.READ, AclPermission.ALLOW)
    AclStore(zk).update(pattern, lambda _: frozenset({entry}))
    offsets = {"g": {TopicPartition("t", 0): CommittedOffset(4)}}
    backup = read_backup(zk, registry.load_metadata(), 3, 9, offsets)
    assert b"clear" not in backup.encode()
    assert backup.topics() == registry.topics()
    assert (backup.last_producer_id, backup.generated_broker_ids) == (999, 1)
    assert backup.leader_epochs == {TopicPartition("t", 0): 0}
    assert json.loads(backup.nodes["/config/users/%C3%A4lice"])["config"] == {"SCRAM-SHA-256": "salt=1,stored_key=2"}
    assert json.loads(backup.nodes["/config/users/%C3%A4lice/clients/c"])["config"] == {"producer_byte_rate": "7"}
    assert json.loads(backup.nodes["/config/brokers/<default>"])["config"] == {"log.cleaner.backoff.ms": "14"}
    assert "/kafka-acl-extended/prefixed/Topic/t" in backup.nodes
