"""aiokafka (the asyncio client) against the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import MessageSizeTooLargeError, TopicAlreadyExistsError

from tests.support.kafka import Kafka, await_topics
from tests.support.sample_records import AWKWARD, CODECS, Sample, samples
from tests.support.waiting import eventually

TIMEOUT = 60.0


async def until(condition: Callable[[], bool]) -> None:
    """Let the event loop run until `condition()` is true."""
    await asyncio.to_thread(eventually, condition, TIMEOUT)


@asynccontextmanager
async def admin_of(broker: Kafka) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def create(broker: Kafka, topic: str, partitions: int = 1, **configs: str) -> None:
    async with admin_of(broker) as admin:
        wanted = {key.replace("_", "."): value for key, value in configs.items()}
        await admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=wanted)])
    await_topics(broker.bootstrap, topic, partitions=partitions)


async def produce(
    broker: Kafka, topic: str, records: list[Sample], *, partition: int = 0, **settings: Any
) -> list[int]:
    """Offsets in the order of `records`."""
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=5, **settings) as producer:
        futures = [
            await producer.send(topic, record.value, record.key, partition=partition, headers=list(record.headers))
            for record in records
        ]
        return [(await future).offset for future in futures]


def consumer_of(broker: Kafka, *topics: str, group: str | None = None, **settings: Any) -> AIOKafkaConsumer:
    defaults = {
        "bootstrap_servers": broker.bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 200,
    }
    return AIOKafkaConsumer(*topics, **{**defaults, **settings})


async def take(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    """The next `count` messages."""
    async with asyncio.timeout(TIMEOUT):
        return [await consumer.getone() for _ in range(count)]


def as_sample(message: Any) -> Sample:
    return Sample(message.key, message.value, tuple(message.headers))


@pytest.mark.parametrize("codec", CODECS)
async def test_records_come_back_unchanged_in_every_codec(broker: Kafka, topic: str, codec: str) -> None:
    await create(broker, topic)
    records = samples(1000)
    offsets = await produce(broker, topic, records, compression_type=None if codec == "none" else codec)
    assert offsets == list(range(len(records)))
    async with consumer_of(broker, topic) as consumer:
        messages = await take(consumer, len(records))
    assert [as_sample(message) for message in messages] == records
    assert [message.offset for message in messages] == list(range(len(records)))


@pytest.mark.parametrize("acks", [1, "all"])
async def test_every_acks_setting_stores_the_records(broker: Kafka, topic: str, acks: int | str) -> None:
    await create(broker, topic)
    await produce(broker, topic, AWKWARD, acks=acks)
    async with consumer_of(broker, topic) as consumer:
        assert [as_sample(message) for message in await take(consumer, len(AWKWARD))] == AWKWARD


async def test_idempotent_producer_keeps_the_order(broker: Kafka, topic: str) -> None:
    await create(broker, topic)
    records = samples(3000, size=40)[len(AWKWARD) :]
    offsets = await produce(broker, topic, records, enable_idempotence=True, max_batch_size=1000)
    assert offsets == list(range(len(records)))


async def test_large_message_passes_and_a_larger_one_is_refused(broker: Kafka, topic: str) -> None:
    await create(broker, topic, max_message_bytes="3000000")
    large = Sample(b"large", bytes(2_500_000))
    await produce(broker, topic, [large], max_request_size=10_000_000)
    async with consumer_of(broker, topic, max_partition_fetch_bytes=10_000_000) as consumer:
        assert as_sample((await take(consumer, 1))[0]) == large
    with pytest.raises(MessageSizeTooLargeError):
        await produce(broker, topic, [Sample(None, bytes(4_000_000))], max_request_size=10_000_000)


async def test_offsets_are_found_by_position_and_time(broker: Kafka, topic: str) -> None:
    await create(broker, topic)
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"v", partition=0, timestamp_ms=1_600_000_000_000 + number * 1000)
    partition = TopicPartition(topic, 0)
    async with consumer_of(broker, topic) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 10}
        found = (await consumer.offsets_for_times({partition: 1_600_000_000_000 + 4500}))[partition]
        assert (found.offset, found.timestamp) == (5, 1_600_000_005_000)


async def test_two_members_share_the_partitions_and_one_takes_over(broker: Kafka, topic: str, group: str) -> None:
    await create(broker, topic, partitions=4)
    async with consumer_of(broker, topic, group=group) as first:
        async with consumer_of(broker, topic, group=group) as second:
            await until(lambda: len(first.assignment()) == 2 and len(second.assignment()) == 2)
            assert {p.partition for p in first.assignment() | second.assignment()} == {0, 1, 2, 3}
        await until(lambda: len(first.assignment()) == 4)
        for partition in range(4):
            await produce(broker, topic, AWKWARD[:2], partition=partition)
        assert sorted(message.partition for message in await take(first, 8)) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_group_resumes_where_it_committed(broker: Kafka, topic: str, group: str) -> None:
    await create(broker, topic)
    await produce(broker, topic, samples(30)[len(AWKWARD) :][:20])
    partition = TopicPartition(topic, 0)
    async with consumer_of(broker, topic, group=group, enable_auto_commit=False) as consumer:
        await take(consumer, 12)
        await consumer.commit({partition: (7, "seven")})
        assert await consumer.committed(partition) == 7
    async with consumer_of(broker, topic, group=group, enable_auto_commit=False) as consumer:
        assert [message.offset for message in await take(consumer, 13)] == list(range(7, 20))


async def test_auto_commit_stores_the_position_on_close(broker: Kafka, topic: str, group: str) -> None:
    await create(broker, topic)
    await produce(broker, topic, AWKWARD)
    async with consumer_of(broker, topic, group=group, enable_auto_commit=True) as consumer:
        await take(consumer, len(AWKWARD))
    async with admin_of(broker) as admin:
        offsets = await admin.list_consumer_group_offsets(group)
    assert offsets[TopicPartition(topic, 0)].offset == len(AWKWARD)


async def test_a_pattern_subscription_finds_its_topics(broker: Kafka, topic: str, group: str) -> None:
    await create(broker, f"{topic}-one")
    await create(broker, f"{topic}-two")
    await produce(broker, f"{topic}-one", AWKWARD[:1])
    await produce(broker, f"{topic}-two", AWKWARD[:1])
    consumer = consumer_of(broker, group=group)
    consumer.subscribe(pattern=f"^{topic}-(one|two)$")
    async with consumer:
        assert {message.topic for message in await take(consumer, 2)} == {f"{topic}-one", f"{topic}-two"}


async def test_admin_creates_alters_and_deletes_topics(broker: Kafka, topic: str) -> None:
    await create(broker, topic, partitions=2)
    async with admin_of(broker) as admin:
        duplicate = await admin.create_topics([NewTopic(topic, 1, 1)])
        assert duplicate.topic_errors[0][1] == TopicAlreadyExistsError.errno
        await admin.create_partitions({topic: NewPartitions(4)})
        await_topics(broker.bootstrap, topic, partitions=4)
        (described,) = await admin.describe_topics([topic])
        assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1, 2, 3]
        (response,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        assert "retention.ms" in {entry[0] for entry in response.resources[0][4]}
        await admin.delete_topics([topic])
        await_topics(broker.bootstrap, topic, partitions=0)
        assert topic not in await admin.list_topics()
