"""Three brokers that replicate, in the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.client.producer import Producer
from broker.config.broker_config import BrokerConfig
from broker.log.log import Log
from broker.protocol.topic_partition import TopicPartition
from broker.server import BrokerServer
from tests.support.waiting import eventually

PARTITIONS = 3
IDS = (1, 2, 3)


class Brokers:
    """Brokers 1 to 3. `{id}` in a setting is the broker's id.

    Clients use the listener CLIENTS or, if there is none, the first one.
    """

    def __init__(self, directory: Path, zookeeper: str, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": zookeeper,
            "min.insync.replicas": "2",
            "log.segment.bytes": "100000",
            **(settings or {}),
        }
        self._listeners: dict[int, str] = {}
        self.running: dict[int, BrokerServer] = {}
        self.addresses: dict[int, dict[str, str]] = {}
        """`host:port` by listener."""

    async def start(self, broker_id: int, **changed: str) -> None:
        """`changed`: other settings, with `_` for `.`."""
        own = {key.replace("_", "."): value for key, value in changed.items()}
        settings = {
            **self._settings,
            "broker.id": str(broker_id),
            "log.dirs": str(self._directory / str(broker_id)),
            "listeners": self._listeners.get(broker_id, self._settings["listeners"]),
            **own,
        }
        settings = {key: value.replace("{id}", str(broker_id)) for key, value in settings.items()}
        server = self.running[broker_id] = BrokerServer(BrokerConfig.load(None, settings))
        bound = await server.start()
        self._listeners[broker_id] = ",".join(map(str, bound))
        self.addresses[broker_id] = {one.name: one.address for one in bound}

    async def stop(self, broker_id: int) -> None:
        await self.running.pop(broker_id).stop()

    @property
    def ports(self) -> dict[int, int]:
        """Of the first listener of each."""
        first = {broker_id: next(iter(addresses.values())) for broker_id, addresses in self.addresses.items()}
        return {broker_id: int(address.rpartition(":")[2]) for broker_id, address in first.items()}

    @property
    def bootstrap(self) -> str:
        found = [self.addresses[broker_id] for broker_id in self.running]
        return ",".join(addresses.get("CLIENTS") or next(iter(addresses.values())) for addresses in found)

    def create(self, topic: str) -> None:
        """Returns when all running brokers have heard of it: only one has when the answer comes."""
        with Cluster(ClientSettings.of(self.bootstrap)) as cluster:
            Admin(cluster).create_topic(topic, PARTITIONS, 3)
        eventually(lambda: all(topic in one._topics.metadata.topics for one in self.running.values()))

    def produce(self, topic: str, count: int) -> None:
        """Wait until all are acknowledged, by all replicas in the ISR."""
        with Producer(self.bootstrap, {"acks": "all", "batch.size": 5000}) as producer:
            sent = [producer.send(topic, b"%d:" % number + b"x" * 200, partition=number % 3) for number in range(count)]
            for future in sent:
                future.result(60)

    def delete_records(self, before: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        with Cluster(ClientSettings.of(self.bootstrap)) as cluster:
            return Admin(cluster).delete_records(before)

    def logs(self, topic: str, partition: int) -> list[Log]:
        found = [server._logs.get(TopicPartition(topic, partition)) for server in self.running.values()]
        return [log for log in found if log is not None]

    def isrs(self, topic: str) -> list[tuple[int, ...]]:
        metadata = next(iter(self.running.values()))._topics.metadata
        return [tuple(sorted(info.isr)) for info in metadata.topics[topic].partitions.values()]


@contextlib.asynccontextmanager
async def brokers(directory: Path, zookeeper: str, settings: Mapping[str, str] | None = None) -> AsyncIterator[Brokers]:
    made = Brokers(directory, zookeeper, settings)
    try:
        for broker_id in IDS:
            await made.start(broker_id)
        await until(
            lambda: all(set(one._topics.metadata.brokers) == set(made.running) for one in made.running.values())
        )
        yield made
    finally:
        for broker_id in list(made.running):
            await made.stop(broker_id)


async def until(holds: Callable[[], bool]) -> None:
    """Return once `holds()` is true."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)
