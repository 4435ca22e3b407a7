"""Where brokers set the timestamps, a time ends a batch: seen in the plan, on a real broker."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.append_time import stamped_by_brokers
from spark_connector.read.readers import KafkaBatchReader
from tests.support.kafka import Kafka
from tests.support.stream_calls import ranges_of
from tests.support.topics import Topic

FUTURE = 4_000_000_000_000


def plan(topic: Topic, **options: str) -> list[tuple[int, int, int]]:
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **options}
    return ranges_of(KafkaBatchReader(parse_options(given, Mode.BATCH)).partitions())


def let_brokers_stamp(topic: Topic) -> None:
    entry = ConfigEntry("message.timestamp.type", "LogAppendTime", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_a_time_ends_the_batch_of_a_topic_whose_brokers_set_the_times(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 2, message_timestamp_type="LogAppendTime")
    made.produce([b"%d" % number for number in range(5)], 0, timestamp=FUTURE)
    between = time_after_all()
    made.produce([b"late"], 0)
    made.produce([b"late"], 1)
    until = {"where": f"timestamp < {between}"}
    assert plan(made, **until) == [(0, 0, 5)]
    assert plan(made, **until, timestampsGrow="false") == [(0, 0, 6), (1, 0, 1)]


def time_after_all() -> int:
    """A time in ms that is later than all before, and not later than what comes."""
    now = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 == now:
        pass
    return now + 1


def test_a_time_of_before_brokers_set_them_ends_nothing(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b"of a clock that ran ahead"], timestamp=9000)
    made.produce([b"of a clock that was right"], timestamp=1000)
    let_brokers_stamp(made)
    made.produce([b"stamped"])
    assert plan(made, where="timestamp < 5000") == [(0, 0, 3)]


@pytest.mark.parametrize("name", ["absent", "topic"])
def test_what_cannot_be_found_out_is_not_taken_for_known(broker: Kafka, topic: str, name: str) -> None:
    made = Topic(broker.bootstrap, topic, message_timestamp_type="LogAppendTime")
    made.number(1)
    tp = TopicPartition(made.name if name == "topic" else f"{made.name}-absent", 0)
    with Cluster(broker.bootstrap, create_topics=False) as cluster:
        assert stamped_by_brokers(cluster, {tp: 1}) == {}, "no record there"
        assert stamped_by_brokers(cluster, {tp: 0}) == ({tp: 0} if name == "topic" else {})


def test_a_large_batch_is_asked_for_again(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 2, message_timestamp_type="LogAppendTime")
    for partition in range(2):
        made.produce([bytes(300_000)], partition)
    offsets = {TopicPartition(made.name, partition): 0 for partition in range(2)}
    with Cluster(broker.bootstrap) as cluster:
        assert stamped_by_brokers(cluster, offsets) == offsets
