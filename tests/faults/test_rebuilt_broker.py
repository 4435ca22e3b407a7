"""A broker that has lost its disk, in a cluster whose topic is mostly in the archive: it follows, and then leads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.client.cluster import Cluster
from broker.client.partition_offsets import list_offsets
from broker.protocol import topic_partition
from tests.support.replicated_cluster import ReplicatedCluster
from tests.support.waiting import eventually

TP = topic_partition.TopicPartition("events", 0)
LATEST, EARLIEST, EARLIEST_LOCAL = -1, -2, -4


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[ReplicatedCluster]:
    settings = {
        "remote.log.storage.system.enable": "true",
        "archive.url": f"file://{tmp_path}/archive",
        "log.retention.check.interval.ms": "200",
        "log.flush.scheduler.interval.ms": "50",
    }
    with ReplicatedCluster(tmp_path / "data", settings) as cluster:
        cluster.create(
            TP.topic,
            remote_storage_enable="true",
            retention_ms="-1",
            local_retention_bytes="30000",
            segment_bytes="20000",
            file_delete_delay_ms="0",
        )
        yield cluster


class Writer:
    """An idempotent producer and a transactional one, which know of no failure. `sent`: (offset, value)."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: list[tuple[int, bytes]] = []
        self._plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
        self._transactional.init_transactions(60)

    def write(self, count: int) -> None:
        """Batches of ten."""
        for number in range(count):
            self._plain.produce(TP.topic, b"%d " % number + bytes(200), on_delivery=self._delivered)
            if number % 10 == 9:
                self._plain.flush(60)

    def abort(self) -> None:
        """A transaction that spans several segments."""
        self._transactional.begin_transaction()
        for _ in range(5):
            self._transactional.produce(TP.topic, b"aborted" + bytes(200))
            self._transactional.flush(60)
            self.write(50)
        self._transactional.abort_transaction(60)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        self.sent.append((offset, value))


def read_committed(bootstrap: str) -> list[tuple[int, bytes]]:
    """(offset, value) from the log start to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(TP.topic, TP.partition, 0)])
    found: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(60)
        assert message is not None, "nothing more comes"
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            break
        found.append((message.offset() or 0, message.value() or b""))
    consumer.close()
    return found


def start_of(kafka: ReplicatedCluster, timestamp: int) -> int:
    with Cluster(kafka.bootstrap) as cluster:
        return list_offsets(cluster, {TP: timestamp})[TP].offset


def directory_of(kafka: ReplicatedCluster, broker: int) -> Path:
    (found,) = kafka.brokers[broker].data_dir.glob(f"**/{TP.topic}-{TP.partition}")
    return found


def first_segment(kafka: ReplicatedCluster, broker: int) -> int:
    return min(int(path.stem) for path in directory_of(kafka, broker).glob("*.log"))


def epochs_of(kafka: ReplicatedCluster, broker: int) -> list[list[int]]:
    lines = (directory_of(kafka, broker) / "leader-epoch-checkpoint").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines[2:]]


def test_a_rebuilt_broker_follows_from_the_local_start_and_then_leads(kafka: ReplicatedCluster) -> None:
    """Promise A5: idempotent producers go on, and what was aborted stays so."""
    with Cluster(kafka.bootstrap) as cluster:
        leader, rebuilt, _ = cluster.topic(TP.topic).partitions[TP.partition].replicas
    writer = Writer(kafka.bootstrap)
    writer.write(100)
    writer.abort()
    eventually(lambda: start_of(kafka, EARLIEST_LOCAL) > 150, interval=0.2)
    with kafka.without(rebuilt):
        shutil.rmtree(directory_of(kafka, rebuilt))
        writer.abort()
    assert start_of(kafka, EARLIEST) == 0
    assert first_segment(kafka, rebuilt) > 150, "it has only what its leader has on its disk"
    with kafka.without(leader):
        kafka.wait_for_new_leader(TP, leader)
        assert kafka.leader(TP) == rebuilt
        writer.abort()
        assert read_committed(kafka.bootstrap) == sorted(writer.sent)
        assert epochs_of(kafka, rebuilt)[0] == [0, 0], "it answers for epochs that it never saw"
    everything = TopicPartition(TP.topic, TP.partition, OFFSET_END)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    (deleted,) = admin.delete_records([everything]).values()
    assert deleted.result(60).low_watermark == start_of(kafka, LATEST), "of all replicas"
    assert start_of(kafka, EARLIEST) == start_of(kafka, EARLIEST_LOCAL) == start_of(kafka, LATEST)
