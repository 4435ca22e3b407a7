"""kafka-python (the pure Python client) against the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import MessageSizeTooLargeError, RebalanceInProgressError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from tests.support.kafka import Kafka, await_topics
from tests.support.polling import polled
from tests.support.sample_records import AWKWARD, CODECS, Sample, samples
from tests.support.waiting import eventually

TIMEOUT = 60.0

# This client cannot write a header whose value is null.
WRITABLE = [sample for sample in AWKWARD if all(value is not None for _, value in sample.headers)]


@pytest.fixture
def admin(broker: Kafka) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def create(admin: KafkaAdminClient, topic: str, partitions: int = 1, **configs: str) -> None:
    wanted = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics(
        {topic: {"num_partitions": partitions, "replication_factor": 1, "configs": wanted}}, wait_for_metadata=True
    )
    await_topics(admin.config["bootstrap_servers"], topic, partitions=partitions)


def produce(broker: Kafka, topic: str, records: list[Sample], *, partition: int = 0, **settings: Any) -> list[int]:
    """Offsets in the order of `records`."""
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=5, **settings)
    try:
        futures = [
            producer.send(topic, record.value, record.key, headers=list(record.headers), partition=partition)
            for record in records
        ]
        return [future.get(TIMEOUT).offset for future in futures]
    finally:
        producer.close(timeout=TIMEOUT)


def consumer_of(broker: Kafka, group: str | None = None, **settings: Any) -> KafkaConsumer:
    defaults = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
    }
    return KafkaConsumer(**{**defaults, **settings})


def member_of(broker: Kafka, group: str, topic: str, **settings: Any) -> KafkaConsumer:
    """A consumer that subscribes once it knows the topic.

    One that leads its group before its metadata has come assigns nothing, and never looks again (kafka-python
    3.0.12): our groups form in 50 ms, which is quicker than it expects.
    """
    consumer = consumer_of(broker, group, **settings)
    eventually(lambda: bool(consumer.partitions_for_topic(topic)), timeout=TIMEOUT)
    consumer.subscribe([topic])
    return consumer


def poll(consumer: KafkaConsumer, count: int, timeout: float = TIMEOUT) -> list[Any]:
    """At least `count` messages, in the order in which they came."""
    messages: list[Any] = []
    deadline = time.monotonic() + timeout
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} messages came"
        for batch in consumer.poll(timeout_ms=200, max_records=count - len(messages)).values():
            messages.extend(batch)
    return messages


def commit(consumer: KafkaConsumer, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
    """Also where the member has just begun to join again: it had met the topic before its partitions were known."""

    def is_committed() -> bool:
        try:
            consumer.commit(offsets)
        except RebalanceInProgressError:
            consumer.poll(timeout_ms=100)
            return False
        return True

    eventually(is_committed)


def as_sample(message: Any) -> Sample:
    return Sample(message.key, message.value, tuple(message.headers))


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_unchanged_in_every_codec(
    broker: Kafka, admin: KafkaAdminClient, topic: str, codec: str
) -> None:
    create(admin, topic)
    records = WRITABLE + samples(1000)[len(AWKWARD) :]
    offsets = produce(broker, topic, records, compression_type=None if codec == "none" else codec)
    assert offsets == list(range(len(records)))
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(topic, 0)])
    messages = poll(consumer, len(records))
    consumer.close()
    assert [as_sample(message) for message in messages] == records
    assert [message.offset for message in messages] == list(range(len(records)))


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_setting_stores_the_records(
    broker: Kafka, admin: KafkaAdminClient, topic: str, acks: int | str
) -> None:
    create(admin, topic)
    produce(broker, topic, WRITABLE, acks=acks, enable_idempotence=acks == "all")
    consumer = consumer_of(broker)
    consumer.assign([TopicPartition(topic, 0)])
    assert [as_sample(message) for message in poll(consumer, len(WRITABLE))] == WRITABLE
    consumer.close()


def test_idempotent_producer_keeps_the_order(broker: Kafka, admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic)
    records = samples(3000, size=40)[len(AWKWARD) :]
    offsets = produce(broker, topic, records, enable_idempotence=True, batch_size=1000)
    assert offsets == list(range(len(records)))


def test_large_message_passes_and_a_larger_one_is_refused(broker: Kafka, admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic, max_message_bytes="3000000")
    large = Sample(b"large", bytes(2_500_000))
    produce(broker, topic, [large], max_request_size=10_000_000)
    consumer = consumer_of(broker, max_partition_fetch_bytes=1000)
    consumer.assign([TopicPartition(topic, 0)])
    assert as_sample(poll(consumer, 1)[0]) == large
    consumer.close()
    with pytest.raises(MessageSizeTooLargeError):
        produce(broker, topic, [Sample(None, bytes(4_000_000))], max_request_size=10_000_000)


def test_offsets_are_found_by_position_and_time(broker: Kafka, admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(10):
        producer.send(topic, b"v", partition=0, timestamp_ms=1_600_000_000_000 + number * 1000).get(TIMEOUT)
    producer.close()
    partition = TopicPartition(topic, 0)
    consumer = consumer_of(broker)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 10}
    found = consumer.offsets_for_times({partition: 1_600_000_000_000 + 4500})[partition]
    assert (found.offset, found.timestamp) == (5, 1_600_000_005_000)
    consumer.close()


def test_two_members_share_the_partitions_and_one_takes_over(
    broker: Kafka, admin: KafkaAdminClient, topic: str, group: str
) -> None:
    create(admin, topic, partitions=4)
    first, second = member_of(broker, group, topic), member_of(broker, group, topic)
    with polled(first, second):
        eventually(lambda: [len(one.assignment()) for one in (first, second)] == [2, 2], timeout=TIMEOUT)
    assert {p.partition for p in first.assignment() | second.assignment()} == {0, 1, 2, 3}
    second.close()

    def alone() -> bool:
        first.poll(timeout_ms=250)
        return len(first.assignment()) == 4

    eventually(alone, timeout=TIMEOUT)
    for partition in range(4):
        produce(broker, topic, WRITABLE[:2], partition=partition)
    assert sorted(message.partition for message in poll(first, 8)) == [0, 0, 1, 1, 2, 2, 3, 3]
    first.close()


def test_group_resumes_where_it_committed(broker: Kafka, admin: KafkaAdminClient, topic: str, group: str) -> None:
    create(admin, topic)
    produce(broker, topic, samples(20)[:8] + samples(21)[9:])
    first = member_of(broker, group, topic, enable_auto_commit=False)
    poll(first, 12)
    partition = TopicPartition(topic, 0)
    commit(first, {partition: OffsetAndMetadata(7, "seven", -1)})
    assert first.committed(partition) == 7
    first.close()
    second = member_of(broker, group, topic, enable_auto_commit=False)
    assert [message.offset for message in poll(second, 13)] == list(range(7, 20))
    second.close()


def test_auto_commit_stores_the_position_on_close(
    broker: Kafka, admin: KafkaAdminClient, topic: str, group: str
) -> None:
    create(admin, topic)
    produce(broker, topic, WRITABLE)
    first = member_of(broker, group, topic, enable_auto_commit=True)
    poll(first, len(WRITABLE))
    first.close()
    offsets = admin.list_group_offsets({group: None})[group]
    assert offsets[TopicPartition(topic, 0)].offset == len(WRITABLE)


def test_admin_creates_describes_and_deletes_topics(admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic, partitions=3)
    (described,) = admin.describe_topics([topic])
    assert sorted(partition["partition_index"] for partition in described["partitions"]) == [0, 1, 2]
    with pytest.raises(TopicAlreadyExistsError):
        create(admin, topic)
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics())


def test_admin_adds_partitions(broker: Kafka, admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic)
    admin.create_partitions({topic: 3})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 3)
    assert produce(broker, topic, WRITABLE[:1], partition=2) == [0]


def test_admin_reads_and_alters_the_configs_of_a_topic(admin: KafkaAdminClient, topic: str) -> None:
    create(admin, topic, retention_ms="3600000")

    def value_of(key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        described = admin.describe_configs([resource], config_filter="all")
        return str(described["topic"][topic][key]["value"])

    assert value_of("retention.ms") == "3600000"
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.bytes": "1048576"})])
    eventually(lambda: value_of("segment.bytes") == "1048576")
    assert value_of("retention.ms") == "3600000"
