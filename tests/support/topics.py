"""Topics for the connector's tests, made, filled, changed and deleted through Kafka's own C client."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from tests.support.kafka import await_topics

DEFAULT_REPLICATION = -1  # as many replicas as the cluster gives a topic that does not say


class Topic:
    """A topic on the broker at `bootstrap`; made when constructed."""

    def __init__(self, bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self.create(partitions, **config)

    def create(self, partitions: int = 1, **config: str) -> None:
        """Make it (again, after `delete`); config keys with `_` for `.`. Records stay, whatever their timestamps say:
        a broker that happens to check its retention would take those of long ago in the middle of a test."""
        settings = {"retention.ms": "-1", **{key.replace("_", "."): value for key, value in config.items()}}
        self._admin.create_topics([NewTopic(self.name, partitions, DEFAULT_REPLICATION, config=settings)])[
            self.name
        ].result(30)
        await_topics(self.bootstrap, self.name, partitions=partitions)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)
        await_topics(self.bootstrap, self.name, partitions=0)

    @staticmethod
    def eat(bootstrap: str, topic: str, partition: int, before: int) -> None:
        """Delete the records of a partition before this offset, as retention does."""
        given = TopicPartition(topic, partition, before)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_records([given])[given].result(30)

    @staticmethod
    def configure(bootstrap: str, topic: str, **config: str) -> None:
        """Set config keys, with `_` for `.`."""
        changes = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)

    def grow(self, partitions: int) -> None:
        """Have it that many partitions in all."""
        self._admin.create_partitions([NewPartitions(self.name, partitions)])[self.name].result(30)
        await_topics(self.bootstrap, self.name, partitions=partitions)

    def produce(
        self,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        key: bytes | None = None,
        timestamp: int = 0,
        headers: Sequence[tuple[str, str | bytes | None]] = (),
        codec: str = "none",
    ) -> None:
        """Send to one partition and wait for all acknowledgements. `timestamp` in ms, 0 for now."""
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "log_level": 0})
        for value in values:
            producer.produce(self.name, value, key, partition, delivered, timestamp=timestamp, headers=list(headers))
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failures

    def number(self, count: int, partition: int = 0, *, first: int = 0) -> None:
        """Send `count` records whose value is a number, counting from `first`."""
        self.produce((b"%d" % number for number in range(first, first + count)), partition)
