"""Brokers, topics, controller and producer ids in a real ZooKeeper."""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from broker.clock import ManualClock
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.replica.cluster_metadata import NO_STATE, BrokerInfo
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import Create, NodeExists
from broker.zookeeper.registry import PRODUCER_ID_BLOCK_SIZE, Registry
from broker.zookeeper.znodes import MalformedNode, PartitionState
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
    assert set(zk.children("/config")) == {"brokers", "changes", "clients", "ips", "topics", "users"}


def test_the_cluster_id_is_made_up_once(connect: Connect) -> None:
    registries = [Registry(connect()) for _ in range(4)]
    ids = at_once(*(registry.cluster_id for registry in registries))
    assert len(set(ids)) == 1
    assert len(str(ids[0])) == 22


def test_brokers_come_and_go(connect: Connect, registry: Registry) -> None:
    seen: queue.Queue[dict[int, BrokerInfo]] = queue.Queue()
    registry.watch_brokers(seen.put)
    assert seen.get(timeout=60) == {}
    session = connect()
    broker = BrokerInfo.plaintext(1, "h", 9092, rack="r")
    Registry(session).register_broker(broker)
    assert seen.get(timeout=60) == {1: broker} == registry.brokers()
    session.close()
    assert seen.get(timeout=60) == {}


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


