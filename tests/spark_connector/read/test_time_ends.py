"""What a time ends: seen in the plan, on a real broker."""

from __future__ import annotations

import json

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from broker.client.cluster import Cluster
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.read_options import Mode, parse_options
from spark_connector.read.readers import KafkaBatchReader
from spark_connector.read.time_ends import at_records
from tests.support.kafka import Kafka
from tests.support.stream_calls import ranges_of
from tests.support.topics import Topic


def plan(topic: Topic, **options: str) -> list[tuple[int, int, int]]:
    given = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **options}
    return ranges_of(KafkaBatchReader(parse_options(given, Mode.BATCH)).partitions())


def let_stamp(topic: Topic, who: str) -> None:
    entry = ConfigEntry("message.timestamp.type", who, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(30)


def test_records_that_were_filled_in_with_earlier_times_are_read(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, message_timestamp_type="LogAppendTime")
    made.produce([b"stamped"])
    let_stamp(made, "CreateTime")
    made.produce([b"filled in"], timestamp=1000)
    let_stamp(made, "LogAppendTime")
    made.produce([b"stamped"])
    assert plan(made, where="timestamp < 5000") == [(0, 0, 3)]


def test_the_marker_of_a_transaction_ends_nothing(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    producer = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for timestamp in (1000, 2000):
        producer.begin_transaction()
        producer.produce(topic, b"of long ago", timestamp=timestamp)
        producer.commit_transaction()
    until = {"where": "timestamp < 5000", "timestampsGrow": "true"}
    assert plan(made, **until) == [(0, 0, 4)]
    assert plan(made, **{**until, "where": "timestamp < 2000"}) == [(0, 0, 4)], "the first marker is later, too"
    assert plan(made, **{**until, "where": "timestamp < 500"}) == [], "the first record ends it"


def test_a_time_jumps_over_no_open_transaction_that_the_end_includes(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b"old"], timestamp=1000)
    producer = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"young", timestamp=9000)
    producer.flush()
    committed = {"kafka.isolation.level": "read_committed", "endingOffsets": json.dumps({topic: {"0": 3}})}
    for bound in ({"filterTimestampFrom": "5000"}, {"where": "timestamp >= 5000"}):
        assert plan(made, **committed, **bound) == [(0, 1, 3)], "its records are to be waited for"
    producer.commit_transaction()
    assert plan(made, **committed, where="timestamp >= 5000") == [(0, 1, 3)]
    assert plan(made, **committed, where="timestamp >= 99000000000000") == [], "all was looked at"
    beyond = {"endingOffsets": json.dumps({topic: {"0": 7}}), "where": "timestamp >= 99000000000000"}
    assert plan(made, **beyond) == [(0, 3, 7)], "nor over records that are still to come"


def test_what_cannot_be_found_out_ends_nothing(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.number(1)
    here, absent = TopicPartition(made.name, 0), TopicPartition(f"{made.name}-absent", 0)
    with Cluster(broker.bootstrap, create_topics=False) as cluster:
        assert at_records(cluster, {here: 1}) == {}, "no record there"
        assert at_records(cluster, {absent: 0}) == {}
        assert at_records(cluster, {here: 0}) == {here: 0}


def test_a_large_batch_is_asked_for_again(broker: Kafka, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 2)
    for partition in range(2):
        made.produce([bytes(300_000)], partition)
    offsets = {TopicPartition(made.name, partition): 0 for partition in range(2)}
    with Cluster(broker.bootstrap) as cluster:
        assert at_records(cluster, offsets) == offsets
