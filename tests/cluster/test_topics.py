"""Topics over a real ZooKeeper: what a change costs, and that changes of others are seen whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from broker.clock import SystemClock
from broker.cluster.topics import NewTopic, Topics
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.client import ZooKeeperCalls
from broker.zookeeper.registry import Registry
from broker.zookeeper.znodes import BrokerInfo


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([tmp_path / "logs"], SystemClock())
    manager.load(lambda topic: LogConfig())
    yield manager
    manager.close()


@pytest.fixture
def run(registry: Registry, logs: LogManager) -> Callable[[Callable[[Topics], Awaitable[None]]], None]:
    """`run(steps)` awaits `steps(topics)` of broker 1."""
    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))

    async def main(steps: Callable[[Topics], Awaitable[None]]) -> None:
        calls = ZooKeeperCalls()
        topics = Topics(BrokerConfig(broker_id=1), registry, logs, registry.load_metadata(), calls)
        try:
            await steps(topics)
        finally:
            await topics.close()
            calls.close()

    return lambda steps: asyncio.run(main(steps))


class Counted:
    """Names of the registry's reads, in order."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[str] = []
        for name in ("topic_names", "load_topics", "load_metadata", "brokers", "controller_id"):
            monkeypatch.setattr(registry, name, self._counting(name, getattr(registry, name)))

    def _counting(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self.reads.append(name)
            return call(*arguments, **named)

        return counted


def test_what_we_create_and_delete_is_known_without_reading_anything(
    run: Callable[..., None], registry: Registry, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: Topics) -> None:
        counted = Counted(registry, monkeypatch)
        for number in range(5):
            await topics.create(NewTopic(f"t-{number}", 2))
            assert topics.topics_listed(topics.metadata.topics.keys()) is False
        await topics.delete("t-3")
        assert counted.reads == []
        assert set(topics.metadata.topics) == {"t-0", "t-1", "t-2", "t-4"}
        assert {tp.topic for tp in logs.logs()} == {"t-0", "t-1", "t-2", "t-4"}
        monkeypatch.undo()
        assert registry.load_metadata().topics == topics.metadata.topics

    run(steps)


def test_one_topic_of_others_costs_one_topic(
    run: Callable[..., None], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: Topics) -> None:
        await topics.create(NewTopic("ours"))
        registry.create_topic("theirs", {0: (1,)}, {"retention.ms": "5"})
        read: list[list[str]] = []
        load = registry.load_topics

        def noted(names: list[str]) -> object:
            read.append(names)
            return load(names)

        monkeypatch.setattr(registry, "load_topics", noted)
        assert topics.topics_listed({"ours", "theirs"})
        await topics.catch_up()
        assert read == [["theirs"]]
        assert topics.partition(TopicPartition("theirs", 0)).log.config.retention_ms == 5

    run(steps)


def test_a_listing_of_our_own_doing_needs_no_reading(
    run: Callable[..., None], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper tells of a topic while we are still making it."""

    async def steps(topics: Topics) -> None:
        counted = Counted(registry, monkeypatch)
        create = registry.create_topic
        loop = asyncio.get_running_loop()
        catching_up: list[asyncio.Task[None]] = []

        def told() -> None:
            assert topics.topics_listed({"t"})
            catching_up.append(asyncio.ensure_future(topics.catch_up()))

        def create_and_tell(*arguments: object, **named: object) -> object:
            made = create(*arguments, **named)  # type: ignore[arg-type]
            loop.call_soon_threadsafe(told)
            return made

        monkeypatch.setattr(registry, "create_topic", create_and_tell)
        await topics.create(NewTopic("t"))
        await asyncio.gather(*catching_up)
        assert catching_up
        assert counted.reads == []

    run(steps)


def test_a_topic_deleted_by_others_before_we_heard_of_our_own_making_is_gone(
    run: Callable[..., None], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: Topics) -> None:
        create = registry.create_topic

        def create_and_lose(*arguments: object, **named: object) -> object:
            made = create(*arguments, **named)  # type: ignore[arg-type]
            registry.delete_topic("t")
            topics.topics_listed(frozenset())
            return made

        monkeypatch.setattr(registry, "create_topic", create_and_lose)
        await topics.create(NewTopic("t"))
        assert list(topics.metadata.topics) == []

    run(steps)


def test_a_topic_made_again_by_others_while_we_delete_it_is_the_new_one(
    run: Callable[..., None], registry: Registry, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: Topics) -> None:
        old = (await topics.create(NewTopic("t"))).topic_id
        delete = registry.delete_topic

        def delete_and_make_again(name: str) -> None:
            delete(name)
            registry.create_topic(name, {0: (1,)})
            topics.topics_listed({"t"})

        monkeypatch.setattr(registry, "delete_topic", delete_and_make_again)
        await topics.delete("t")
        assert topics.metadata.topics["t"].topic_id != old
        log = logs.get(TopicPartition("t", 0))
        assert log is not None
        assert log.topic_id == topics.metadata.topics["t"].topic_id

    run(steps)


def test_one_that_another_broker_made_first_is_known_from_then_on(run: Callable[..., None], registry: Registry) -> None:
    async def steps(topics: Topics) -> None:
        registry.create_topic("t", {0: (1,)})
        with pytest.raises(BrokerError) as refused:
            await topics.create(NewTopic("t"))
        assert refused.value.code is ErrorCode.topic_already_exists
        assert "t" in topics.metadata.topics

    run(steps)


def test_other_settings_of_the_broker_reach_the_logs_of_topics_that_set_none(run: Callable[..., None]) -> None:
    async def steps(topics: Topics) -> None:
        await topics.create(NewTopic("plain"))
        await topics.create(NewTopic("own", config={"retention.ms": "7"}))
        topics.update_defaults(BrokerConfig(broker_id=1, log_retention_ms=5))
        kept = {name: topics.partition(TopicPartition(name, 0)).log.config.retention_ms for name in ("plain", "own")}
        assert kept == {"plain": 5, "own": 7}

    run(steps)
