"""Brokers, topics and partitions of the cluster at one moment, as `Registry.load_metadata` read them.

Immutable: a change makes a new `ClusterMetadata` (`with_topics`, `without_topics`, …), so that a request handler that
holds one sees one state of the cluster to its end.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition
from broker.zookeeper.znodes import NO_STATE, BrokerInfo, Endpoint, PartitionState, TopicRecord

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition's leader (NO_LEADER when it has none), leader epoch, replicas (preferred leader first) and ISR."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    version: int = NO_STATE
    """Version of the state's node, over which the next state is written."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment adds (KIP-455). They are among `replicas`."""
    removing: tuple[int, ...] = ()
    """Replicas that a reassignment removes at its end. They are among `replicas` until then."""

    @property
    def assignment(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """As `TopicRecord.replicas_of`."""
        return self.replicas, self.adding, self.removing

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment that is in progress, or the present ones."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @classmethod
    def of(cls, record: TopicRecord, partition: int, state: PartitionState | None) -> PartitionInfo:
        """`state` is None while no leader has been written."""
        replicas, adding, removing = record.replicas_of(partition)
        if state is None:
            return cls(NO_LEADER, 0, replicas, (), adding=adding, removing=removing)
        return cls(state.leader, state.leader_epoch, replicas, state.isr, state.version, adding, removing)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, its partitions in order, and the settings that override the broker's."""

    name: str
    topic_id: uuid.UUID
    partitions: Mapping[int, PartitionInfo]
    config: Mapping[str, str] = field(default_factory=dict)
    encoded: dict[Hashable, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of api/metadata.py: the encoded responses about this topic."""

    @property
    def is_internal(self) -> bool:
        """Whether it belongs to the brokers: clients may read it, and not write, delete or auto-create it."""
        return self.name in INTERNAL_TOPICS

    @classmethod
    def of(cls, record: TopicRecord, states: Mapping[TopicPartition, PartitionState]) -> Topic:
        partitions = {
            tp.partition: PartitionInfo.of(record, tp.partition, states.get(tp)) for tp in record.partitions()
        }
        return cls(record.name, record.topic_id, partitions, record.config)


@dataclass(frozen=True)
class ClusterMetadata:
    """`controller_id` is -1 while there is none."""

    cluster_id: str
    controller_id: int = -1
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, Topic] = field(default_factory=dict)

    @functools.cached_property
    def topic_names(self) -> Mapping[uuid.UUID, str]:
        """Names by id. Computed on first use, because topics may be created by the thousand."""
        return {topic.topic_id: name for name, topic in self.topics.items()}

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        name = self.topic_names.get(topic_id)
        return self.topics[name] if name is not None else None

    def partition(self, tp: TopicPartition) -> PartitionInfo | None:
        topic = self.topics.get(tp.topic)
        return topic.partitions.get(tp.partition) if topic else None

    def endpoints(self, listener: str) -> Mapping[int, Endpoint]:
        """Address of each broker that has the listener of that name."""
        found = ((broker_id, broker.endpoint(listener)) for broker_id, broker in self.brokers.items())
        return {broker_id: endpoint for broker_id, endpoint in found if endpoint is not None}

    def with_topics(self, topics: Iterable[Topic]) -> ClusterMetadata:
        """With topics added or replaced."""
        return dataclasses.replace(self, topics={**self.topics, **{topic.name: topic for topic in topics}})

    def with_partitions(self, partitions: Mapping[TopicPartition, PartitionInfo]) -> ClusterMetadata:
        """With other states of partitions that it has."""
        changed: dict[str, dict[int, PartitionInfo]] = {}
        for tp, info in partitions.items():
            changed.setdefault(tp.topic, dict(self.topics[tp.topic].partitions))[tp.partition] = info
        return self.with_topics(
            dataclasses.replace(self.topics[name], partitions=infos) for name, infos in changed.items()
        )

    def without_topics(self, names: Iterable[str]) -> ClusterMetadata:
        gone = frozenset(names)
        return dataclasses.replace(self, topics={name: t for name, t in self.topics.items() if name not in gone})

    def with_controller(self, controller_id: int) -> ClusterMetadata:
        return dataclasses.replace(self, controller_id=controller_id)
