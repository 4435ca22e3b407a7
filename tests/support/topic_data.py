"""A topic with known content, for tests that prove that what comes out is what went in.

Records of a partition are numbered by offset and their key and value follow from it, so that any row can be checked
without keeping what was sent. Produced with Kafka's own C client, round robin over the partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka import await_markers, await_topics
from tests.support.topics import DEFAULT_REPLICATION


def transact(bootstrap: str, topic: str, *ends: str, count: int = 10) -> Producer:
    """A transaction of `count` records for each of `ends`: commit, abort, or open, which the caller may end by the
    producer that is given back."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{ends}", "log_level": 0})
    producer.init_transactions(30)
    for end in ends:
        producer.begin_transaction()
        for number in range(count):
            producer.produce(topic, str(number), partition=0)
        assert producer.flush(30) == 0
        if end != "open":
            {"commit": producer.commit_transaction, "abort": producer.abort_transaction}[end](30)
    if "open" not in ends:
        await_markers(bootstrap, topic)
    return producer


class TopicData:
    """Creates the topic; `produce` adds to it."""

    def __init__(self, bootstrap: str, topic: str, *, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.topic = topic
        self.ends = [0] * partitions
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(topic, partitions, DEFAULT_REPLICATION)])[topic].result(30)
        await_topics(bootstrap, topic, partitions=partitions)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})

    def produce(self, count: int, headers: Sequence[tuple[str, bytes]] | None = None) -> None:
        """Add `count` records, spread evenly, and wait until all are acknowledged."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                failures.append(error)

        for number in range(count):
            partition = number % len(self.ends)
            key, value = self.record(partition, self.ends[partition])
            self.ends[partition] += 1
            self._producer.produce(
                self.topic, value, key, partition, headers=list(headers or ()), on_delivery=delivered
            )
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        assert not failures

    @staticmethod
    def record(partition: int, offset: int) -> tuple[bytes, bytes]:
        """Key and value of the record there."""
        return f"key-{partition}".encode(), f"value-{partition}-{offset}".encode()

    def positions(self) -> list[tuple[str, int, int]]:
        """(topic, partition, offset) of every record, sorted."""
        return [(self.topic, partition, offset) for partition, end in enumerate(self.ends) for offset in range(end)]
