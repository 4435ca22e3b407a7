"""Members of consumer groups by librdkafka, and how an admin sees their groups. Used by tests/compat."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.kafka import Kafka, external_kafka
from tests.support.waiting import eventually

TIMEOUT = 60.0
SESSION_MS = 3_000 if external_kafka() is None else 6_000  # the shortest that Kafka takes by default


class Member:
    """A member of librdkafka that remembers what it was given and what was taken from it."""

    def __init__(self, broker: Kafka, group: str, topic: str, **settings: Any) -> None:
        self.given: list[list[int]] = []
        self.taken: list[list[int]] = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 100,
                "enable.auto.commit": False,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self.consumer.subscribe([topic], on_assign=self._given, on_revoke=self._taken)

    def _given(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.given.append(sorted(partition.partition for partition in partitions))

    def _taken(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.taken.append(sorted(partition.partition for partition in partitions))

    @property
    def has(self) -> set[int]:
        self.consumer.poll(0.02)
        return {partition.partition for partition in self.consumer.assignment()}


def described(admin: AdminClient, group: str) -> Any:
    return admin.describe_consumer_groups([group])[group].result(TIMEOUT)


def share(members: list[Member], partitions: int) -> None:
    """Wait until the members have all partitions between them, each about as many."""

    def shared() -> bool:
        held = [one.has for one in members]
        fair = max(map(len, held)) - min(map(len, held)) <= 1
        return fair and sum(map(len, held)) == partitions == len(set[int]().union(*held))

    eventually(shared, timeout=TIMEOUT)
