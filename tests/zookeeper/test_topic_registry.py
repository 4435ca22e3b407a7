"""Topics in a real ZooKeeper: created, grown, altered and deleted as a whole."""

from __future__ import annotations

import json
import queue
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper import znodes
from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.operations import BadVersion, Create, NoNode
from broker.zookeeper.registry import PartitionState, Registry
from tests.zookeeper.conftest import Connect


def everything_about(zk: ZooKeeper, topic: str) -> list[str]:
    paths = (znodes.topic_path(topic), znodes.topic_config_path(topic), znodes.delete_topic_path(topic))
    return [path for path in paths if zk.exists(path)]


def test_a_topic_lies_in_kafkas_nodes(zk: ZooKeeper, registry: Registry) -> None:
    record = registry.create_topic("t", {1: [2, 1], 0: [1, 2]}, {"retention.ms": "5"}, controller_epoch=4)
    assert json.loads(zk.get("/brokers/topics/t")[0]) == {
        "version": 3,
        "topic_id": znodes.uuid_to_text(record.topic_id),
        "partitions": {"0": [1, 2], "1": [2, 1]},
        "adding_replicas": {},
        "removing_replicas": {},
    }
    assert json.loads(zk.get("/config/topics/t")[0]) == {"version": 1, "config": {"retention.ms": "5"}}
    assert json.loads(zk.get("/brokers/topics/t/partitions/1/state")[0]) == {
        "controller_epoch": 4,
        "leader": 2,
        "version": 1,
        "leader_epoch": 0,
        "isr": [2, 1],
    }
    assert registry.topics() == {"t": record}
    assert registry.topic("t") == record
    assert registry.topic("u") is None


def test_a_partition_is_led_by_its_first_live_replica_and_by_nobody_when_all_are_dead(registry: Registry) -> None:
    registry.create_topic("t", {0: [1, 2], 1: [3, 4]}, live_brokers={2, 5})
    states = registry.partition_states([TopicPartition("t", 0), TopicPartition("t", 1)])
    assert states == {TopicPartition("t", 0): PartitionState(2, 0, (2,), 0)}
    topic = registry.load_topics(["t"])["t"]
    assert [info.leader for info in topic.partitions.values()] == [2, -1]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no good", ErrorCode.invalid_topic_exception),
        ("here", ErrorCode.topic_already_exists),
        ("a.b_c", ErrorCode.invalid_topic_exception),
    ],
)
def test_a_refused_topic_leaves_nothing(zk: ZooKeeper, registry: Registry, name: str, code: ErrorCode) -> None:
    registry.create_topic("here", {0: [1]})
    registry.create_topic("a_b.c", {0: [1]})
    before = registry.topics()
    with pytest.raises(BrokerError) as refusal:
        registry.create_topic(name, {0: [1]}, {"retention.ms": "1"})
    assert refusal.value.code is code
    assert registry.topics() == before
    assert zk.children("/config/topics") == ["a_b.c", "here"]


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
    grown = registry.add_partitions("t", {1: [2], 2: [1]}, controller_epoch=2)
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


def test_a_partition_state_is_written_over_the_version_it_was_read_with(registry: Registry) -> None:
    registry.create_topic("t", {0: [1, 2]})
    tp = TopicPartition("t", 0)
    read = registry.partition_states([tp])[tp]
    written = registry.set_partition_state(tp, PartitionState(2, read.leader_epoch + 1, (2,), 1, read.version))
    assert registry.partition_states([tp])[tp] == written
    assert registry.set_partition_state(tp, written).version == written.version + 1
    with pytest.raises(BadVersion):
        registry.set_partition_state(tp, read)
    with pytest.raises(NoNode):
        registry.set_partition_state(TopicPartition("t", 1), read)


def test_settings_are_replaced_or_altered(registry: Registry) -> None:
    registry.create_topic("t", {0: [1]}, {"a": "1"})
    registry.set_topic_config("t", {"b": "2", "c": "3"})
    assert registry.alter_topic_config("t", {"b": None, "d": "4", "none": None}) == {"c": "3", "d": "4"}
    assert registry.topic_config("t") == {"c": "3", "d": "4"}
    for change in (registry.set_topic_config, registry.alter_topic_config):
        with pytest.raises(BrokerError) as refusal:
            change("u", {})
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
    registry.delete_topic("t")
    assert everything_about(zk, "t") == []
    assert registry.topic_names() == ["other"]
    with pytest.raises(BrokerError) as refusal:
        registry.delete_topic("t")
    assert refusal.value.code is ErrorCode.unknown_topic_or_partition


def test_a_topic_can_be_deleted_by_several_at_once_and_created_again(zk: ZooKeeper, registry: Registry) -> None:
    first = registry.create_topic("t", {partition: [1] for partition in range(50)})

    def delete(_: int) -> ErrorCode:
        try:
            registry.delete_topic("t")
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
    registry.create_topic("t", {partition: [1] for partition in range(2500)})
    registry.add_partitions("t", {partition: [1] for partition in range(2500, 4500)})
    registry.delete_topic("t")
    assert everything_about(zk, "t") == []


def test_a_deletion_that_was_broken_off_is_finished(zk: ZooKeeper, registry: Registry) -> None:
    registry.create_topic("half-gone", {0: [1], 1: [1]})
    registry.create_topic("kept", {0: [1]})
    registry.request_deletion("half-gone")
    registry.request_deletion("half-gone")
    registry.request_deletion("gone-already")
    zk.delete("/brokers/topics/half-gone/partitions/1/state")
    zk.delete("/brokers/topics/half-gone/partitions/1")

    assert registry.pending_deletions() == ["gone-already", "half-gone"]
    assert registry.resume_deletions() == ["gone-already", "half-gone"]
    assert registry.pending_deletions() == []
    assert registry.topic_names() == ["kept"]


def test_a_mark_set_by_kafkas_tools_is_noticed(zk: ZooKeeper, registry: Registry) -> None:
    seen: queue.Queue[list[str]] = queue.Queue()
    registry.watch_deletions(seen.put)
    assert seen.get(timeout=5) == []
    zk.transaction([Create("/admin/delete_topics/t")])
    assert seen.get(timeout=5) == ["t"]
