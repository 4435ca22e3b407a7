"""confluent-kafka (librdkafka, the C client) against the broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from broker.errors import ErrorCode
from broker.records.builder import BatchBuilder
from tests.conftest import BrokerFactory
from tests.support.broker_process import BrokerProcess
from tests.support.kafka import Kafka, await_topics
from tests.support.raw_requests import Requests
from tests.support.sample_records import AWKWARD, CODECS, Sample, samples
from tests.support.waiting import eventually

TIMEOUT = 60.0


@pytest.fixture
def admin(broker: Kafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def consumers(broker: Kafka) -> Iterator[list[Consumer]]:
    """What a test opens here is closed after it."""
    opened: list[Consumer] = []
    yield opened
    for consumer in opened:
        consumer.close()


def dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "."): value for key, value in settings.items()}


def consumer_of(broker: Kafka, group: str, **settings: Any) -> Consumer:
    defaults = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 200,
    }
    return Consumer({**defaults, **dotted(settings)})


def create(broker: Kafka, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = NewTopic(topic, partitions, 1, config=dotted(config))
    admin.create_topics([new])[topic].result(TIMEOUT)
    await_topics(broker.bootstrap, topic, partitions=partitions)


def produce(broker: Kafka, topic: str, records: list[Sample], *, partition: int = 0, **settings: Any) -> list[int]:
    """Offsets as the delivery reports gave them, in the order of `records`."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **dotted(settings)})
    offsets: list[int] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for record in records:
        producer.produce(
            topic, record.value, record.key, partition=partition, headers=list(record.headers), callback=delivered
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT) == 0
    return offsets


def poll(consumer: Consumer, count: int, timeout: float = TIMEOUT) -> list[Any]:
    """The next `count` messages, in order."""
    messages: list[Any] = []
    deadline = time.monotonic() + timeout
    while len(messages) < count:
        assert time.monotonic() < deadline, f"only {len(messages)} of {count} messages came"
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def as_sample(message: Any) -> Sample:
    return Sample(message.key(), message.value(), tuple(message.headers() or ()))


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_unchanged_in_every_codec(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str, codec: str
) -> None:
    create(broker, topic)
    records = samples(2000)
    before = int(time.time() * 1000)
    assert produce(broker, topic, records, compression_type=codec) == list(range(len(records)))
    consumers.append(consumer_of(broker, group, check_crcs=True))
    consumers[0].assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    messages = poll(consumers[0], len(records))
    assert [as_sample(message) for message in messages] == records
    assert [message.offset() for message in messages] == list(range(len(records)))
    assert all(before - 1000 <= message.timestamp()[1] <= int(time.time() * 1000) + 1000 for message in messages)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_acks_setting_stores_the_records(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str, acks: str
) -> None:
    create(broker, topic)
    produce(broker, topic, AWKWARD, acks=acks)
    consumers.append(consumer_of(broker, group))
    consumers[0].assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [as_sample(message) for message in poll(consumers[0], len(AWKWARD))] == AWKWARD


def test_idempotent_producer_stores_each_record_once_in_order(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str
) -> None:
    create(broker, topic)
    records = samples(20_000, size=50)
    offsets = produce(broker, topic, records, enable_idempotence=True, batch_num_messages=100, linger_ms=0)
    assert offsets == list(range(len(records)))
    consumers.append(consumer_of(broker, group))
    consumers[0].assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [as_sample(message) for message in poll(consumers[0], len(records))] == records


def test_unknown_topic_is_created_on_first_use(
    own_broker: BrokerProcess, consumers: list[Consumer], topic: str, group: str
) -> None:
    produce(own_broker, topic, AWKWARD[:1], partition=0)
    consumers.append(consumer_of(own_broker, group))
    consumers[0].assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [as_sample(message) for message in poll(consumers[0], 1)] == AWKWARD[:1]


