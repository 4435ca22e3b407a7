"""The controller on a real ZooKeeper, with brokers that are only registered there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.api.context import ApiContext, Client, Request
from broker.api.replicas import PREFERRED, UNCLEAN, elect_leaders
from broker.background_tasks import BackgroundTasks
from broker.clock import SystemClock
from broker.cluster.broker_configs import BrokerConfigs
from broker.cluster.cluster_watch import ClusterWatch
from broker.cluster.controller import Controller
from broker.cluster.controller_state import state_reassigned
from broker.cluster.failure_detector import FailureDetector
from broker.cluster.features import Features
from broker.cluster.leadership_handover import leave_partitions, rejoin_partitions
from broker.cluster.metadata_cache import MetadataCache
from broker.cluster.topic_changes import NewTopic, TopicChanges
from broker.config.broker_config import BrokerConfig
from broker.config.dynamic_config import DynamicConfig
from broker.errors import BrokerError, ConnectionFailed, ErrorCode
from broker.log.log_config import LogConfig
from broker.log.manager import LogManager
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_LEADER, BrokerInfo
from broker.replica.replica_manager import ReplicaManager
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.cluster_store import ClusterStore
from broker.zookeeper.controller_election import ControllerElection
from broker.zookeeper.registry import Move, Registry
from broker.zookeeper.znodes import PartitionState
from tests.zookeeper.conftest import Connect

Steps = Callable[[MetadataCache, TopicChanges, Controller], Awaitable[None]]


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogManager]:
    manager = LogManager([tmp_path / "logs"], SystemClock())
    manager.load(lambda topic: LogConfig())
    yield manager
    manager.close()


@pytest.fixture
def run(store: ClusterStore, registry: Registry, logs: LogManager) -> Callable[..., None]:
    """`run(steps)` awaits `steps(topics, controller)` on broker 1, which is the controller."""
    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))

    async def main(steps: Steps, **settings: Any) -> None:
        config = DynamicConfig(BrokerConfig(broker_id=1, **settings))
        election = ControllerElection(registry.controller, 1)
        election.start()
        replicas = ReplicaManager(config.current, logs)
        topics = MetadataCache(store, replicas, registry.load_metadata())
        changes = TopicChanges(config.current, store, topics)
        watch = ClusterWatch(store, topics, BrokerConfigs(config, store))
        controller = Controller(election, store, topics, config, FailureDetector(1, lambda broker: None))
        watches = [*watch.start(), controller.start()]
        tasks = BackgroundTasks()
        tasks.begin("watch", watch.run())
        tasks.begin("controller", controller.run())
        try:
            async with asyncio.timeout(60):
                await steps(topics, changes, controller)
        finally:
            await tasks.close()
            for one in watches:
                one.cancel()
            await topics.close()

    return lambda steps, **settings: asyncio.run(main(steps, **settings))


def failing_once(call: Callable[..., None]) -> Callable[..., None]:
    """Raises ConnectionFailed the first time."""
    failures = [ConnectionFailed("no answer from ZooKeeper")]

    def attempt(*arguments: object) -> None:
        if failures:
            raise failures.pop()
        call(*arguments)

    return attempt


async def let_3_lead(topics: MetadataCache, registry: Registry, epoch: int) -> None:
    """Broker 3 leads the partition of topic t, and 2 is its preferred replica."""
    tp = TopicPartition("t", 0)
    now = registry.partition_states([tp])[tp]
    registry.write_states({tp: PartitionState(3, epoch, (2, 3), 0, now.version)})
    await topics.refresh(["t"])


async def soon(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def leaders(topics: MetadataCache, name: str) -> dict[int, tuple[int, tuple[int, ...]]]:
    found = topics.metadata.topics[name].partitions
    return {index: (info.leader, info.isr) for index, info in found.items()}


def register(connect: Connect, *broker_ids: int) -> dict[int, ZooKeeper]:
    sessions = {broker_id: connect() for broker_id in broker_ids}
    for broker_id, session in sessions.items():
        Registry(session).register_broker(BrokerInfo.plaintext(broker_id, f"h{broker_id}", 9092, rack=str(broker_id)))
    return sessions


def test_a_dead_brokers_partitions_are_led_by_in_sync_replicas_and_it_leaves_every_isr(
    run: Callable[..., None], connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    sessions = register(connect, 2, 3)
    told = {
        "t-0: leader 3, leader epoch 1, ISR [3]: broker 2 is not alive",
        "t-1: leader 3, leader epoch 0, ISR [3]: broker 2 is not alive or no replica",
    }

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3), 1: (3, 2)}))
        await changes.create(NewTopic("alone", assignment={0: (2,)}))
        assert leaders(topics, "t") == {0: (2, (2, 3)), 1: (3, (3, 2))}
        with caplog.at_level("INFO", "broker.cluster.controller"):
            await asyncio.to_thread(sessions[2].close)
            await soon(lambda: leaders(topics, "t") == {0: (3, (3,)), 1: (3, (3,))})
            await soon(lambda: leaders(topics, "alone") == {0: (NO_LEADER, (2,))})
            await soon(lambda: told <= set(caplog.messages))
        assert topics.metadata.topics["t"].partitions[0].leader_epoch == 1
        register(connect, 2)
        await soon(lambda: leaders(topics, "alone") == {0: (2, (2,))})

    run(steps)


def test_leaders_are_elected_though_no_feature_can_be_finalized(run: Callable[..., None], connect: Connect) -> None:
    sessions = register(connect, 2, 3)

    async def refuse(controller_version: int) -> None:
        raise BrokerError(ErrorCode.request_timed_out, "no answer from ZooKeeper")

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        controller._features = cast(Features, SimpleNamespace(is_due=True, finalize=refuse))
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        await asyncio.to_thread(sessions[2].close)
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,))})

    run(steps)


def test_a_suspected_leader_is_replaced_by_a_live_in_sync_replica_and_only_by_one(
    run: Callable[..., None], connect: Connect
) -> None:
    register(connect, 2, 3)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        detector = controller._detector
        unclean = {"unclean.leader.election.enable": "true"}
        await changes.create(NewTopic("t", assignment={0: (2, 3), 1: (3, 2)}, config=unclean))
        await changes.create(NewTopic("alone", assignment={0: (2,)}, config=unclean))
        detector._suspect(2)
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,)), 1: (3, (3, 2))})
        detector._suspect(3)
        every = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("alone", 0)]
        assert await controller.elect(every, prefer=True, unclean=True) == set()
        detector._trust(2, "")
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,)), 1: (2, (2,))})
        assert leaders(topics, "alone") == {0: (2, (2,))}

    run(steps)


def test_a_suspected_controller_is_replaced_and_can_write_nothing_more(
    run: Callable[..., None], registry: Registry, connect: Connect
) -> None:
    session = register(connect, 2)[2]
    old = ControllerElection(Registry(session).controller, 2)
    old.start()
    former, tp = old.epoch, TopicPartition("t", 0)
    assert former is not None

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await soon(lambda: topics.metadata.controller_id == 2)
        controller._detector._suspect(2)
        await soon(lambda: topics.metadata.controller_id == 1)
        await soon(lambda: old.epoch is None)
        assert registry.controller.epoch().epoch == former.epoch + 1
        await changes.create(NewTopic("t", assignment={0: (2, 1)}))
        await soon(lambda: leaders(topics, "t") == {0: (1, (1,))})
        state = registry.partition_states([tp])[tp]
        with pytest.raises(BrokerError) as refusal:
            Registry(session).write_states({tp: state}, controller_version=former.version)
        assert refusal.value.code is ErrorCode.not_controller
        old.take_over(1)  # suspected the other way round
        await soon(lambda: topics.metadata.controller_id == 2)
        await controller._act()
        assert registry.controller.id() == 2  # elected after it was suspected, so it lives

    run(steps)


def test_an_unclean_election_waits_for_the_topics_setting(run: Callable[..., None], connect: Connect) -> None:
    sessions = register(connect, 2, 3)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        await asyncio.to_thread(sessions[3].close)
        await soon(lambda: leaders(topics, "t") == {0: (2, (2,))})
        await asyncio.to_thread(sessions[2].close)
        await soon(lambda: leaders(topics, "t") == {0: (NO_LEADER, (2,))})
        register(connect, 3)
        await soon(lambda: 3 in topics.metadata.brokers)
        assert await controller.elect([TopicPartition("t", 0)]) == set()
        await changes.alter_config("t", {"unclean.leader.election.enable": "true"}, validate_only=False)
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,))})

    run(steps)


def test_a_new_controller_mends_what_happened_while_there_was_none(
    run: Callable[..., None], registry: Registry, connect: Connect
) -> None:
    register(connect, 2)
    registry.create_topic("t", {0: [3, 2], 1: [2, 1]})

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await soon(lambda: leaders(topics, "t") == {0: (2, (2,)), 1: (2, (2, 1))})
        states = await asyncio.to_thread(registry.partition_states, [TopicPartition("t", 0)])
        assert states[TopicPartition("t", 0)].controller_epoch == registry.controller.epoch().epoch

    run(steps)


def test_preferred_leaders_are_elected_and_a_fenced_controller_elects_nothing(
    run: Callable[..., None], registry: Registry, connect: Connect, zk: ZooKeeper
) -> None:
    register(connect, 2, 3)
    tp = TopicPartition("t", 0)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        await let_3_lead(topics, registry, 1)
        assert await controller.elect([tp]) == set()
        assert await controller.elect([tp], prefer=True) == {tp}
        await soon(lambda: leaders(topics, "t") == {0: (2, (2, 3))})
        await let_3_lead(topics, registry, 9)
        zk.set("/controller_epoch", b"99")
        with pytest.raises(BrokerError) as refusal:
            await controller.elect([tp], prefer=True)
        assert refusal.value.code is ErrorCode.not_controller
        assert registry.partition_states([tp])[tp].leader == 3

    run(steps)


def test_brokers_are_notified_later_of_a_state_whose_notification_failed(
    run: Callable[..., None], registry: Registry, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(connect, 2, 3)
    tp = TopicPartition("t", 0)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        state = registry.partition_states([tp])[tp]
        registry.write_states({tp: PartitionState(3, 1, (2, 3), 0, state.version)})
        await topics.refresh(["t"])
        notifications = controller._store.changes
        monkeypatch.setattr(notifications, "notify_isr_change", failing_once(notifications.notify_isr_change))
        with pytest.raises(BrokerError):
            await controller.elect([tp], prefer=True)
        assert leaders(topics, "t") == {0: (3, (2, 3))}
        await soon(lambda: leaders(topics, "t") == {0: (2, (2, 3))})

    run(steps)


def test_leadership_goes_back_to_the_preferred_replicas_by_itself(
    run: Callable[..., None], registry: Registry, connect: Connect
) -> None:
    register(connect, 2, 3)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        await let_3_lead(topics, registry, 1)
        await soon(lambda: leaders(topics, "t") == {0: (2, (2, 3))})

    run(steps, leader_imbalance_check_interval_seconds=1)


def test_a_request_of_kafkas_old_tools_elects_preferred_leaders_and_is_deleted(
    run: Callable[..., None], registry: Registry, connect: Connect, zk: ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    register(connect, 2, 3)
    tp, path = TopicPartition("t", 0), "/admin/preferred_replica_election"

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2, 3)}))
        for version, request in enumerate((b'{"version":1,"partitions":[{"topic":"t","partition":0}]}', b"nonsense")):
            await let_3_lead(topics, registry, 1 + version)
            await asyncio.to_thread(zk.create, path, request)
            await soon(lambda: zk.exists(path) is None)
            assert registry.partition_states([tp])[tp].leader == (3 if version else 2)
        assert "a request for preferred leaders is ignored" in caplog.text
        epoch = controller.epoch
        assert epoch is not None
        zk.set("/controller_epoch", b"99")
        zk.create(path)
        with pytest.raises(BrokerError) as refusal:
            registry.wanted_preferred_leaders.write([], 0, controller_version=epoch.version)
        assert refusal.value.code is ErrorCode.not_controller
        assert zk.exists(path)

    run(steps)


def test_a_reassignment_is_completed_in_both_nodes_at_once(
    run: Callable[..., None], registry: Registry, connect: Connect
) -> None:
    register(connect, 2, 3)
    tp = TopicPartition("t", 0)

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        await changes.create(NewTopic("t", assignment={0: (2,)}))
        before = topics.metadata.topics["t"].partitions[0]
        begun = state_reassigned(before, [3])
        epoch = registry.controller.epoch()
        assert begun is not None
        state = PartitionState(2, 1, (2,), epoch.epoch, before.version)
        moves = {tp: Move(before, begun.after, state)}
        assert registry.write_assignments("t", moves, controller_version=epoch.version) == {tp}
        assert registry.write_assignments("t", moves, controller_version=epoch.version) == set()
        now = registry.partition_states([tp])[tp]
        registry.write_states({tp: PartitionState(2, 1, (2, 3), epoch.epoch, now.version)})  # its leader: 3 is in sync
        await topics.refresh(["t"])
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,))})
        record = registry.topics()["t"]
        assert (record.assignment, record.adding_replicas, record.removing_replicas) == ({0: (3,)}, {}, {})

    run(steps)


def test_a_broker_hands_over_when_it_stops_and_returns_without_what_it_may_have_lost(registry: Registry) -> None:
    registry.create_topic("t", {0: [1, 2], 1: [2, 1], 2: [1]})
    zero, one, two = partitions = [TopicPartition("t", partition) for partition in range(3)]

    def states() -> list[tuple[int, int, tuple[int, ...]]]:
        found = registry.partition_states(partitions)
        return [(found[tp].leader, found[tp].leader_epoch, found[tp].isr) for tp in partitions]

    topics = registry.topics().values()
    assert sorted(leave_partitions(registry, 1, topics, {1, 2})) == [zero, one]
    assert states() == [(2, 1, (2,)), (2, 0, (2,)), (1, 0, (1,))]
    assert rejoin_partitions(registry, 1, topics, lambda tp: False) == [two]
    assert states() == [(2, 1, (2,)), (2, 0, (2,)), (1, 1, (1,))]
    found = registry.partition_states([one])[one]
    registry.write_states({one: PartitionState(2, 0, (2, 1), 0, found.version)})
    assert sorted(rejoin_partitions(registry, 1, topics, lambda tp: tp != zero)) == [one, two]
    assert states() == [(2, 1, (2,)), (2, 0, (2,)), (1, 2, (1,))]


def test_elect_leaders_is_answered_by_the_controllers_election(
    run: Callable[..., None], registry: Registry, connect: Connect
) -> None:
    sessions = register(connect, 2, 3)
    asked = [SimpleNamespace(topic="t", partitions=[0, 1])]

    async def steps(topics: MetadataCache, changes: TopicChanges, controller: Controller) -> None:
        async def ask(kind: int) -> list[ErrorCode]:
            context = cast(
                ApiContext, SimpleNamespace(topics=topics, controller=controller, allows=lambda client, need: True)
            )
            body = SimpleNamespace(election_type=kind, topic_partitions=asked)
            request, client = cast(Request, SimpleNamespace(body=body)), cast(Client, None)
            answer = await elect_leaders(context, request, client)
            (found,) = answer["replica_election_results"]
            return [one["error_code"] for one in found["partition_result"]]

        await changes.create(NewTopic("t", assignment={0: (2, 3), 1: (3, 2)}))
        assert await ask(PREFERRED) == [ErrorCode.election_not_needed] * 2
        await asyncio.to_thread(sessions[2].close)
        await soon(lambda: leaders(topics, "t") == {0: (3, (3,)), 1: (3, (3,))})
        assert await ask(PREFERRED) == [ErrorCode.preferred_leader_not_available, ErrorCode.election_not_needed]
        await asyncio.to_thread(sessions[3].close)
        await soon(lambda: leaders(topics, "t") == {0: (NO_LEADER, (3,)), 1: (NO_LEADER, (3,))})
        assert await ask(UNCLEAN) == [ErrorCode.eligible_leaders_not_available] * 2
        register(connect, 2)
        await soon(lambda: 2 in topics.metadata.brokers)
        assert await ask(UNCLEAN) == [ErrorCode.none] * 2
        assert leaders(topics, "t") == {0: (2, (2,)), 1: (2, (2,))}

    run(steps)
