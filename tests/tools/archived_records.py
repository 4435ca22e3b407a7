"""Records that are written with acks=all and read again by confluent-kafka, to be compared one by one."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.support.waiting import PATIENCE_S

Records = list[tuple[int, bytes | None, int]]
"""Offset, value, timestamp of each."""


def produced(bootstrap: str, topic: str, count: int, partition: int = 0) -> Records:
    """Write `count` records of about 110 bytes; gives what was acknowledged, in order."""
    found: Records = []

    def delivered(error: object, message: object) -> None:
        assert error is None, error
        found.append(_record(message))

    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 40}
    )
    for number in range(count):
        producer.produce(topic, b"%08d" % number + bytes(100), partition=partition, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return sorted(found)


def consumed(bootstrap: str, topic: str, partition: int = 0, offset: int = 0) -> Records:
    """What there is from an offset on."""
    never = {"group.id": "reader", "auto.offset.reset": "error", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, "enable.partition.eof": True, **never})
    consumer.assign([TopicPartition(topic, partition, offset)])
    found: Records = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"no answer after {len(found)} records"
            if (error := message.error()) is None:
                found.append(_record(message))
            elif error.name() == "_PARTITION_EOF":
                return found
            else:
                assert error.retriable(), error
    finally:
        consumer.close()


def _record(message: object) -> tuple[int, bytes | None, int]:
    return message.offset(), message.value(), message.timestamp()[1]  # type: ignore[attr-defined]