def test_a_broken_registration_is_left_out_and_logged_with_its_path(
    zk: ZooKeeper, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    zk.create("/brokers/ids/1", b"not json")
    zk.create("/brokers/ids/junk", b"")
    registry.register_broker(BrokerInfo.plaintext(2, "h", 9092))
    assert list(registry.brokers()) == [2]
    assert "/brokers/ids/1 in ZooKeeper holds b'not json'" in caplog.text


@pytest.mark.parametrize("path", ["/brokers/topics/t", "/config/topics/t", "/brokers/topics/t/partitions/0/state"])
def test_a_broken_topic_keeps_nobody_from_learning_of_the_others(
    zk: ZooKeeper, registry: Registry, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """A broker that knows the topic keeps what it knows: the topic is not deleted."""
    registry.create_topic("t", {0: (1,)}, {"retention.ms": "5"})
    registry.create_topic("u", {0: (1,)})
    before = registry.load_metadata()
    zk.set(path, b"not json")
    assert list(registry.load_metadata().topics) == ["u"]
    assert f"topic t is not served: {path} in ZooKeeper holds" in caplog.text
    assert registry.load_metadata(fallback=before.topics).topics == before.topics
    assert registry.load_topics(["t"], before.topics) == {"t": before.topics["t"]}
    assert registry.load_topics(["u"], before.topics)
    assert registry.malformed == {"t"}
    assert "topic t is left as it was" in caplog.text
    if path.endswith("/state"):
        assert registry.partition_states([TopicPartition("t", 0), TopicPartition("u", 0)]).keys() == {
            TopicPartition("u", 0)
        }
    else:
        assert list(registry.topics()) == ["u"]
        with pytest.raises(MalformedNode):
            registry.topic("t")


def test_generated_broker_ids_lie_above_the_reserved_ones_and_never_repeat(connect: Connect) -> None:
    registries = [Registry(connect()) for _ in range(4)]
    ids = at_once(*(registry.generate_broker_id for registry in registries))
    assert sorted(map(str, ids)) == ["1001", "1002", "1003", "1004"]
    assert registries[0].generate_broker_id() == 1005


def test_one_of_many_becomes_the_controller(connect: Connect, registry: Registry) -> None:
    sessions = {broker_id: connect() for broker_id in range(4)}
    registries = {broker_id: Registry(zk) for broker_id, zk in sessions.items()}
    epochs = at_once(*(lambda b=b, r=r: r.controller.elect(b) for b, r in registries.items()))
    first = registry.controller.epoch()
    assert sorted(epochs, key=str) == [(1, first.version), None, None, None]
    winner = epochs.index(first)
    assert registry.controller.id() == winner
    assert registries[winner].controller.elect(winner) == first  # it is it already

    seen: queue.Queue[int] = queue.Queue()
    registry.controller.watch(seen.put)
    assert seen.get(timeout=60) == winner
    sessions[winner].close()
    assert seen.get(timeout=60) == -1
    other = (winner + 1) % 4
    assert registries[other].controller.elect(other) == (2, first.version + 1)
    assert seen.get(timeout=60) == other


def test_only_the_controller_can_resign(connect: Connect, registry: Registry) -> None:
    registry.controller.elect(1)
    Registry(connect()).controller.resign()
    assert registry.controller.id() == 1
    registry.controller.resign()
    assert registry.controller.id() == -1
    registry.controller.resign()


def test_the_controller_node_carries_the_time_of_the_election(zk: ZooKeeper, registry: Registry) -> None:
    Registry(zk, ManualClock(now_ms=123)).controller.elect(7)
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
    registry.controller.elect(1)
    record = registry.create_topic("t", {0: (1,), 1: (1,)}, {"retention.ms": "5"})
    metadata = registry.load_metadata()
    assert metadata.cluster_id == registry.cluster_id()
    assert metadata.controller_id == 1
    assert list(metadata.brokers) == [1]
    topic = metadata.topics["t"]
    assert (topic.topic_id, topic.config) == (record.topic_id, {"retention.ms": "5"})
    assert [info.leader for info in topic.partitions.values()] == [1, 1]


def test_loading_again_reads_only_new_topics(registry: Registry) -> None:
    for name in ("kept", "gone"):
        registry.create_topic(name, {0: (1,)})
    first = registry.load_metadata()
    registry.deletions.delete("gone")
    registry.create_topic("new", {0: (1,)})
    registry.alter_topic_config("kept", {"retention.ms": "1"})

    again = registry.load_metadata(first)
    assert list(again.topics) == ["kept", "new"]
    assert again.topics["kept"] is first.topics["kept"]
    assert list(first.topics) == ["gone", "kept"]


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
    assert seen.get(timeout=60) == frozenset()
    registry.create_topic("t", {0: (1,)})
    assert seen.get(timeout=60) == {"t"}
    registry.deletions.delete("t")
    eventually(lambda: seen.get(timeout=60) == frozenset())


def everything_about(zk: ZooKeeper, topic: str) -> list[str]:
    paths = (znodes.topic_path(topic), znodes.topic_config_path(topic), znodes.delete_topic_path(topic))
    return [path for path in paths if zk.exists(path)]


def test_a_topic_lies_in_kafkas_nodes(zk: ZooKeeper, registry: Registry) -> None:
    record = registry.create_topic("t", {1: [2, 1], 0: [1, 2]}, {"retention.ms": "5"})
    assert json.loads(zk.get("/brokers/topics/t")[0]) == {
        "version": 3,
        "topic_id": znodes.uuid_to_text(record.topic_id),
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert json.loads(zk.get("/config/topics/t")[0]) == {"version": 1, "config": {"retention.ms": "5"}}
    assert json.loads(zk.get("/brokers/topics/t/partitions/1/state")[0]) == {
        "controller_epoch": 0,
        "leader": 2,
        "version": 1,
        "leader_epoch": 0,
        "isr": [2, 1],
    }
    assert registry.topics() == {"t": record}
    assert registry.topic("t") == record
    assert registry.topic("u") is None


def test_a_partition_is_led_by_its_first_replica_and_by_nobody_without_a_state(
    zk: ZooKeeper, registry: Registry
) -> None:
    registry.create_topic("t", {0: [2, 1], 1: [3, 4]})
    zk.delete(znodes.state_path(TopicPartition("t", 1)))
    states = registry.partition_states([TopicPartition("t", 0), TopicPartition("t", 1)])
    assert states == {TopicPartition("t", 0): PartitionState(2, 0, (2, 1), 0)}
    topic = registry.load_topics(["t"])["t"]
    assert [info.leader for info in topic.partitions.values()] == [2, -1]


def test_a_refused_topic_leaves_nothing(zk: ZooKeeper, registry: Registry) -> None:
    registry.create_topic("here", {0: [1]})
    before = registry.topics()
    with pytest.raises(BrokerError) as refusal:
        registry.create_topic("here", {0: [1]}, {"retention.ms": "1"})
    assert refusal.value.code is ErrorCode.topic_already_exists
    assert registry.topics() == before
    assert zk.children("/config/topics") == ["here"]


def test_of_concurrent_creations_exactly_one_wins(connect: Connect, registry: Registry) -> None:
    registries = [Registry(connect()) for _ in range(4)]

    def create(number: int) -> ErrorCode:
        try:
            registries[number % 4].create_topic("t", {0: [number]})
            return ErrorCode.none
        except BrokerError as error:
            return error.code

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(create, range(16)))
    assert Counter(answers) == {ErrorCode.none: 1, ErrorCode.topic_already_exists: 15}
    record = registry.topic("t")
    assert record is not None
    assert record.assignment == {0: (answers.index(ErrorCode.none),)}


def test_a_creation_whose_answer_was_lost_is_not_taken_for_somebody_elses(registry: Registry) -> None:
    topic_id = znodes.new_uuid()
    first = registry.create_topic("t", {0: [1]}, None, topic_id)
    assert registry.create_topic("t", {0: [1]}, None, topic_id) == first  # as when the request is sent again


def test_the_config_left_by_a_topic_that_is_gone_is_replaced(zk: ZooKeeper, registry: Registry) -> None:
    zk.create("/config/topics/t", znodes.encode_config({"old": "1"}))
    registry.create_topic("t", {0: [1]}, {"new": "2"})
    assert registry.topic_config("t") == {"new": "2"}


def test_too_many_partitions_for_one_transaction_are_refused(registry: Registry) -> None:
    with pytest.raises(BrokerError, match="begin with fewer and add the others in steps") as refusal:
        registry.create_topic("t", {partition: [1] for partition in range(5000)})
    assert refusal.value.code is ErrorCode.invalid_partitions
    assert registry.topic_names() == []


def test_partitions_are_added(registry: Registry) -> None:
    created = registry.create_topic("t", {0: [1]}, {"k": "v"})
    grown = registry.add_partitions("t", {1: [2], 2: [1]})
    assert grown == registry.topic("t")
    assert grown.assignment == {0: (1,), 1: (2,), 2: (1,)}
    assert (grown.topic_id, grown.config) == (created.topic_id, {"k": "v"})
    states = registry.partition_states(grown.partitions())
    assert [state.leader for state in states.values()] == [1, 2, 1]


def test_partitions_are_added_to_a_topic_that_has_no_states_yet(zk: ZooKeeper, registry: Registry) -> None:
    zk.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1]}}')  # as Kafka's old tools leave it
    registry.add_partitions("t", {1: [1]})
    assert list(registry.partition_states([TopicPartition("t", 0), TopicPartition("t", 1)])) == [("t", 1)]


