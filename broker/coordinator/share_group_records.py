"""Kafka's records of share groups (KIP-932) in the `__consumer_offsets` topic, as typed values.

As for consumer groups (`modern_group_records`), the key's version says what the value is, and values are flexible,
version 0 (`ShareGroup*Key/Value.json`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated, NamedTuple
from uuid import UUID

from broker.coordinator.modern_group_records import StoredPartitions, Strings, Target, TargetEpoch, ValueFormats
from broker.coordinator.record_format import RecordFormat
from broker.protocol.entities import Int8, Int32, Int64, String, Uuid, Wire


class ShareRecord(IntEnum):
    """The version of a key."""

    MEMBER = 10
    GROUP_EPOCH = 11
    TARGET_EPOCH = 12
    TARGET = 13
    CURRENT = 14
    STATE_PARTITIONS = 15


_OF_MEMBERS = (ShareRecord.MEMBER, ShareRecord.TARGET, ShareRecord.CURRENT)


class ShareGroupKey(NamedTuple):
    """The key of one record. `member_id` is empty for what is of the whole group."""

    kind: ShareRecord
    group_id: String
    member_id: Annotated[String, Wire(versions=_OF_MEMBERS)] = ""


class GroupEpoch(NamedTuple):
    epoch: Int32
    metadata_hash: Int64 = 0


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """What a member said of itself."""

    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topic_names: Strings = frozenset()


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """Where a member is: always stable, because nobody waits for a partition that others have, too."""

    epoch: Int32 = 0
    previous_epoch: Int32 = 0
    assigned: StoredPartitions = frozenset()
    state: Annotated[Int8, Wire(before="assigned")] = 0


class TopicShares(NamedTuple):
    """Partitions of a topic."""

    name: str
    partitions: frozenset[int]


class _StoredShares(NamedTuple):
    topic_id: Uuid
    name: String
    partitions: tuple[Int32, ...]


class _DeletedTopic(NamedTuple):
    topic_id: Uuid
    name: String


def _shares(rows: Collection[_StoredShares]) -> dict[UUID, TopicShares]:
    return {topic_id: TopicShares(name, frozenset(partitions)) for topic_id, name, partitions in rows}


def _share_rows(topics: Mapping[UUID, TopicShares]) -> list[tuple[UUID, str, list[int]]]:
    return [(topic_id, name, sorted(partitions)) for topic_id, (name, partitions) in sorted(topics.items())]


_Shares = Annotated[Mapping[UUID, TopicShares], Wire(stored=tuple[_StoredShares, ...], read=_shares, write=_share_rows)]
_Deleted = Annotated[
    Mapping[UUID, str], Wire(stored=tuple[_DeletedTopic, ...], read=dict, write=lambda topics: sorted(topics.items()))
]


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """How far the states of the group's partitions are, by topic id. `deleting` has the topics' names."""

    initializing: _Shares = field(default_factory=dict)
    initialized: _Shares = field(default_factory=dict)
    deleting: _Deleted = field(default_factory=dict)


_KEYS = RecordFormat(dict.fromkeys(ShareRecord, ShareGroupKey))
_VALUES = ValueFormats(
    {
        ShareRecord.MEMBER: ShareSubscription,
        ShareRecord.GROUP_EPOCH: GroupEpoch,
        ShareRecord.TARGET_EPOCH: TargetEpoch,
        ShareRecord.TARGET: Target,
        ShareRecord.CURRENT: ShareAssignment,
        ShareRecord.STATE_PARTITIONS: StatePartitions,
    }
)
encode_value, decode_value = _VALUES.encode, _VALUES.decode
decode_key = _KEYS.decode_key


def encode_key(key: ShareGroupKey) -> bytes:
    return _KEYS.encode(key, key.kind)
