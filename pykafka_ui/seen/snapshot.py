"""What the sampler knows of a cluster at one moment. Immutable, so pages read it without a lock."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property

from broker.client.admin_types import LogDir
from broker.client.cluster_metadata import Node
from broker.client.committed_offsets import CommittedOffset
from broker.client.group_descriptions import GroupLag
from broker.protocol.archive_status import ArchiveStatus
from broker.protocol.topic_partition import TopicPartition

_KINDS = {
    re.compile("pykafka load "): "load",
    re.compile("pykafka stream"): "stream",
    re.compile(r"pykafka write|\d+ [DW] \d+ \d+/\d+ "): "exactly-once write",
}
"""How the text begins that the Spark connector commits with offsets: loads, streams that read, and streams that write.

The offsets of those that write are numbers of batches.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """`start`, `end` and `size` (bytes of the leader's log) are -1 while they are not known. `archived`: bytes in the
    archive, 0 without one; None if its leader does not know."""

    index: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    start: int = -1
    end: int = -1
    size: int = -1
    archived: int | None = 0

    @property
    def records(self) -> int | None:
        """Offsets between start and end; None if not known. With compaction or transactions there are fewer records."""
        return max(self.end - self.start, 0) if self.start >= 0 and self.end >= 0 else None

    @property
    def state(self) -> str:
        if self.leader < 0:
            return "no leader"
        return "in sync" if len(self.isr) >= len(self.replicas) else "under-replicated"


def sum_of(counts: Iterable[int | None]) -> int | None:
    """None if one of them is."""
    found = list(counts)
    return None if None in found else sum(filter(None, found))


@dataclasses.dataclass(frozen=True)
class Topic:
    name: str
    internal: bool
    partitions: tuple[Partition, ...]

    @cached_property
    def records(self) -> int | None:
        """None if those of one partition are not known."""
        return sum_of(one.records for one in self.partitions)

    @cached_property
    def size(self) -> int:
        """Bytes of the leaders' logs; -1 if not known."""
        return sum(one.size for one in self.partitions) if all(one.size >= 0 for one in self.partitions) else -1

    @cached_property
    def archived(self) -> int | None:
        """Bytes in the archive; None if not known. What is also on the leaders' disks is in both."""
        return sum_of(one.archived for one in self.partitions)

    @cached_property
    def replication(self) -> int:
        return max((len(one.replicas) for one in self.partitions), default=0)

    @cached_property
    def not_in_sync(self) -> int:
        return sum(one.state != "in sync" for one in self.partitions)

    def count_of(self, state: str) -> int:
        """Partitions in that state."""
        return sum(one.state == state for one in self.partitions)