def test_large_message_passes_and_a_larger_one_is_refused(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str
) -> None:
    create(broker, topic, max_message_bytes="3000000")
    large = Sample(b"large", bytes(2_500_000))
    produce(broker, topic, [large], message_max_bytes=10_000_000)
    consumers.append(consumer_of(broker, group, fetch_message_max_bytes=1000))  # smaller than the message
    consumers[0].assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert as_sample(poll(consumers[0], 1)[0]) == large

    codes: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "message.max.bytes": 10_000_000})
    producer.produce(topic, bytes(4_000_000), callback=lambda error, _: codes.append(error and error.code()))
    producer.flush(TIMEOUT)
    assert codes == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_offsets_are_found_by_time(broker: Kafka, admin: AdminClient, topic: str, group: str) -> None:
    create(broker, topic)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=1_600_000_000_000 + number * 1000)
        producer.flush(TIMEOUT)
    consumer = consumer_of(broker, group)
    try:
        asked = [TopicPartition(topic, 0, 1_600_000_000_000 + 4500)]
        assert [found.offset for found in consumer.offsets_for_times(asked, timeout=TIMEOUT)] == [5]
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=TIMEOUT) == (0, 10)
    finally:
        consumer.close()
    listed = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.latest()})
    assert listed[TopicPartition(topic, 0)].result(TIMEOUT).offset == 10


def test_two_members_share_the_partitions_and_one_takes_over(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str
) -> None:
    create(broker, topic, partitions=4)
    first, second = consumer_of(broker, group), consumer_of(broker, group)
    consumers.append(first)
    first.subscribe([topic])
    second.subscribe([topic])

    def shared() -> bool:
        for consumer in (first, second):
            consumer.poll(0.05)
        return len(first.assignment()) == 2 and len(second.assignment()) == 2

    eventually(shared, timeout=TIMEOUT)
    assert {p.partition for p in first.assignment()} | {p.partition for p in second.assignment()} == {0, 1, 2, 3}
    second.close()

    def alone() -> bool:
        first.poll(0.05)
        return len(first.assignment()) == 4

    eventually(alone, timeout=TIMEOUT)
    for partition in range(4):
        produce(broker, topic, AWKWARD[:2], partition=partition)
    assert sorted(message.partition() for message in poll(first, 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_group_resumes_where_it_committed(broker: Kafka, topic: str, group: str, strategy: str) -> None:
    create(broker, topic)
    produce(broker, topic, samples(20))
    settings = {"enable_auto_commit": False, "partition_assignment_strategy": strategy}
    first = consumer_of(broker, group, **settings)
    first.subscribe([topic])
    poll(first, 12)
    first.commit(offsets=[TopicPartition(topic, 0, 7, metadata="seven")], asynchronous=False)
    first.close()
    second = consumer_of(broker, group, **settings)
    second.subscribe([topic])
    assert [message.offset() for message in poll(second, 13)] == list(range(7, 20))
    second.close()


def test_auto_commit_stores_the_position_on_close(broker: Kafka, admin: AdminClient, topic: str, group: str) -> None:
    create(broker, topic)
    produce(broker, topic, samples(10))
    first = consumer_of(broker, group, enable_auto_commit=True)
    first.subscribe([topic])
    poll(first, 10)
    first.close()
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    found = admin.list_consumer_group_offsets([asked])[group].result(TIMEOUT)
    assert [partition.offset for partition in found.topic_partitions] == [10]


def test_a_group_without_offsets_has_none(broker: Kafka, topic: str, group: str) -> None:
    create(broker, topic)
    consumer = consumer_of(broker, group)
    assert [found.offset for found in consumer.committed([TopicPartition(topic, 0)], TIMEOUT)] == [OFFSET_INVALID]
    consumer.close()


def test_admin_creates_describes_and_deletes_topics(broker: Kafka, admin: AdminClient, topic: str) -> None:
    create(broker, topic, partitions=3)
    described = admin.list_topics(topic, timeout=TIMEOUT).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2]
    assert all(p.replicas == p.isrs == [p.leader] for p in described.partitions.values())
    with pytest.raises(KafkaException) as raised:
        create(broker, topic)
    assert raised.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    admin.delete_topics([topic])[topic].result(TIMEOUT)
    eventually(lambda: topic not in admin.list_topics(timeout=TIMEOUT).topics)


@pytest.mark.parametrize(
    ("name", "partitions", "replicas", "config", "code"),
    [
        ("bad/name", 1, 1, {}, KafkaError.TOPIC_EXCEPTION),
        ("too-many-replicas", 1, 99, {}, KafkaError.INVALID_REPLICATION_FACTOR),
        ("bad-config", 1, 1, {"retention.ms": "soon"}, KafkaError.INVALID_CONFIG),
        ("unknown-config", 1, 1, {"retention.days": "1"}, KafkaError.INVALID_CONFIG),
    ],
)
def test_a_topic_that_cannot_be_is_refused_by_code(
    admin: AdminClient, name: str, partitions: int, replicas: int, config: dict[str, str], code: int
) -> None:
    with pytest.raises(KafkaException) as raised:
        admin.create_topics([NewTopic(name, partitions, replicas, config=config)])[name].result(TIMEOUT)
    assert raised.value.args[0].code() == code


def test_admin_adds_partitions(broker: Kafka, admin: AdminClient, topic: str) -> None:
    create(broker, topic)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(TIMEOUT)
    eventually(lambda: len(admin.list_topics(topic, timeout=TIMEOUT).topics[topic].partitions) == 3)
    assert produce(broker, topic, AWKWARD[:1], partition=2) == [0]
    with pytest.raises(KafkaException) as raised:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT)
    assert raised.value.args[0].code() == KafkaError.INVALID_PARTITIONS


