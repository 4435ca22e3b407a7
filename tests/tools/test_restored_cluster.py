"""A cluster of three brokers with an archive loses the disks of any one of them, and then all and its ZooKeeper."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.archive.manifest_store import ManifestStore
from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.cluster.cluster_backup import BackupFiles
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from tests.support.console import answer_of, error_of
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.waiting import eventually
from tests.tools.archived_records import Records, consumed, produced

TOPIC = "t"
PARTITIONS = 2

pytestmark = pytest.mark.slow


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def kafka(tmp_path: Path, archive: Path) -> Iterator[ReplicatedCluster]:
    settings = {
        "archive.url": f"file://{archive}",
        "remote.log.storage.system.enable": "true",
        "archive.cluster.backup.interval.ms": "100",
        "log.retention.check.interval.ms": "100",
        "log.flush.scheduler.interval.ms": "50",
    }
    with ReplicatedCluster(tmp_path / "cluster", settings) as cluster:
        yield cluster


def read(kafka: ReplicatedCluster) -> dict[int, Records]:
    return {partition: consumed(kafka.bootstrap, TOPIC, partition) for partition in range(PARTITIONS)}


def described(kafka: ReplicatedCluster) -> TopicMetadata:
    with Cluster(kafka.bootstrap) as cluster:
        return cluster.topics()[TOPIC]


def test_it_loses_any_broker_and_then_all(kafka: ReplicatedCluster, archive: Path) -> None:
    config = {"segment_bytes": "20000", "retention_ms": "-1", "local_retention_bytes": "1", "file_delete_delay_ms": "0"}
    kafka.create(TOPIC, PARTITIONS, remote_storage_enable="true", **config)
    acknowledged: dict[int, Records] = {partition: [] for partition in range(PARTITIONS)}

    def produce(count: int) -> None:
        for partition, records in acknowledged.items():
            records += produced(kafka.bootstrap, TOPIC, count, partition)

    produce(600)
    for lost in (1, 2, 3):
        broker = kafka.brokers[lost]
        broker.kill()
        shutil.rmtree(broker.data_dir / "broker")
        produce(200)
        broker.start()
        kafka.wait_until_healed()
        produce(200)
        assert read(kafka) == acknowledged

    with Cluster(kafka.bootstrap) as cluster:
        cluster_id = str(cluster.cluster_id())
        behind = {TopicPartition(TOPIC, partition): len(records) for partition, records in acknowledged.items()}
        Admin(cluster).alter_group_offsets("g", behind)
        Admin(cluster).alter_group_offsets("early", {TopicPartition(TOPIC, 0): 50})
    before = described(kafka)
    assert before.topic_id is not None
    storage = open_storage(str(archive))

    def ends() -> list[int]:
        stores = [ManifestStore(storage, cluster_id, before.topic_id, partition) for partition in acknowledged]  # type: ignore[arg-type]
        return [store.load().end for store in stores]

    def is_backed_up() -> bool:
        newest = BackupFiles(storage, cluster_id).newest()[1]
        return newest is not None and newest.offsets.keys() >= {"g", "early"}

    eventually(lambda: min(ends()) > 1500)
    eventually(is_backed_up)
    for broker in kafka.brokers.values():
        broker.kill()
        shutil.rmtree(broker.data_dir / "broker")
    assert kafka.zookeeper_server is not None
    kafka.zookeeper_server.stop()
    shutil.rmtree(kafka.zookeeper_server.data_dir)
    end = ends()

    kafka.zookeeper_server.start()
    restore = ["log", "restore", "--archive", str(archive), "--zookeeper", kafka.zookeeper]
    said = json.loads(answer_of(*restore, "--json"))
    assert said["brokers"] == [1, 2, 3]
    assert [one["end"] for one in said["partitions"] if one["topic"] == TOPIC] == end
    moved = [(one["group"], one["partition"], one["setTo"]) for one in said["movedOffsets"]]
    assert moved == [("g", partition, end[partition]) for partition in range(PARTITIONS)]
    assert f"has cluster {cluster_id}" in error_of(*restore, status=2)
    kafka.start()
    kafka.wait_until_healed()
    after = described(kafka)
    assert after.topic_id == before.topic_id
    assert all(after.partitions[n].leader_epoch > before.partitions[n].leader_epoch for n in range(PARTITIONS))
    acknowledged = {partition: records[: end[partition]] for partition, records in acknowledged.items()}
    assert read(kafka) == acknowledged
    with Cluster(kafka.bootstrap) as cluster:
        assert Admin(cluster).group_offsets("early") == {TopicPartition(TOPIC, 0): 50}
        assert list(Admin(cluster).group_offsets("g").values()) == end
    produce(300)
    assert read(kafka) == acknowledged
    for broker in kafka.brokers.values():
        broker.restart()
        kafka.wait_until_healed()
    assert read(kafka) == acknowledged
