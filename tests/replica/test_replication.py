"""Three brokers that replicate: what is acknowledged is on all replicas, byte for byte, also after one was away."""

from __future__ import annotations

import asyncio
import collections
from pathlib import Path
from typing import Any

import pytest

from broker.client.admin_types import HIGH_WATERMARK
from broker.errors import BrokerError, ErrorCode
from broker.log.follower_append import FollowerAppend
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_response, encode_request
from broker.protocol.topic_partition import TopicPartition
from broker.replica.follower import Follower
from broker.zookeeper.registry import Registry
from tests.support.batches import batch
from tests.support.follower_log import state_of, stored
from tests.support.listening import read_frame
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


async def test_records_of_a_stream_are_appended_before_the_followers_have_those_before(
    tmp_path: Path, zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a follower fetches many of them at once. None is acknowledged before all replicas have it."""
    append, may_go, fetched = Follower.append, asyncio.Event(), collections.Counter[int]()

    async def held(self: Follower, records: memoryview, *others: Any) -> FollowerAppend | None:
        if self.tp == TopicPartition("t", 0):
            fetched[id(self.log)] += bool(len(records))
            await may_go.wait()
        return await append(self, records, *others)

    async with brokers(tmp_path, f"{zookeeper}/stream") as cluster:
        await asyncio.to_thread(cluster.create, "t")
        await asyncio.to_thread(cluster.produce, "t", 3)
        monkeypatch.setattr(Follower, "appends_at_once", False)
        monkeypatch.setattr(Follower, "append", held)
        info = cluster.running[1]._topics.metadata.partition(TopicPartition("t", 0))
        assert info is not None
        log = cluster.running[info.leader]._logs.get(TopicPartition("t", 0))
        assert log is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.ports[info.leader])
        for number in range(5):
            parts = [{"index": 0, "records": batch(b"x")}]
            topics = [{"name": "t", "partition_data": parts}]
            fields = {"transactional_id": None, "acks": -1, "timeout": 60_000, "topic_data": topics}
            writer.write(encode_request(ApiKey.PRODUCE, 9, number, "stream", fields))
        await until(lambda: log.log_end_offset == 6)
        assert log.committed == 1
        may_go.set()
        for number in range(5):
            correlation_id, body = decode_response(ApiKey.PRODUCE, 9, await read_frame(reader))
            (answer,) = body.responses[0].partition_responses
            assert (correlation_id, answer.error_code, answer.base_offset) == (number, ErrorCode.none, 1 + number)
        writer.close()
        assert len(fetched) == 2
        assert max(fetched.values()) <= 2, "the first batch, and all that came meanwhile"
        check_equal(cluster, "t")


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