def test_only_the_next_partitions_can_be_added(registry: Registry) -> None:
    registry.create_topic("t", {0: [1]})
    for numbers in ([0], [2], [1, 3]):
        with pytest.raises(BrokerError, match="has 1 partitions") as refusal:
            registry.add_partitions("t", {number: [1] for number in numbers})
        assert refusal.value.code is ErrorCode.invalid_partitions
    with pytest.raises(BrokerError) as refusal:
        registry.add_partitions("u", {0: [1]})
    assert refusal.value.code is ErrorCode.unknown_topic_or_partition


def test_states_are_written_over_the_versions_they_were_read_with_and_others_are_left_out(registry: Registry) -> None:
    registry.create_topic("t", {0: [1, 2], 1: [1, 2], 2: [1, 2]})
    first, second, third, absent = (TopicPartition("t", partition) for partition in range(4))
    read = registry.partition_states([first, second, third])
    wanted = {tp: PartitionState(2, state.leader_epoch + 1, (2,), 1, state.version) for tp, state in read.items()}
    assert registry.write_states({second: wanted[second]}) == {second}
    other = PartitionState(1, 5, (1,), 1, read[second].version)
    assert registry.write_states({second: other, absent: other}) == set()
    assert registry.write_states({**wanted, second: other, absent: other}) == {first, third}
    written = registry.partition_states([first, second, third])
    assert written == wanted
    assert [written[tp].version - read[tp].version for tp in (first, second, third)] == [1, 1, 1]