@dataclasses.dataclass(frozen=True)
class Group:
    """A consumer group with its committed offsets, and the partitions that are assigned to its members.

    `lags` are of partitions with a committed offset that still exist, as Kafka's tool counts. `unread` are the records
    in the log of assigned partitions without a committed offset. Where their reader begins, only its auto.offset.reset
    says; without them a group that has committed in one of ten partitions seems to have read all.
    """

    id: str
    state: str
    protocol_type: str
    offsets: Mapping[TopicPartition, CommittedOffset] = dataclasses.field(default_factory=dict)
    lags: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    type: str = ""
    """Of its protocol: classic, consumer (KIP-848) or share; "" from brokers that are too old to tell."""
    members: int = 0
    """-1 if they are not known: this client may not see them, or another API tells."""
    assigned: frozenset[TopicPartition] = frozenset()
    unread: Mapping[TopicPartition, int] = dataclasses.field(default_factory=dict)
    beyond: frozenset[TopicPartition] = frozenset()
    """Where a committed offset lies beyond the end of the log: it was cut, or its topic was made again. Nothing of a
    new log is read until it is as long; its lag is 0."""
    told: Mapping[TopicPartition, int | None] = dataclasses.field(default_factory=dict)
    """The lags that brokers tell of a share group, which finishes records in any order; None where they do not know."""

    @property
    def is_share(self) -> bool:
        return self.type.lower() == "share"

    @cached_property
    def behind(self) -> GroupLag:
        return self._behind_in(self.partitions)

    def _behind_in(self, partitions: Iterable[TopicPartition]) -> GroupLag:
        return GroupLag.of(
            (True, self.lags.get(tp)) if tp in self.offsets else (False, self.unread.get(tp)) for tp in partitions
        )

    @cached_property
    def partitions(self) -> list[TopicPartition]:
        """Those with a committed offset or a member, sorted."""
        return sorted(self.offsets.keys() | self.assigned)

    @cached_property
    def uncommitted(self) -> list[TopicPartition]:
        """Those that a member reads without a committed offset, sorted."""
        return sorted(self.assigned - self.offsets.keys())

    @cached_property
    def topics(self) -> list[str]:
        return sorted({tp.topic for tp in self.partitions})

    def behind_by_topic(self) -> dict[str, GroupLag]:
        found: dict[str, list[TopicPartition]] = {}
        for tp in self.partitions:
            found.setdefault(tp.topic, []).append(tp)
        return {topic: self._behind_in(partitions) for topic, partitions in found.items()}

    @property
    def has_lag(self) -> bool:
        """Whether its offsets are positions in a log."""
        return self.kind != "exactly-once write"

    @cached_property
    def kind(self) -> str:
        """What commits the offsets, as far as it can be told."""
        texts = {one.metadata for one in self.offsets.values() if one.metadata}
        for beginning, kind in _KINDS.items():
            if any(map(beginning.match, texts)):
                return kind
        if self.protocol_type == "consumer":
            return "consumer"
        return "offsets only" if not self.protocol_type else self.protocol_type


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A cluster at `at_ms`, which is 0 while nothing was seen.

    `error` is why the last look failed; the rest is then of the look before. `others`: the same of the looks at sizes
    and groups.
    """

    at_ms: int = 0
    cluster_id: str = ""
    controller: int = -1
    brokers: tuple[Node, ...] = ()
    topics: Mapping[str, Topic] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, Group] = dataclasses.field(default_factory=dict)
    disks: tuple[LogDir, ...] = ()
    """The data directories of the brokers, without their partitions; () while they are not known."""
    error: str = ""
    others: tuple[str, ...] = ()
    unseen: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """`groups`, `sizes` → why nothing is known of them: this client may not see them, or nobody has looked yet."""
    archives: tuple[ArchiveStatus, ...] = ()
    """Of the archived partitions of brokers that tell it, without offsets."""
    certificates: Mapping[int, float] = dataclasses.field(default_factory=dict)
    """Broker → when its TLS certificate ends, in Unix seconds, as far as they are known."""

    @cached_property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        return {TopicPartition(name, one.index): one for name, topic in self.topics.items() for one in topic.partitions}

    @cached_property
    def under_replicated(self) -> int:
        return sum(one.state == "under-replicated" for one in self.partitions.values())

    @cached_property
    def leaderless(self) -> int:
        return sum(one.leader < 0 for one in self.partitions.values())

    @cached_property
    def led(self) -> Counter[int]:
        """Broker → partitions that it leads."""
        return Counter(one.leader for one in self.partitions.values())

    @cached_property
    def misled(self) -> Counter[int]:
        """Broker → partitions that it should lead, as their first replica, and does not."""
        return Counter(
            one.replicas[0] for one in self.partitions.values() if one.replicas and one.leader != one.replicas[0]
        )

    @cached_property
    def away(self) -> list[int]:
        """Brokers that have replicas, and that the cluster does not list: they are down."""
        return sorted(self.kept.keys() - {one.id for one in self.brokers})

    @cached_property
    def kept(self) -> Counter[int]:
        """Broker → partitions that it has a replica of."""
        return Counter(replica for one in self.partitions.values() for replica in one.replicas)

    def readers_of(self, topic: str) -> list[tuple[Group, GroupLag]]:
        """The groups that have offsets or members of a topic, by id, and how far they are behind there."""
        return self._readers.get(topic, [])

    @cached_property
    def _readers(self) -> Mapping[str, list[tuple[Group, GroupLag]]]:
        found: dict[str, list[tuple[Group, GroupLag]]] = {}
        for _, group in sorted(self.groups.items()):
            for topic, behind in group.behind_by_topic().items():
                found.setdefault(topic, []).append((group, behind))
        return found
