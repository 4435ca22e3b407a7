"""Brokers, controller, producer ids and the whole picture, in a real ZooKeeper."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import NodeExists
from broker.zookeeper.registry import PRODUCER_ID_BLOCK_SIZE, BrokerInfo, Registry
from broker.zookeeper.znodes import MalformedNode
from tests.support.waiting import eventually
from tests.zookeeper.conftest import Connect


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Run the calls in threads that start together; their results in order."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_kafkas_top_level_nodes_are_there_and_making_them_again_does_no_harm(zk: ZooKeeper, registry: Registry) -> None:
    registry.ensure_paths()
    assert set(zk.children("/")) == {
        *("admin", "brokers", "cluster", "config", "consumers", "isr_change_notification", "latest_producer_id_block"),
    }
    assert set(zk.children("/brokers")) == {"ids", "seqid", "topics"}
    assert set(zk.children("/config")) == {"brokers", "changes", "clients", "topics", "users"}


def test_the_cluster_id_is_made_up_once(connect: Connect) -> None:
    registries = [Registry(connect()) for _ in range(4)]
    ids = at_once(*(registry.cluster_id for registry in registries))
    assert len(set(ids)) == 1
    assert len(str(ids[0])) == 22


def test_brokers_come_and_go(connect: Connect, registry: Registry) -> None:
    seen: queue.Queue[dict[int, BrokerInfo]] = queue.Queue()
    registry.watch_brokers(seen.put)
    assert seen.get(timeout=5) == {}
    session = connect()
    broker = BrokerInfo.plaintext(1, "h", 9092, rack="r")
    Registry(session).register_broker(broker)
    assert seen.get(timeout=5) == {1: broker} == registry.brokers()
    session.close()
    assert seen.get(timeout=5) == {}


def test_a_session_may_renew_its_own_registration_but_not_anothers(connect: Connect, registry: Registry) -> None:
    registry.register_broker(BrokerInfo.plaintext(1, "h", 1))
    registry.register_broker(BrokerInfo.plaintext(1, "h", 2))
    assert registry.brokers()[1].port == 2
    with pytest.raises(NodeExists):
        Registry(connect()).register_broker(BrokerInfo.plaintext(1, "h", 3))
    assert registry.brokers()[1].port == 2
    registry.unregister_broker(1)
    registry.unregister_broker(1)
    assert registry.broker_node(1) is None


def test_a_broken_registration_is_reported_with_its_path(zk: ZooKeeper, registry: Registry) -> None:
    zk.create("/brokers/ids/1", b"not json")
    with pytest.raises(MalformedNode, match="/brokers/ids/1 in ZooKeeper holds b'not json'"):
        registry.brokers()


def test_generated_broker_ids_lie_above_the_reserved_ones_and_never_repeat(connect: Connect) -> None:
    registries = [Registry(connect()) for _ in range(4)]
    ids = at_once(*(registry.generate_broker_id for registry in registries))
    assert sorted(map(str, ids)) == ["1001", "1002", "1003", "1004"]
    assert registries[0].generate_broker_id(reserved_max_id=5000) == 5005


def test_one_of_many_becomes_the_controller(connect: Connect, registry: Registry) -> None:
    sessions = {broker_id: connect() for broker_id in range(4)}
    registries = {broker_id: Registry(zk) for broker_id, zk in sessions.items()}
    epochs = at_once(*(lambda b=b, r=r: r.elect_controller(b) for b, r in registries.items()))
    assert sorted(epochs, key=str) == [1, None, None, None]
    winner = epochs.index(1)
    assert registry.controller_id() == winner
    assert registry.controller_epoch() == 1
    assert registries[winner].elect_controller(winner) == 1  # it is it already

    seen: queue.Queue[int] = queue.Queue()
    registry.watch_controller(seen.put)
    assert seen.get(timeout=5) == winner
    sessions[winner].close()
    assert seen.get(timeout=5) == -1
    other = (winner + 1) % 4
    assert registries[other].elect_controller(other) == 2
    assert seen.get(timeout=5) == other


def test_only_the_controller_can_resign(connect: Connect, registry: Registry) -> None:
    registry.elect_controller(1)
    Registry(connect()).resign_controller()
    assert registry.controller_id() == 1
    registry.resign_controller()
    assert registry.controller_id() == -1
    registry.resign_controller()


def test_the_controller_node_carries_the_time_of_the_election(zk: ZooKeeper, registry: Registry) -> None:
    Registry(zk, ManualClock(now_ms=123)).elect_controller(7)
    assert zk.get("/controller")[0] == b'{"version":1,"brokerid":7,"timestamp":"123"}'
    assert zk.get("/controller_epoch")[0] == b"1"


def test_producer_ids_of_concurrent_brokers_never_overlap(connect: Connect, registry: Registry) -> None:
    def allocate_some(broker_id: int) -> list[range]:
        mine = Registry(connect())
        return [mine.allocate_producer_ids(broker_id) for _ in range(10)]

    taken = at_once(*(lambda b=b: allocate_some(b) for b in range(4)))
    blocks = [block for one in taken for block in one]  # type: ignore[attr-defined]
    assert all(len(block) == PRODUCER_ID_BLOCK_SIZE for block in blocks)
    ids = [block.start for block in blocks]
    assert sorted(ids) == list(range(0, 40 * PRODUCER_ID_BLOCK_SIZE, PRODUCER_ID_BLOCK_SIZE))


def test_producer_ids_go_on_where_kafka_stopped(zk: ZooKeeper, registry: Registry) -> None:
    kafkas = b'{"version":1,"broker":2,"block_start":"5000","block_end":"5999"}'
    zk.set("/latest_producer_id_block", kafkas)
    assert registry.allocate_producer_ids(1) == range(6000, 7000)


def test_a_brokers_dynamic_settings_are_kept_in_kafkas_nodes(zk: ZooKeeper, registry: Registry) -> None:
    assert registry.broker_configs(1) == ({}, {})
    registry.alter_broker_config("1", {"log.cleaner.threads": "2"})
    registry.alter_broker_config("1", {"log.cleaner.threads": "3"})
    registry.alter_broker_config("<default>", {"log.cleaner.threads": "4", "message.max.bytes": "5"})
    registry.alter_broker_config("<default>", {"message.max.bytes": None})
    assert registry.broker_configs(1) == ({"log.cleaner.threads": "4"}, {"log.cleaner.threads": "3"})
    assert json.loads(zk.get("/config/brokers/<default>")[0]) == {"version": 1, "config": {"log.cleaner.threads": "4"}}


def test_the_picture_of_the_cluster_is_loaded_whole(registry: Registry) -> None:
    registry.register_broker(BrokerInfo.plaintext(1, "h", 9092))
    registry.elect_controller(1)
    record = registry.create_topic("t", {0: (1,), 1: (1,)}, {"retention.ms": "5"})
    metadata = registry.load_metadata()
    assert metadata.cluster_id == registry.cluster_id()
    assert metadata.controller_id == 1
    assert list(metadata.brokers) == [1]
    topic = metadata.topics["t"]
    assert (topic.topic_id, topic.config) == (record.topic_id, {"retention.ms": "5"})
    assert [info.leader for info in topic.partitions.values()] == [1, 1]


def test_loading_again_reads_only_what_is_new_gone_or_named(registry: Registry) -> None:
    for name in ("kept", "gone", "altered"):
        registry.create_topic(name, {0: (1,)})
    first = registry.load_metadata()
    registry.delete_topic("gone")
    registry.create_topic("new", {0: (1,)})
    for name in ("kept", "altered"):
        registry.set_topic_config(name, {"retention.ms": "1"})

    again = registry.load_metadata(first, reload=["altered"])
    assert list(again.topics) == ["altered", "kept", "new"]
    assert again.topics["kept"] is first.topics["kept"]
    assert again.topics["altered"].config == {"retention.ms": "1"}
    assert list(first.topics) == ["altered", "gone", "kept"]


def test_loading_costs_a_few_round_trips_however_many_topics_there_are(
    zk: ZooKeeper, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: registry.create_topic(f"t-{i}", {0: (1,), 1: (1,)}), range(150)))
    round_trips: list[str] = []
    call = zk._call

    def counted(path: str, submit: Callable[[], Any]) -> Any:
        round_trips.append(path)
        return call(path, submit)

    monkeypatch.setattr(zk, "_call", counted)
    assert len(registry.load_metadata().topics) == 150
    assert len(round_trips) < 12


def test_watchers_see_topics_come_and_go(registry: Registry) -> None:
    seen: queue.Queue[frozenset[str]] = queue.Queue()
    registry.watch_topics(seen.put)
    assert seen.get(timeout=5) == frozenset()
    registry.create_topic("t", {0: (1,)})
    assert seen.get(timeout=5) == {"t"}
    registry.delete_topic("t")
    eventually(lambda: seen.get(timeout=5) == frozenset())