def test_a_state_whose_answer_was_lost_counts_as_written(registry: Registry) -> None:
    registry.create_topic("t", {0: [1, 2]})
    tp = TopicPartition("t", 0)
    wanted = PartitionState(2, 1, (2,), 1, registry.partition_states([tp])[tp].version)
    assert registry.write_states({tp: wanted}) == registry.write_states({tp: wanted}) == {tp}
    registry.write_states(registry.partition_states([tp]))
    assert registry.write_states({tp: wanted}) == set()


def test_the_first_states_of_a_topic_that_kafkas_tools_made_are_written(zk: ZooKeeper, registry: Registry) -> None:
    zk.create("/brokers/topics/t", b'{"version":1,"partitions":{"0":[1],"1":[1]}}')
    state = PartitionState(1, 0, (1,), 1, NO_STATE)
    partitions = {TopicPartition("t", partition) for partition in range(2)}
    assert registry.write_states(dict.fromkeys(partitions, state)) == partitions
    assert registry.write_states({TopicPartition("gone", 0): state}) == set()


def test_an_earlier_controller_can_write_no_state(connect: Connect, registry: Registry) -> None:
    """Promise P4: the transaction checks the version of the controller epoch."""
    earlier = connect()
    fence = Registry(earlier).controller.elect(1)
    assert fence is not None
    registry.create_topic("t", {0: [1, 2]})
    tp = TopicPartition("t", 0)
    wanted = PartitionState(2, 1, (2,), 1, registry.partition_states([tp])[tp].version)
    Registry(earlier).controller.resign()
    assert registry.write_states({tp: wanted}, controller_version=fence.version) == {tp}
    now = registry.controller.elect(2)
    assert now is not None
    with pytest.raises(BrokerError) as refusal:
        registry.write_states(registry.partition_states([tp]), controller_version=fence.version)
    assert refusal.value.code is ErrorCode.not_controller
    assert registry.write_states(registry.partition_states([tp]), controller_version=now.version) == {tp}


def test_settings_are_altered(registry: Registry) -> None:
    registry.create_topic("t", {0: [1]}, {"b": "2", "c": "3"})
    assert registry.alter_topic_config("t", {"b": None, "d": "4", "none": None}) == {"c": "3", "d": "4"}
    assert registry.topic_config("t") == {"c": "3", "d": "4"}
    with pytest.raises(BrokerError) as refusal:
        registry.alter_topic_config("u", {})
    assert refusal.value.code is ErrorCode.unknown_topic_or_partition


def test_settings_of_a_topic_without_a_config_node_can_be_altered(zk: ZooKeeper, registry: Registry) -> None:
    registry.create_topic("t", {0: [1]})
    zk.delete("/config/topics/t")
    assert registry.topic_config("t") == {}
    assert registry.alter_topic_config("t", {"a": "1"}) == registry.topic_config("t") == {"a": "1"}


def test_concurrent_alterations_do_not_undo_each_other(registry: Registry) -> None:
    registry.create_topic("t", {0: [1]})
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: registry.alter_topic_config("t", {f"k{i}": "v"}), range(16)))
    assert registry.topic_config("t") == {f"k{i}": "v" for i in range(16)}


