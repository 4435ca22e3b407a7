"""Topics over a real ZooKeeper: what a change costs, and that changes of others are seen whatever comes in between."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.clock import SystemClock
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import NewTopic, TopicChanges
from broker.config.broker_config import BrokerConfig
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import BrokerInfo
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.registry import Registry

Steps = Callable[[MetadataCache, TopicChanges], Awaitable[None]]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([tmp_path / "logs"], SystemClock())
    manager.load(lambda topic: LogConfig())
    yield manager
    manager.close()


@pytest.fixture
def run(store: ClusterStore, registry: Registry, logs: LogManager) -> Callable[[Steps], None]:
    """`run(steps)` awaits `steps(topics, changes)` of broker 1."""
    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))

    async def main(steps: Steps) -> None:
        config = BrokerConfig(broker_id=1)
        topics = MetadataCache(store, ReplicaManager(config, logs), registry.load_metadata())
        try:
            await steps(topics, TopicChanges(config, store, topics))
        finally:
            await topics.close()

    return lambda steps: asyncio.run(main(steps))


def refusing() -> Path:
    raise BrokerError(ErrorCode.kafka_storage_error, "cannot delete")


class Counted:
    """Names of the registry's reads, in order."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reads: list[str] = []
        for name in ("topic_names", "load_topics", "load_metadata", "brokers"):
            monkeypatch.setattr(registry, name, self._counting(name, getattr(registry, name)))
        monkeypatch.setattr(registry.controller, "id", self._counting("controller_id", registry.controller.id))

    def _counting(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **named: object) -> object:
            self.reads.append(name)
            return call(*arguments, **named)

        return counted


