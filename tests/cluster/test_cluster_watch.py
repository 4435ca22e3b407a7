"""What others change in a real ZooKeeper reaches the metadata, whatever is being read meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.background_tasks import BackgroundTasks
from broker.clock import SystemClock
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.cluster_watch import ClusterWatch
from broker.cluster.metadata_cache import MetadataCache
from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.log.manager import LogManager
from broker.replica.cluster_metadata import BrokerInfo
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.registry import Registry
from tests.zookeeper.conftest import Connect

TIMEOUT_S = 60

Run = Callable[[Callable[[MetadataCache], Awaitable[None]]], None]


async def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        await asyncio.sleep(0.01)


@pytest.fixture
def run(store: ClusterStore, registry: Registry, tmp_path: Path) -> Run:
    """`run(steps)` awaits `steps(topics)` of broker 1, whose watch is running."""

    async def main(steps: Callable[[MetadataCache], Awaitable[None]]) -> None:
        config = BrokerConfig(broker_id=1)
        logs = LogManager([tmp_path / "logs"], SystemClock())
        topics = MetadataCache(store, ReplicaManager(config, logs), registry.load_metadata())
        configs = BrokerConfigs(DynamicConfig(config), store)
        watch = ClusterWatch(store, topics, configs)
        watches = watch.start()
        tasks = BackgroundTasks()
        tasks.begin("watch", watch.run())
        try:
            await steps(topics)
        finally:
            for one in watches:
                one.cancel()
            await tasks.close()
            await topics.close()
            logs.close()

    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))
    return lambda steps: asyncio.run(main(steps))


class Held:
    """Readings, by default of the controller's node, that give their answer, as old as it is by then, once they are let
    go."""

    def __init__(
        self, registry: Registry, monkeypatch: pytest.MonkeyPatch, where: object | None = None, name: str = "id"
    ) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        where = where or registry.controller
        read = getattr(where, name)

        def held(*arguments: object) -> object:
            found = read(*arguments)
            self.begun.set()
            self.let_go.wait(TIMEOUT_S)
            return found

        monkeypatch.setattr(where, name, held)


def test_a_new_controller_is_known_though_its_predecessors_end_is_still_being_read(
    run: Run, registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the session of this broker's previous life expires: the same broker is elected a moment later."""
    previous = Registry(connect())
    previous.controller.elect(1)
    told: list[int] = []

    async def steps(topics: MetadataCache) -> None:
        assert topics.metadata.controller_id == 1
        held = Held(registry, monkeypatch)
        registry.controller.watch(told.append)  # after the broker's own watch, on the same thread
        await soon(lambda: told == [1])
        await asyncio.to_thread(previous.controller.resign)
        await soon(lambda: topics.metadata.controller_id == -1 or held.begun.is_set())
        await asyncio.to_thread(registry.controller.elect, 1)
        await soon(lambda: told[-1] == 1 and len(told) > 1)
        held.let_go.set()
        await topics.refresh(["none"])  # after the reading, if there is one
        assert topics.metadata.controller_id == 1

    run(steps)


def test_a_reading_under_way_does_not_undo_what_was_told_of_the_controller(
    run: Run, registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Registry(connect())

    async def steps(topics: MetadataCache) -> None:
        assert topics.metadata.controller_id == -1
        held = Held(registry, monkeypatch)
        reading = asyncio.ensure_future(topics.refresh())
        await asyncio.to_thread(held.begun.wait, TIMEOUT_S)
        await asyncio.to_thread(other.controller.elect, 2)
        await soon(lambda: topics.metadata.controller_id == 2)
        held.let_go.set()
        await reading
        assert topics.metadata.controller_id == 2

    run(steps)


def test_a_topic_is_known_that_was_created_again_while_its_deletion_was_read(
    run: Run, registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of topics is then the same as before, and differs from what is being read."""
    other = Registry(connect())
    other.create_topic("t", {0: [1]})

    async def steps(topics: MetadataCache) -> None:
        held = Held(registry, monkeypatch, registry, "load_metadata")
        await asyncio.to_thread(other.deletions.delete, "t")
        await asyncio.to_thread(held.begun.wait, TIMEOUT_S)
        listings = topics.listings
        created = await asyncio.to_thread(other.create_topic, "t", {0: [1]})
        await soon(lambda: topics.listings > listings)
        held.let_go.set()
        await soon(lambda: "t" in topics.metadata.topics and topics.metadata.topics["t"].topic_id == created.topic_id)

    run(steps)
