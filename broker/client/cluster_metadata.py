"""A cluster's metadata: brokers, topics, partitions and their leaders.

cluster.py keeps the newest `Metadata` and replaces it as a whole. The values are immutable and hold no sockets, so they
can be pickled into a Spark plan.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NamedTuple

from broker.errors import BrokerError, ErrorCode
from broker.protocol.messages import field


class Node(NamedTuple):
    """A broker and its advertised address."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        """As in `bootstrap.servers`."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.id} at {self.address}"


class CoordinatorKind(IntEnum):
    """What a broker coordinates; the numbers of FindCoordinator (KIP-98)."""

    GROUP = 0
    TRANSACTION = 1

    def __str__(self) -> str:
        return "group" if self is CoordinatorKind.GROUP else "transactional id"


class PartitionMetadata(NamedTuple):
    """Leader, replicas and ISR of a partition, by broker id; `leader` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class TopicMetadata(NamedTuple):
    """A topic that exists. `topic_id` is None from brokers before KIP-516."""

    name: str
    topic_id: uuid.UUID | None
    internal: bool
    partitions: dict[int, PartitionMetadata]

    def not_before(self, known: TopicMetadata | None) -> TopicMetadata:
        """This topic, with the partitions of `known` where those are newer: a broker may answer with old metadata.

        A topic never loses partitions, and leader epochs only rise (Java's `Metadata` compares them too).
        """
        if known is None or self.topic_id is None or self.topic_id != known.topic_id:
            return self
        newer = {
            index: partition
            for index, partition in self.partitions.items()
            if index not in known.partitions or partition.leader_epoch >= known.partitions[index].leader_epoch
        }
        return self._replace(partitions=known.partitions | newer)


@dataclasses.dataclass(frozen=True)
class Metadata:
    """One response, or several merged. `errors` says why a requested topic is not in `topics`."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Node] = dataclasses.field(default_factory=dict)
    topics: Mapping[str, TopicMetadata] = dataclasses.field(default_factory=dict)
    errors: Mapping[str, ErrorCode] = dataclasses.field(default_factory=dict)

    def updated(self, newer: Metadata, asked: Iterable[str] | None) -> Metadata:
        """Merge `newer`, a response about the topics `asked` (None for all); other topics are kept."""
        topics = {name: topic.not_before(self.topics.get(name)) for name, topic in newer.topics.items()}
        if asked is None:
            return dataclasses.replace(newer, topics=topics)
        asked = set(asked)
        return dataclasses.replace(
            newer,
            topics={n: t for n, t in self.topics.items() if n not in asked} | topics,
            errors={n: e for n, e in self.errors.items() if n not in asked} | dict(newer.errors),
        )


class UnknownTopic(BrokerError):
    """A topic or partition that does not exist, according to new metadata.

    In Kafka UNKNOWN_TOPIC_OR_PARTITION is retriable, because a broker may not have heard of the topic yet. The client
    has asked several brokers before it raises this, so callers need not retry.
    """

    retriable = False

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.message,)


def parse_metadata(body: Any) -> Metadata:
    brokers = {
        int(broker.node_id): Node(int(broker.node_id), broker.host, int(broker.port), field(broker, "rack"))
        for broker in body.brokers
    }
    topics: dict[str, TopicMetadata] = {}
    errors: dict[str, ErrorCode] = {}
    for topic in body.topics:
        if topic.error_code is not ErrorCode.none:
            errors[str(topic.name)] = topic.error_code
        else:
            topics[str(topic.name)] = _parse_topic(topic)
    return Metadata(field(body, "cluster_id"), int(field(body, "controller_id", -1)), brokers, topics, errors)


def _parse_topic(topic: Any) -> TopicMetadata:
    topic_id = field(topic, "topic_id")
    partitions = {
        int(p.partition_index): PartitionMetadata(
            int(p.leader_id),
            int(field(p, "leader_epoch", -1)),
            tuple(map(int, p.replica_nodes)),
            tuple(map(int, p.isr_nodes)),
        )
        for p in sorted(topic.partitions, key=lambda p: int(p.partition_index))
    }
    return TopicMetadata(
        str(topic.name), topic_id if topic_id else None, bool(field(topic, "is_internal", False)), partitions
    )
