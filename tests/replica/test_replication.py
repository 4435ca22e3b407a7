"""Three brokers that replicate: what is acknowledged is on all replicas, byte for byte, also after one was away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.client.admin_types import HIGH_WATERMARK
from broker.errors import BrokerError, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.registry import Registry
from tests.support.follower_log import state_of, stored
from tests.support.replicating import IDS, PARTITIONS, Brokers, brokers, until


def check_equal(cluster: Brokers, topic: str) -> None:
    for partition in range(PARTITIONS):
        first, *others = cluster.logs(topic, partition)
        assert len(others) == 2
        for log in others:
            assert stored(log) == stored(first)
            assert state_of(log) == state_of(first)
            assert log.epochs.entries == first.epochs.entries


async def test_replicas_are_equal_also_after_one_was_away(tmp_path: Path, zookeeper: str) -> None:
    async with brokers(tmp_path, f"{zookeeper}/replication") as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 900)
        check_equal(cluster, "t")  # acks=all: each replica has them by now
        await cluster.stop(3)
        await until(lambda: cluster.isrs("t") == [(1, 2)] * PARTITIONS)
        await asyncio.to_thread(cluster.produce, "t", 900)
        assert [len(cluster.logs("t", partition)) for partition in range(PARTITIONS)] == [2] * PARTITIONS
        await cluster.start(3)
        await until(lambda: cluster.isrs("t") == [IDS] * PARTITIONS)
        await asyncio.to_thread(cluster.produce, "t", 300)
        check_equal(cluster, "t")
        ends = [cluster.logs("t", partition)[0].log_end_offset for partition in range(PARTITIONS)]
        assert ends == [700] * PARTITIONS


async def test_records_are_deleted_on_all_replicas_before_it_is_answered(tmp_path: Path, zookeeper: str) -> None:
    """Also where a follower's fetch would wait for long."""
    settings = {"replica.fetch.wait.max.ms": "20000"}
    async with brokers(tmp_path, f"{zookeeper}/deletion", settings) as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 30)
        for before in (4, 7, HIGH_WATERMARK):
            asked = {TopicPartition("t", partition): before for partition in range(PARTITIONS)}
            async with asyncio.timeout(15):
                found = await asyncio.to_thread(cluster.delete_records, asked)
            start = 10 if before == HIGH_WATERMARK else before
            assert found == dict.fromkeys(asked, start)
            starts = [[log.log_start_offset for log in cluster.logs("t", partition)] for partition in range(PARTITIONS)]
            assert starts == [[start] * 3] * PARTITIONS


async def test_a_topic_whose_brokers_died_before_they_made_its_logs_gets_a_leader(
    tmp_path: Path, registry: Registry, chroot: str
) -> None:
    cluster = Brokers(tmp_path, chroot)
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    for broker_id in (1, 2):
        await cluster.stop(broker_id)
    registry.create_topic("t", dict.fromkeys(range(PARTITIONS), (1, 2)))
    for broker_id in (1, 2):
        await cluster.start(broker_id)
    await asyncio.to_thread(cluster.produce, "t", 30)
    await until(lambda: cluster.isrs("t") == [(1, 2)] * PARTITIONS)
    for broker_id in (1, 2):
        await cluster.stop(broker_id)


async def test_a_leader_whose_log_takes_no_more_records_gives_up_leadership(tmp_path: Path, zookeeper: str) -> None:
    settings = {"replica.lag.time.max.ms": "1000"}
    async with brokers(tmp_path, f"{zookeeper}/broken-disk", settings) as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 30)
        for log in cluster.running[1]._logs.logs().values():
            log.failure = f"{log.directory}: fsync failed"
        await asyncio.to_thread(cluster.produce, "t", 30)
        await until(lambda: cluster.isrs("t") == [(2, 3)] * PARTITIONS)
        for partition in range(PARTITIONS):
            assert sorted(log.log_end_offset for log in cluster.logs("t", partition)) == [10, 20, 20]
        await cluster.stop(1)
        await cluster.start(1)
        await until(lambda: cluster.isrs("t") == [IDS] * PARTITIONS)
        check_equal(cluster, "t")


async def test_a_leader_whose_disk_has_no_room_for_the_log_lets_another_lead(
    tmp_path: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It follows when there is room again."""
    monkeypatch.setattr("broker.replica.replica_manager.UNSERVED_RETRY_S", 0.05)
    create, full = LogManager.create, [True]

    def create_if_room(self: LogManager, tp: TopicPartition, config: LogConfig) -> Log:
        if full[0] and self is logs and tp.topic == "t":
            raise BrokerError(ErrorCode.kafka_storage_error, "No space left on device")
        return create(self, tp, config)

    settings = {"replica.lag.time.max.ms": "500"}
    async with brokers(tmp_path, f"{zookeeper}/no-room", settings) as cluster:
        logs = cluster.running[1]._logs
        monkeypatch.setattr(LogManager, "create", create_if_room)
        await asyncio.to_thread(cluster.create, "t")
        await until(lambda: cluster.isrs("t") == [(2, 3)] * PARTITIONS)
        await asyncio.to_thread(cluster.produce, "t", 90)
        full[0] = False
        await until(lambda: cluster.isrs("t") == [IDS] * PARTITIONS)
        check_equal(cluster, "t")