def test_what_we_create_and_delete_is_known_without_reading_anything(
    run: Callable[..., None], registry: Registry, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        counted = Counted(registry, monkeypatch)
        for number in range(5):
            await changes.create(NewTopic(f"t-{number}", 2))
            assert topics.topics_listed(topics.metadata.topics.keys()) is False
        await changes.delete("t-3")
        assert counted.reads == []
        assert set(topics.metadata.topics) == {"t-0", "t-1", "t-2", "t-4"}
        assert {tp.topic for tp in logs.logs()} == {"t-0", "t-1", "t-2", "t-4"}
        monkeypatch.undo()
        assert registry.load_metadata().topics == topics.metadata.topics

    run(steps)


def test_one_topic_of_others_costs_one_topic(
    run: Callable[..., None], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        await changes.create(NewTopic("ours"))
        registry.create_topic("theirs", {0: (1,)}, {"retention.ms": "5"})
        read: list[list[str]] = []
        load = registry.load_topics

        def noted(names: list[str], *others: Any) -> object:
            read.append(names)
            return load(names, *others)

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

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
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
        await changes.create(NewTopic("t"))
        await asyncio.gather(*catching_up)
        assert catching_up
        assert counted.reads == []

    run(steps)


def test_a_topic_deleted_by_others_before_we_heard_of_our_own_making_is_gone(
    run: Callable[..., None], registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        create = registry.create_topic

        def create_and_lose(*arguments: object, **named: object) -> object:
            made = create(*arguments, **named)  # type: ignore[arg-type]
            registry.deletions.delete("t")
            topics.topics_listed(frozenset())
            return made

        monkeypatch.setattr(registry, "create_topic", create_and_lose)
        await changes.create(NewTopic("t"))
        assert list(topics.metadata.topics) == []

    run(steps)


def test_a_topic_made_again_by_others_while_we_delete_it_is_the_new_one(
    run: Callable[..., None], registry: Registry, logs: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        old = (await changes.create(NewTopic("t"))).topic_id
        delete = registry.deletions.delete

        def delete_and_make_again(name: str) -> None:
            delete(name)
            registry.create_topic(name, {0: (1,)})
            topics.topics_listed({"t"})

        monkeypatch.setattr(registry.deletions, "delete", delete_and_make_again)
        await changes.delete("t")
        assert topics.metadata.topics["t"].topic_id != old
        log = logs.get(TopicPartition("t", 0))
        assert log is not None
        assert log.topic_id == topics.metadata.topics["t"].topic_id

    run(steps)


def test_one_that_another_broker_made_first_is_known_from_then_on(run: Callable[..., None], registry: Registry) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        registry.create_topic("t", {0: (1,)})
        with pytest.raises(BrokerError) as refused:
            await changes.create(NewTopic("t"))
        assert refused.value.code is ErrorCode.topic_already_exists
        assert "t" in topics.metadata.topics

    run(steps)


def test_brokers_that_have_registered_just_now_get_replicas(run: Callable[..., None], registry: Registry) -> None:
    """As when several start at the same time: this one has not heard of the other yet."""

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        registry.register_broker(BrokerInfo.plaintext(2, "h", 9092))
        assert topics.metadata.brokers.keys() == {1}
        await changes.create(NewTopic("t", 1, 2))
        assert sorted(topics.metadata.topics["t"].partitions[0].replicas) == [1, 2]
        with pytest.raises(BrokerError, match="larger than the number of available brokers, 2"):
            await changes.create(NewTopic("u", 1, 3))

    run(steps)


def test_an_assignment_may_name_brokers_that_have_registered_just_now(
    run: Callable[..., None], registry: Registry
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        registry.register_broker(BrokerInfo.plaintext(2, "h", 9092))
        await changes.create(NewTopic("t", assignment={0: (2,)}))
        registry.register_broker(BrokerInfo.plaintext(3, "h", 9092))
        await changes.add_partitions("t", 2, [(3,)], validate_only=False)
        assert [one.replicas for one in topics.metadata.topics["t"].partitions.values()] == [(2,), (3,)]
        with pytest.raises(BrokerError, match=r"names brokers that are not registered: \[4\]"):
            await changes.create(NewTopic("u", assignment={0: (4,)}))

    run(steps)


def test_internal_topics_get_replicas_on_brokers_that_have_registered_just_now(
    run: Callable[..., None], registry: Registry
) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        registry.register_broker(BrokerInfo.plaintext(2, "h", 9092))
        await changes.create_default("__consumer_offsets")
        partitions = topics.metadata.topics["__consumer_offsets"].partitions.values()
        assert {len(one.replicas) for one in partitions} == {2}

    run(steps)


def test_who_leads_again_in_a_later_epoch_was_deposed_meanwhile(run: Callable[..., None], registry: Registry) -> None:
    """The broker has missed the epoch in between. Whoever follows the leadership begins anew."""

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        await changes.create(NewTopic("t", 2))
        heard: list[tuple[str, int, int]] = []
        topics.add_leadership_listener(
            "t",
            lambda partition: heard.append(("elected", partition.tp.partition, partition.leader_epoch)),
            lambda partition: heard.append(("resigned", partition.tp.partition, partition.leader_epoch)),
        )
        tp = TopicPartition("t", 1)
        state = registry.partition_states([tp])[tp]
        registry.write_states({tp: dataclasses.replace(state, leader_epoch=2)})
        heard.clear()
        await topics.refresh(["t"])
        assert heard == [("resigned", 1, 2), ("elected", 1, 2)]
        await topics.refresh(["t"])
        assert len(heard) == 2

    run(steps)


def test_other_settings_of_the_broker_reach_the_logs_of_topics_that_set_none(run: Callable[..., None]) -> None:
    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        await changes.create(NewTopic("plain"))
        await changes.create(NewTopic("own", config={"retention.ms": "7"}))
        topics.replicas.update_config(BrokerConfig(broker_id=1, log_retention_ms=5))
        kept = {name: topics.partition(TopicPartition(name, 0)).log.config.retention_ms for name in ("plain", "own")}
        assert kept == {"plain": 5, "own": 7}

    run(steps)


def test_logs_of_deleted_topics_go_and_those_that_zookeeper_has_only_forgotten_stay(
    run: Callable[..., None],
    registry: Registry,
    logs: LogManager,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ZooKeeper's data may have been restored from a copy that is older than a topic."""
    deleted, forgotten, kept = (registry.create_topic(name, {0: (1,)}) for name in ("deleted", "forgotten", "kept"))
    for record in (deleted, forgotten, kept):
        logs.create(TopicPartition(record.name, 0), LogConfig(), record.topic_id)
        registry.deletions.delete(record.name)
    tp = TopicPartition("kept", 0)
    monkeypatch.setattr(logs.get(tp), "delete", refusing)
    registry.deletions.forget(1, [forgotten.topic_id])
    again = registry.create_topic("deleted", {0: (2,)})

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        await topics.deleted_topics.delete_left_logs()
        assert set(logs.logs()) == {TopicPartition("forgotten", 0), tp}
        assert "forgotten-0 is in log.dirs, but the cluster has no such topic" in caplog.text
        assert topics.metadata.topics["deleted"].topic_id == again.topic_id
        while registry.deletions.noted(1) != [kept.topic_id]:  # the next start tries again to delete its log
            await asyncio.sleep(0.01)

    run(steps)


def test_a_topic_that_zookeeper_forgets_while_the_broker_runs_keeps_its_log(
    run: Callable[..., None], registry: Registry, logs: LogManager, caplog: pytest.LogCaptureFixture
) -> None:
    """ZooKeeper came back with an older copy of its data: no note says that the topic was deleted."""
    tp = TopicPartition("forgotten", 0)

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        deleted: list[TopicPartition] = []

        async def note(gone: Sequence[TopicPartition]) -> None:
            deleted.extend(gone)

        topics.add_deletion_listener(note)
        record = await changes.create(NewTopic("forgotten", 1))
        log = logs.logs()[tp]
        registry.deletions.delete("forgotten")
        registry.deletions.forget(1, [record.topic_id])
        await topics.refresh()
        assert "forgotten" not in topics.metadata.topics
        assert logs.logs() == {tp: log}
        assert not deleted
        assert "ZooKeeper has no forgotten-0 any more, and no note of its deletion" in caplog.text

    run(steps)


def test_a_topic_on_other_brokers_is_deleted_without_a_note(
    run: Callable[..., None], registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A coordinator that has no replica of it deletes the groups' offsets for it all the same."""
    registry.create_topic("theirs", {0: (2,)})

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        deleted: list[TopicPartition] = []

        async def note(gone: Sequence[TopicPartition]) -> None:
            deleted.extend(gone)

        topics.add_deletion_listener(note)
        registry.deletions.delete("theirs")
        await topics.refresh()
        assert deleted == [TopicPartition("theirs", 0)]
        assert "no note" not in caplog.text

    run(steps)


def test_a_refresh_that_nobody_waits_for_says_why_it_fails(
    run: Callable[..., None],
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A leader complains about old metadata, and ZooKeeper is away or what it has cannot be understood."""

    async def steps(topics: MetadataCache, changes: TopicChanges) -> None:
        for error in (ConnectionFailed("ZooKeeper is away"), ValueError("what is this?")):

            def fail(*_: object, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(registry, "load_topics", fail)
            topics._refresh_stale({"t"})
            await topics._tasks.wait()
            await asyncio.sleep(0)

    run(steps)
    away, bug = (record for record in caplog.records if record.getMessage().startswith("reading topics again failed"))
    assert "ZooKeeper is away" in away.getMessage()
    assert bug.exc_info is not None
