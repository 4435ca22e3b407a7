"""`pykafka log restore` with real brokers: a lost cluster, and deleted topics."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from broker.archive.manifest_store import ManifestStore
from broker.client.admin import Admin, ResourceType
from broker.client.cluster import Cluster
from broker.client.partition_offsets import LATEST
from broker.cluster.cluster_backup import BackupFiles, ClusterBackup
from broker.cluster.cluster_restore import read_deleted
from broker.cluster.deleted_archives import topic_path
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.quotas.quota_entity import QuotaEntity
from broker.security.scram import ScramMechanism
from broker.storage.storage import open_storage
from tests.support.broker_process import BrokerProcess
from tests.support.console import answer_of, error_of
from tests.support.raw_requests import Requests
from tests.support.waiting import eventually
from tests.tools import archived_records
from tests.tools.archived_records import Records


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def settings(archive: Path) -> dict[str, str]:
    return {
        "standalone": "true",
        "broker.id": "7",
        "offsets.topic.num.partitions": "3",
        "archive.url": f"file://{archive}",
        "remote.log.storage.system.enable": "true",
        "archive.cluster.backup.interval.ms": "100",
    }


@pytest.fixture
def broker(tmp_path: Path, settings: dict[str, str]) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", settings) as broker:
        yield broker


def produce(broker: BrokerProcess, topic: str, count: int, begin: int = 0) -> None:
    """`count` records that `begin` and their number name, 40 in a batch, with acks=all."""
    values = [b"%08d" % number + bytes(100) for number in range(begin, begin + count)]
    with Requests(broker.bootstrap) as ask:
        for first in range(0, count, 40):
            ask.put(topic, *values[first : first + 40])


def end_of(broker: BrokerProcess, topic: str) -> int:
    """The end of partition 0, as soon as it has a leader that serves it."""
    found: list[int] = []

    def is_served() -> bool:
        with Requests(broker.bootstrap) as ask:
            answer = ask.list_offset(topic, LATEST)
        found.append(answer.offset)
        return answer.error_code is ErrorCode.none

    eventually(is_served)
    return found[-1]


def consumed(broker: BrokerProcess, topic: str) -> Records:
    end_of(broker, topic)
    return archived_records.consumed(broker.bootstrap, topic)


def archived_end(archive: Path, cluster_id: str, topic_id: uuid.UUID) -> int:
    return ManifestStore(open_storage(str(archive)), cluster_id, topic_id, 0).load().end


def is_named(archive: Path, cluster_id: str, topic_id: uuid.UUID, name: str) -> bool:
    """Whether a restore finds the archive by this name of its topic: the broker writes it some time after a change."""
    path = archive / topic_path(cluster_id, topic_id)
    return path.exists() and f'"name": "{name}"' in path.read_text()


def newest(archive: Path, cluster_id: str) -> ClusterBackup | None:
    return BackupFiles(open_storage(str(archive)), cluster_id).newest()[1]


def shown(broker: BrokerProcess) -> Any:
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        admin, metadata = Admin(cluster), ask.metadata("t")
        return (
            metadata.cluster_id,
            metadata.brokers[0].node_id,
            metadata.topics[0].topic_id,
            admin.describe_configs(ResourceType.TOPIC, "t")["retention.ms"].value,
            len(metadata.topics[0].partitions),
            admin.describe_users(),
            admin.describe_client_quotas(),
            admin.describe_configs(ResourceType.BROKER, "")["log.cleaner.backoff.ms"].value,
            sorted(admin.group_offsets("g")),
        )


def test_a_lost_cluster_comes_back(broker: BrokerProcess, archive: Path, tmp_path: Path) -> None:
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        admin = Admin(cluster)
        ask.create("t", 2, retention_ms="5000000")
        assert ask.put("t", b"a") == 0
        admin.alter_group_offsets("g", {TopicPartition("t", 0): 1, TopicPartition("t", 1): 0})
        admin.set_password("alice", "secret", list(ScramMechanism))
        admin.alter_client_quotas(QuotaEntity(user="alice"), {"producer_byte_rate": 1024.0})
        admin.alter_configs(ResourceType.BROKER, "", {"log.cleaner.backoff.ms": "14000"})
        cluster_id = ask.metadata("t").cluster_id
    before = shown(broker)

    def is_backed_up() -> bool:
        found = newest(archive, cluster_id)
        return found is not None and "g" in found.offsets and "log.cleaner.backoff.ms" in str(found.nodes)  # the last

    eventually(is_backed_up)
    broker.kill()
    shutil.rmtree(broker.data_dir / "broker")
    data = str(broker.data_dir / "broker")
    said = json.loads(answer_of("log", "restore", "--archive", str(archive), "--data", data, "--json"))
    assert said["clusterId"] == cluster_id
    assert said["brokers"] == [7]
    assert said["withoutArchive"] == ["t"]
    assert said["movedOffsets"] == [{"group": "g", "topic": "t", "partition": 0, "committed": 1, "setTo": 0}]
    assert "is not empty" in error_of("log", "restore", "--archive", str(archive), "--data", data, status=2)
    broker.start()
    after = shown(broker)
    assert after == before
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        assert Admin(cluster).group_offsets("g") == {
            TopicPartition("t", 0): 0,
            TopicPartition("t", 1): 0,
        }
        assert ask.metadata("t").topics[0].partitions[0].leader_epoch == 1
        assert ask.put("t", b"b") == 0
        assert ask.values("t") == [b"b"]
    broker.restart()
    assert shown(broker) == before
    assert "Traceback" not in broker.output


ARCHIVED = {"remote_storage_enable": "true", "segment_bytes": "20000", "retention_ms": "-1"}


def test_records_of_a_lost_cluster_are_read_up_to_the_end_of_the_archive(
    broker: BrokerProcess, archive: Path, tmp_path: Path
) -> None:
    with Cluster(broker.bootstrap) as cluster, Requests(broker.bootstrap) as ask:
        topic_id = ask.create("t", 1, **ARCHIVED)
        produce(broker, "t", 2000)
        before = consumed(broker, "t")
        Admin(cluster).alter_group_offsets("g", {TopicPartition("t", 0): 2000})
        Admin(cluster).alter_group_offsets("early", {TopicPartition("t", 0): 500})
        cluster_id = ask.metadata("t").cluster_id

    def is_archived() -> bool:
        found = newest(archive, cluster_id)
        return found is not None and found.offsets.keys() >= {"g", "early"}

    eventually(is_archived)
    eventually(lambda: archived_end(archive, cluster_id, topic_id) > 1600)
    broker.kill()
    end = archived_end(archive, cluster_id, topic_id)
    shutil.rmtree(broker.data_dir / "broker")
    data = str(broker.data_dir / "broker")
    said = json.loads(answer_of("log", "restore", "--archive", str(archive), "--data", data, "--json"))
    assert said["partitions"] == [{"topic": "t", "partition": 0, "start": 0, "end": end}]
    assert said["movedOffsets"] == [{"group": "g", "topic": "t", "partition": 0, "committed": 2000, "setTo": end}]
    broker.start()
    assert consumed(broker, "t") == before[:end]
    with Cluster(broker.bootstrap) as cluster:
        assert Admin(cluster).group_offsets("g") == {TopicPartition("t", 0): end}
        assert Admin(cluster).group_offsets("early") == {TopicPartition("t", 0): 500}
    produce(broker, "t", 1000, begin=2000)
    after = consumed(broker, "t")
    assert [one[0] for one in after] == list(range(end + 1000))
    eventually(lambda: archived_end(archive, cluster_id, topic_id) > end + 600)
    broker.restart()
    assert consumed(broker, "t") == after
    assert "Traceback" not in broker.output


def test_a_deleted_topic_comes_back(broker: BrokerProcess, archive: Path) -> None:
    with Requests(broker.bootstrap) as ask:
        topic_id = ask.create("t", 2, **ARCHIVED)
        produce(broker, "t", 1000)
        before, cluster_id = consumed(broker, "t"), ask.metadata("t").cluster_id
        eventually(lambda: archived_end(archive, cluster_id, topic_id) > 600)
        eventually(lambda: is_named(archive, cluster_id, topic_id, "t"))
        restore = ["log", "restore", "--archive", str(archive), "--bootstrap-server", broker.bootstrap]
        assert "topic t has this archive" in error_of(*restore, "--topic", "t", "--as", "u", status=1)
        assert ask.delete("t") is ErrorCode.none
        eventually(lambda: read_deleted(open_storage(str(archive)), cluster_id, topic_id) is not None)
        end = archived_end(archive, cluster_id, topic_id)  # not before: a copy may have been under way
        assert "the archive has no topic 'x'; it has t" in error_of(*restore, "--topic", "x", status=2)
        assert answer_of(*restore, "--topic", "t", "--as", "u") == "Restored topic u with 2 partitions.\n"
        assert consumed(broker, "u") == before[:end]
        eventually(lambda: read_deleted(open_storage(str(archive)), cluster_id, topic_id) is None)
        produce(broker, "u", 400, begin=5000)
        eventually(lambda: archived_end(archive, cluster_id, topic_id) > end)
        eventually(lambda: is_named(archive, cluster_id, topic_id, "u"))
        assert "topic u has this archive" in error_of(*restore, "--topic", "u", "--as", "v", status=1)
        after = consumed(broker, "u")
        broker.restart()
        assert consumed(broker, "u") == after
    assert "Traceback" not in broker.output


@pytest.mark.slow
def test_a_deleted_topic_comes_back_as_it_was_at_a_time(broker: BrokerProcess, archive: Path) -> None:
    """The transaction that was open then is left out whole, although its first record is older."""
    values = {"bootstrap.servers": broker.bootstrap, "transactional.id": "x", "batch.num.messages": 40}
    producer = Producer(values)
    producer.init_transactions()
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    with Requests(broker.bootstrap) as ask:
        topic_id = ask.create("t", 1, **ARCHIVED)
        cluster_id = ask.metadata("t").cluster_id
        for _ in range(3):
            producer.begin_transaction()
            for number in range(300):
                producer.produce("t", bytes(100), timestamp=next(times))
                if number % 40 == 0:
                    producer.flush(30)
            producer.commit_transaction()
        before = consumed(broker, "t")
        producer.begin_transaction()
        for _ in range(400):
            producer.produce("t", bytes(100), timestamp=next(times))
        producer.commit_transaction()
        eventually(lambda: archived_end(archive, cluster_id, topic_id) > 1000)
        assert ask.delete("t") is ErrorCode.none
        eventually(lambda: read_deleted(open_storage(str(archive)), cluster_id, topic_id) is not None)
        restore = ["log", "restore", "--archive", str(archive), "--bootstrap-server", broker.bootstrap]
        restore += ["--topic", "t", "--until", str(before[650][2])]
        end = archived_end(archive, cluster_id, topic_id)
        answer_of(*restore, "--dry-run")
        assert archived_end(archive, cluster_id, topic_id) == end
        answer_of(*restore)
        second = [record for record in before if record[0] < 602]  # two transactions of 300 records and a marker
        assert consumed(broker, "t") == second
        produce(broker, "t", 40)
        assert len(consumed(broker, "t")) == len(second) + 40
    assert "Traceback" not in broker.output


@pytest.mark.slow
def test_a_partition_whose_only_disk_is_lost_begins_where_its_archive_ends(
    broker: BrokerProcess, archive: Path
) -> None:
    with Requests(broker.bootstrap) as ask:
        topic_id = ask.create("t", 1, **ARCHIVED)
        produce(broker, "t", 1000)
        before, cluster_id = consumed(broker, "t"), ask.metadata("t").cluster_id
    eventually(lambda: archived_end(archive, cluster_id, topic_id) > 600)
    broker.kill()
    end, directory = archived_end(archive, cluster_id, topic_id), broker.data_dir / "broker"
    shutil.rmtree(directory / "t-0")
    broker.start()
    with Requests(broker.bootstrap) as ask:
        assert ask.list_offset("t", LATEST).error_code is not ErrorCode.none
    broker.kill()
    assert "or where their archive ends" in answer_of("log", "dirs", "--adopt", str(directory))
    broker.start()
    assert f"begin anew, where their archives end, because their logs are gone and {directory}" in broker.output
    assert consumed(broker, "t") == before[:end]
    produce(broker, "t", 400)
    assert [one[0] for one in consumed(broker, "t")] == list(range(end + 400))
