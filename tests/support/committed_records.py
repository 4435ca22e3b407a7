"""What a reader of committed data finds in a topic, by Kafka's own C client."""

from __future__ import annotations

from typing import NamedTuple, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition


class CommittedRecord(NamedTuple):
    """One record; `timestamp` in ms, `headers` empty where it has none."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...]


def committed_records(bootstrap: str, topic: str) -> list[CommittedRecord]:
    """All records up to the last stable offset of each partition, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "committed-records",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        left, found = set(partitions), []
        while left:
            message = consumer.poll(30)
            assert message is not None, f"{topic}: nothing comes from partitions {left}"
            error = message.error()
            if error is None:
                found.append(_record(message))
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(message.partition())
        return sorted(found)
    finally:
        consumer.close()


def _record(message: Message) -> CommittedRecord:
    return CommittedRecord(
        cast(int, message.partition()),
        cast(int, message.offset()),
        message.key(),
        message.value(),
        message.timestamp()[1],
        tuple(cast("list[tuple[str, bytes | None]]", message.headers() or [])),
    )


def committed_values(bootstrap: str, topic: str) -> list[bytes]:
    """The values alone, sorted: equal lists mean nothing is missing and nothing is twice."""
    return sorted(record.value or b"" for record in committed_records(bootstrap, topic))
