"""Brokers, topics and partitions of the cluster at one moment, as zookeeper/registry.py read them.

Immutable: a change makes a new `ClusterMetadata` (`with_topics`, `without_topics`, …), so that a request handler that
holds one sees one state of the cluster to its end.
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from broker.protocol.topic_names import INTERNAL_TOPICS
from broker.protocol.topic_partition import TopicPartition

NO_LEADER = -1
NO_STATE = -1
"""As the version of a partition's state: the node does not exist yet."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address at which a broker can be reached, `PLAINTEXT://host:9092`."""

    listener: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        return cls(listener, host.strip("[]"), int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """A registered broker, `/brokers/ids/N`. `security_protocols` maps a listener's name to its protocol."""

    broker_id: int
    endpoints: tuple[Endpoint, ...]
    security_protocols: Mapping[str, str] = field(default_factory=lambda: {"PLAINTEXT": "PLAINTEXT"})
    rack: str | None = None
    timestamp_ms: int = 0
    epoch: int = field(default=-1, compare=False)
    """The broker epoch: the transaction that created the node (czxid); -1 while it is not known. It is higher in each
    registration of a broker."""
    features: Mapping[str, int] = field(default_factory=dict)
    """The highest version of each feature that it supports (KIP-584)."""

    @classmethod
    def plaintext(cls, broker_id: int, host: str, port: int, **others: Any) -> BrokerInfo:
        """A broker with the one listener `PLAINTEXT://host:port`."""
        return cls(broker_id, (Endpoint("PLAINTEXT", host, port),), **others)

    @property
    def host(self) -> str:
        """Host of the first plaintext endpoint, else of the first one."""
        return self._default_endpoint.host

    @property
    def port(self) -> int:
        return self._default_endpoint.port

    def endpoint(self, listener: str) -> Endpoint | None:
        """The address of the listener of that name, for clients that connected through it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.listener == listener), None)

    @property
    def _default_endpoint(self) -> Endpoint:
        plaintext = (e for e in self.endpoints if self.security_protocols.get(e.listener) == "PLAINTEXT")
        return next(plaintext, self.endpoints[0])


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
    is_restored: bool = False
    """It was made from an archive, and nothing says yet that a leader had a log of it. With no leader and an empty ISR
    no leader was elected."""

    @property
    def assignment(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """As `TopicRecord.replicas_of`."""
        return self.replicas, self.adding, self.removing

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment that is in progress, or the present ones."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


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
