"""Three brokers that replicate: what is acknowledged is on all replicas, byte for byte, also after one was away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.config.broker_config import BrokerConfig
from broker.log.log import Log
from broker.protocol.topic_partition import TopicPartition
from broker.server import BrokerServer
from tests.support.follower_log import state_of, stored

PARTITIONS = 3
IDS = (1, 2, 3)


class Brokers:
    """Brokers 1 to 3, in this event loop."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self.running: dict[int, BrokerServer] = {}
        self.ports = dict.fromkeys(IDS, 0)

    async def start(self, broker_id: int) -> None:
        settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[broker_id]}",
            "log.dirs": str(self._directory / str(broker_id)),
            "zookeeper.connect": self._zookeeper,
            "min.insync.replicas": "2",
            "log.segment.bytes": "100000",
        }
        server = self.running[broker_id] = BrokerServer(BrokerConfig.load(None, settings), max_replication_factor=3)
        (bound,) = await server.start()
        self.ports[broker_id] = bound.port

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{self.ports[broker_id]}" for broker_id in self.running)

    def create(self, topic: str) -> None:
        with Cluster(ClientSettings.of(self.bootstrap)) as cluster:
            Admin(cluster).create_topic(topic, PARTITIONS, 3)

    def produce(self, topic: str, count: int) -> None:
        """Wait until all are acknowledged, by all replicas in the ISR."""
        with Producer(self.bootstrap, {"acks": "all", "batch.size": 5000}) as producer:
            sent = [producer.send(topic, b"%d:" % number + b"x" * 200, partition=number % 3) for number in range(count)]
            for future in sent:
                future.result(20)

    def logs(self, topic: str, partition: int) -> list[Log]:
        found = [server._logs.get(TopicPartition(topic, partition)) for server in self.running.values()]
        return [log for log in found if log is not None]

    def isrs(self, topic: str) -> list[tuple[int, ...]]:
        metadata = next(iter(self.running.values()))._topics.metadata
        return [tuple(sorted(info.isr)) for info in metadata.topics[topic].partitions.values()]


@contextlib.asynccontextmanager
async def brokers(directory: Path, zookeeper: str) -> AsyncIterator[Brokers]:
    made = Brokers(directory, zookeeper)
    try:
        for broker_id in IDS:
            await made.start(broker_id)
        yield made
    finally:
        for broker_id in list(made.running):
            await made.stop(broker_id)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.005)


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