def test_admin_reads_and_alters_the_configs_of_a_topic(broker: Kafka, admin: AdminClient, topic: str) -> None:
    create(broker, topic, retention_ms="3600000")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    config = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert config["retention.ms"].value == "3600000"
    assert not config["retention.ms"].is_default
    assert config["segment.bytes"].is_default

    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry("segment.bytes", "1048576", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )
    admin.incremental_alter_configs([change])[change].result(TIMEOUT)

    def altered() -> bool:
        now = admin.describe_configs([resource])[resource].result(TIMEOUT)
        return now["segment.bytes"].value == "1048576" and now["retention.ms"].is_default

    eventually(altered)


def test_admin_describes_the_cluster_and_the_broker(broker: Kafka, admin: AdminClient, broker_id: int) -> None:
    metadata = admin.list_topics(timeout=TIMEOUT)
    assert metadata.cluster_id
    assert metadata.controller_id in metadata.brokers
    assert set(broker.bootstrap.split(",")) <= {f"{b.host}:{b.port}" for b in metadata.brokers.values()}
    resource = ConfigResource(ResourceType.BROKER, str(broker_id))
    config = admin.describe_configs([resource])[resource].result(TIMEOUT)
    assert config["auto.create.topics.enable"].value in ("true", "false")


def test_out_of_range_offset_is_reset_by_the_clients_rule(
    broker: Kafka, consumers: list[Consumer], topic: str, group: str
) -> None:
    create(broker, topic)
    produce(broker, topic, AWKWARD)
    consumers.append(consumer_of(broker, group))
    consumers[0].assign([TopicPartition(topic, 0, 5000)])
    assert poll(consumers[0], 1)[0].offset() == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_value_that_the_broker_compressed_to_little_is_read(broker_factory: BrokerFactory, topic: str) -> None:
    """librdkafka reads no zstd frame that grows so much and does not tell its size."""
    size = 95 << 20
    settings = {"message.max.bytes": str(size + 1000), "socket.request.max.bytes": str(size + 10_000)}
    broker = broker_factory({**settings, "compression.type": "zstd"})
    records = BatchBuilder(max_bytes=size + 1000)
    records.append(1_700_000_000_000, None, bytes(size))
    with Requests(broker.bootstrap, timeout_s=120) as ask:
        ask.create(topic)
        stored = ask.produce({(topic, 0): records.build()})[topic, 0]
        assert stored.error_code is ErrorCode.none
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": size + 1000,
            "receive.message.max.bytes": size + 10_000,
        }
    )
    consumer.subscribe([topic])
    message = consumer.poll(120)
    consumer.close()
    assert message is not None
    assert message.error() is None
    assert message.value() == bytes(size)