def test_a_deleted_topic_leaves_nothing(zk: ZooKeeper, registry: Registry) -> None:
    registry.create_topic("t", {0: [1], 1: [1]}, {"a": "1"})
    registry.create_topic("other", {0: [1]})
    registry.deletions.delete("t")
    assert everything_about(zk, "t") == []
    assert registry.topic_names() == ["other"]
    with pytest.raises(BrokerError) as refusal:
        registry.deletions.delete("t")
    assert refusal.value.code is ErrorCode.unknown_topic_or_partition


def test_a_deleted_topic_is_noted_for_each_of_its_brokers(registry: Registry) -> None:
    first = registry.create_topic("first", {0: [1], 1: [2]}).topic_id
    second = registry.create_topic("second", {0: [2, 3]}).topic_id
    for name in ("first", "second"):
        registry.deletions.delete(name)
    found = {broker_id: set(registry.deletions.noted(broker_id)) for broker_id in (1, 2, 3, 4)}
    assert found == {1: {first}, 2: {first, second}, 3: {second}, 4: set()}
    for _ in range(2):
        registry.deletions.forget(2, [first])
    assert registry.deletions.noted(2) == [second]


def test_a_topic_can_be_deleted_by_several_at_once_and_created_again(zk: ZooKeeper, registry: Registry) -> None:
    first = registry.create_topic("t", {partition: [1] for partition in range(50)})

    def delete(_: int) -> ErrorCode:
        try:
            registry.deletions.delete("t")
            return ErrorCode.none
        except BrokerError as error:
            return error.code

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(delete, range(4)))
    assert ErrorCode.none in answers
    assert answers <= {ErrorCode.none, ErrorCode.unknown_topic_or_partition}
    assert everything_about(zk, "t") == []
    assert registry.create_topic("t", {0: [1]}).topic_id != first.topic_id


def test_a_topic_too_large_for_one_transaction_is_deleted_too(zk: ZooKeeper, registry: Registry) -> None:
    made = registry.create_topic("t", {partition: [1] for partition in range(2500)})
    registry.add_partitions("t", {partition: [1] for partition in range(2500, 4500)})
    registry.deletions.delete("t")
    assert everything_about(zk, "t") == []
    assert registry.deletions.noted(1) == [made.topic_id]


def test_a_deletion_that_was_broken_off_is_finished(zk: ZooKeeper, registry: Registry) -> None:
    registry.create_topic("half-gone", {0: [1], 1: [1]})
    registry.create_topic("kept", {0: [1]})
    registry.deletions.request("half-gone")
    registry.deletions.request("half-gone")
    registry.deletions.request("gone-already")
    zk.delete("/brokers/topics/half-gone/partitions/1/state")
    zk.delete("/brokers/topics/half-gone/partitions/1")

    assert registry.deletions.pending() == ["gone-already", "half-gone"]
    assert registry.deletions.resume() == ["gone-already", "half-gone"]
    assert registry.deletions.pending() == []
    assert registry.topic_names() == ["kept"]


def test_a_mark_deletes_nothing_where_topics_may_not_be_deleted(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.create_topic("t", {0: (1,)})
    registry.deletions.request("t")
    assert registry.deletions.resume(allowed=False) == ["t"]
    assert registry.deletions.pending() == []
    assert registry.topic("t")
    assert "topic t is not deleted, because delete.topic.enable=false" in caplog.text


def test_a_mark_set_by_kafkas_tools_is_noticed(zk: ZooKeeper, registry: Registry) -> None:
    seen: queue.Queue[list[str]] = queue.Queue()
    registry.deletions.watch(seen.put)
    assert seen.get(timeout=60) == []
    zk.transaction([Create("/admin/delete_topics/t")])
    assert seen.get(timeout=60) == ["t"]
