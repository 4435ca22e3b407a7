"""The move of a standalone broker's metadata, interrupted at every write, and into places that have a cluster."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.errors import ConfigError, ConnectionFailed
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.zookeeper import operations, znodes
from broker.zookeeper.local_store import LocalStore
from broker.zookeeper.metadata_move import METADATA_FILE, move_into_zookeeper, standalone_store
from broker.zookeeper.registry import Registry
from tests.support.failing_store import FailingStore


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[FailingStore]:
    with FailingStore(tmp_path / "zookeeper") as store:
        yield store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The first log directory of a standalone broker that was killed."""
    running, directory = tmp_path / "running", tmp_path / "logs"
    running.mkdir()
    with LocalStore(running / METADATA_FILE) as store:
        registry = Registry(store)
        registry.ensure_paths()
        registry.cluster_id()
        registry.generate_broker_id()
        registry.register_broker(BrokerInfo.plaintext(1001, "h", 9092))
        registry.create_topic("t", {0: [1001], 1: [1001]}, {"retention.ms": "1"})
        registry.alter_user_config("alice", {"SCRAM-SHA-256": "x"})
        store.create(f"{znodes.CONFIG_CHANGES}/config_change_", b"{}", sequence=True)
        shutil.copytree(running, directory)
    return directory


def content(registry: Registry) -> Any:
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    return registry.cluster_id(), registry.topics(), registry.partition_states(partitions), registry.user_configs()


def test_a_move_that_is_interrupted_at_any_write_is_finished_by_the_next_start(
    directory: Path, zookeeper: FailingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_TRANSACTION_BYTES", 300)  # so that there are many
    with LocalStore(directory / METADATA_FILE) as store:
        before = content(Registry(store))
    file = (directory / METADATA_FILE).read_bytes()
    attempts = 0
    for writes in range(100):
        zookeeper.writes_left = writes // 3  # some attempts get no further than the one before
        try:
            move_into_zookeeper(directory, zookeeper)
            break
        except ConnectionFailed:
            attempts += 1
        with pytest.raises(ConfigError, match="is being moved into a ZooKeeper; start the broker without --standalone"):
            standalone_store(directory, SystemClock())
    assert attempts > 20
    zookeeper.writes_left = 100
    move_into_zookeeper(directory, zookeeper)
    registry = Registry(zookeeper)
    assert content(registry) == before
    assert registry.brokers() == {}
    assert zookeeper.children(znodes.CONFIG_CHANGES) == []
    assert registry.generate_broker_id() == 1002
    assert [path.name for path in directory.iterdir()] == [f"{METADATA_FILE}.moved"]
    assert (directory / f"{METADATA_FILE}.moved").read_bytes().startswith(file[:100])


def test_a_crash_after_the_copy_copies_nothing_again(directory: Path, zookeeper: FailingStore) -> None:
    move_into_zookeeper(directory, zookeeper)
    Registry(zookeeper).deletions.delete("t")
    (directory / f"{METADATA_FILE}.moved").rename(directory / f"{METADATA_FILE}.moving")
    move_into_zookeeper(directory, zookeeper)
    assert Registry(zookeeper).topic_names() == []


def test_a_place_with_a_cluster_is_refused(directory: Path, zookeeper: FailingStore) -> None:
    move_into_zookeeper(directory, zookeeper)
    moved = directory / f"{METADATA_FILE}.moved"
    (directory / METADATA_FILE).write_bytes(moved.read_bytes())  # somebody went back to the file
    cluster_id = Registry(zookeeper).cluster_id()
    with pytest.raises(ConfigError, match=f"has cluster {cluster_id} already"):
        move_into_zookeeper(directory, zookeeper)
    zookeeper.delete(znodes.CLUSTER_ID)
    with pytest.raises(ConfigError, match="has 1 topics and 0 brokers already"):
        move_into_zookeeper(directory, zookeeper)
    assert (directory / METADATA_FILE).exists()


def test_without_a_file_there_is_nothing_to_move(tmp_path: Path, zookeeper: FailingStore) -> None:
    move_into_zookeeper(tmp_path, zookeeper)
    assert zookeeper.children("/") == []
