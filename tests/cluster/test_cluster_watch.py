"""What others change in a real ZooKeeper reaches the metadata, whatever is being read meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.cluster_watch import ClusterWatch
from broker.cluster.topics import Topics
from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.log.manager import LogManager
from broker.zookeeper.change_notifications import ChangeNotifications
from broker.zookeeper.client import ZooKeeper, ZooKeeperCalls
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import BrokerInfo
from tests.zookeeper.conftest import Connect

TIMEOUT_S = 10

Run = Callable[[Callable[[Topics], Awaitable[None]]], None]


async def soon(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        await asyncio.sleep(0.01)


@pytest.fixture
def run(zk: ZooKeeper, registry: Registry, tmp_path: Path) -> Run:
    """`run(steps)` awaits `steps(topics)` of broker 1, whose watch is running."""

    async def main(steps: Callable[[Topics], Awaitable[None]]) -> None:
        calls, config = ZooKeeperCalls(), BrokerConfig(broker_id=1)
        logs = LogManager([tmp_path / "logs"], SystemClock())
        topics = Topics(config, registry, logs, registry.load_metadata(), calls)
        configs = BrokerConfigs(DynamicConfig(config), registry, calls)
        watch = ClusterWatch(registry, ChangeNotifications(zk), topics, configs)
        watch.start()
        running = asyncio.ensure_future(watch.run())
        try:
            await steps(topics)
        finally:
            watch.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await topics.close()
            calls.close()
            logs.close()

    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))
    return lambda steps: asyncio.run(main(steps))


class Held:
    """Readings of the controller's node that give their answer, as old as it is by then, once they are let go."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()
        read = registry.controller_id

        def held() -> int:
            found = read()
            self.begun.set()
            self.let_go.wait(TIMEOUT_S)
            return found

        monkeypatch.setattr(registry, "controller_id", held)


def test_a_new_controller_is_known_though_its_predecessors_end_is_still_being_read(
    run: Run, registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the session of this broker's previous life expires: the same broker is elected a moment later."""
    previous = Registry(connect())
    previous.elect_controller(1)
    told: list[int] = []

    async def steps(topics: Topics) -> None:
        assert topics.metadata.controller_id == 1
        held = Held(registry, monkeypatch)
        registry.watch_controller(told.append)  # after the broker's own watch, on the same thread
        await soon(lambda: told == [1])
        await asyncio.to_thread(previous.resign_controller)
        await soon(lambda: topics.metadata.controller_id == -1 or held.begun.is_set())
        await asyncio.to_thread(registry.elect_controller, 1)
        await soon(lambda: told[-1] == 1 and len(told) > 1)
        held.let_go.set()
        await topics.refresh(["none"])  # after the reading, if there is one
        assert topics.metadata.controller_id == 1

    run(steps)


def test_a_reading_under_way_does_not_undo_what_was_told_of_the_controller(
    run: Run, registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Registry(connect())

    async def steps(topics: Topics) -> None:
        assert topics.metadata.controller_id == -1
        held = Held(registry, monkeypatch)
        reading = asyncio.ensure_future(topics.refresh())
        await asyncio.to_thread(held.begun.wait, TIMEOUT_S)
        await asyncio.to_thread(other.elect_controller, 2)
        await soon(lambda: topics.metadata.controller_id == 2)
        held.let_go.set()
        await reading
        assert topics.metadata.controller_id == 2

    run(steps)
