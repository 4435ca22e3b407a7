"""Kafka's records of consumer groups (KIP-848) in the `__consumer_offsets` topic, as typed values.

The key's version says what the value is. Values are flexible, version 0 (`ConsumerGroup*Key/Value.json`). Version 4 of
the key (partition metadata) is of Kafka 4.0 only and is skipped: the hash in the group epoch replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition
from broker.coordinator.record_format import MalformedRecord, RecordFormat
from broker.protocol.entities import Bytes, Int8, Int32, Int64, String, Uuid, Wire


class RecordKind(IntEnum):
    """The version of a key. In this order the records of a group are applied."""

    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_NAMED = (RecordKind.MEMBER, RecordKind.TARGET, RecordKind.CURRENT, RecordKind.REGEX)


class ConsumerGroupKey(NamedTuple):
    """The key of one record. `name` is a member's id or a pattern, and empty for what is of the whole group."""

    kind: RecordKind
    group_id: String
    name: Annotated[String, Wire(versions=_NAMED)] = ""


class MemberState(IntEnum):
    """How far a member is on its way to its target. A state of a later Kafka is read as UNKNOWN."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first. It keeps its epoch meanwhile."""
    UNRELEASED = 2
    """It waits for partitions that other members have not given up yet."""
    UNKNOWN = 127

    @classmethod
    def _missing_(cls, value: object) -> MemberState:
        return cls.UNKNOWN


def by_topic_id(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """The partitions of each topic, in order."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return {topic_id: sorted(topics[topic_id]) for topic_id in sorted(topics)}


class _TopicPartitions(NamedTuple):
    topic_id: Uuid
    partitions: tuple[Int32, ...]
    assignment_epochs: Annotated[tuple[Int32, ...] | None, Wire(tag=0)] = None


def _with_epochs(topics: Iterable[_TopicPartitions], default_epoch: int) -> dict[TopicIdPartition, int]:
    """A Kafka before 4.3 stores no assignment epochs: the member's own stands for them."""
    partitions = {}
    for topic_id, numbers, stored in topics:
        epochs = stored or [default_epoch] * len(numbers)
        if len(epochs) != len(numbers):
            raise MalformedRecord(f"{len(epochs)} assignment epochs of {len(numbers)} partitions")
        partitions.update({TopicIdPartition(topic_id, n): epoch for n, epoch in zip(numbers, epochs, strict=True)})
    return partitions


def _partitions(topics: Iterable[_TopicPartitions]) -> Partitions:
    return frozenset(TopicIdPartition(topic_id, number) for topic_id, numbers, _ in topics for number in numbers)


def _rows(partitions: Mapping[TopicIdPartition, int] | Partitions) -> list[tuple[UUID, list[int], list[int] | None]]:
    epochs = partitions if isinstance(partitions, Mapping) else None
    return [
        (topic_id, numbers, None if epochs is None else [epochs[TopicIdPartition(topic_id, n)] for n in numbers])
        for topic_id, numbers in by_topic_id(partitions).items()
    ]


_Epochs = Annotated[
    Mapping[TopicIdPartition, int],
    Wire(stored=tuple[_TopicPartitions, ...], read=_with_epochs, write=_rows, beside="epoch"),
]
StoredPartitions = Annotated[Partitions, Wire(stored=tuple[_TopicPartitions, ...], read=_partitions, write=_rows)]
Strings = Annotated[frozenset[str], Wire(stored=tuple[String, ...], read=frozenset, write=sorted)]


class GroupEpoch(NamedTuple):
    epoch: Int32
    metadata_hash: Annotated[Int64, Wire(tag=0)] = 0


class TargetEpoch(NamedTuple):
    """The group epoch whose targets are stored, and when they were computed (ms since the epoch)."""

    epoch: Int32
    timestamp_ms: Annotated[Int64, Wire(tag=0)] = 0


class Target(NamedTuple):
    """What a member shall have."""

    partitions: StoredPartitions


class _Protocol(NamedTuple):
    name: String
    metadata: Bytes


@dataclass(frozen=True, slots=True)
class ClassicMembership:
    """What a member of the classic protocol said in its JoinGroup. `protocols` are (name, subscription)."""

    session_timeout_ms: Int32
    protocols: Annotated[tuple[tuple[str, bytes], ...], Wire(stored=tuple[_Protocol, ...])]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member said of itself. Times are in ms."""

    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topic_names: Strings = frozenset()
    topic_regex: Annotated[str, Wire(stored=String | None, read=lambda regex: regex or "")] = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    classic: Annotated[ClassicMembership | None, Wire(tag=0)] = None
    """None for a member of the consumer protocol."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """Where a member is. Both maps have for each partition the epoch at which the member got it (KIP-1251)."""

    epoch: Int32 = 0
    previous_epoch: Int32 = 0
    state: Annotated[MemberState, Wire(stored=Int8, read=MemberState)] = MemberState.STABLE
    assigned: _Epochs = field(default_factory=dict)
    revoking: _Epochs = field(default_factory=dict)
    """What it was told to give up, and may still have."""


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a pattern matched. `version` is of the cluster's metadata, which we do not number: 0."""

    topics: Strings
    timestamp_ms: Int64
    version: Annotated[Int64, Wire(before="timestamp_ms")] = 0


class ValueFormats:
    """The values of the kinds of key that a kind of group has. Those of one kind are objects of one class."""

    def __init__(self, rows: Mapping[Any, type]) -> None:
        self._of_kind: dict[Any, RecordFormat[Any]] = {
            kind: RecordFormat({0: row}, flexible=0) for kind, row in rows.items()
        }
        self._of_class = {row: self._of_kind[kind] for kind, row in rows.items()}

    def encode(self, value: object) -> bytes:
        """The value of a record: an object of one of the classes, or a target's partitions."""
        stored = Target(value) if isinstance(value, frozenset) else value
        return self._of_class[type(stored)].encode(stored)

    def decode(self, kind: IntEnum, data: bytes) -> Any:
        """The value of a record of this kind, in the type that `encode` takes."""
        value = self._of_kind[kind].decode(data)
        return value.partitions if isinstance(value, Target) else value


_KEYS = RecordFormat(dict.fromkeys(RecordKind, ConsumerGroupKey))
_VALUES = ValueFormats(
    {
        RecordKind.GROUP_EPOCH: GroupEpoch,
        RecordKind.MEMBER: MemberSubscription,
        RecordKind.TARGET_EPOCH: TargetEpoch,
        RecordKind.TARGET: Target,
        RecordKind.CURRENT: CurrentAssignment,
        RecordKind.REGEX: ResolvedRegex,
    }
)
encode_value, decode_value = _VALUES.encode, _VALUES.decode
decode_key = _KEYS.decode_key


def encode_key(key: ConsumerGroupKey) -> bytes:
    return _KEYS.encode(key, key.kind)
