"""Kafka's records of share groups (KIP-932) in the `__consumer_offsets` topic, as typed values.

Kafka's tools can read these records, and this module can read Kafka's (`ShareGroup*Key/Value.json`). As for consumer
groups (`modern_group_records`), the key's version says what the value is, and values are flexible, version 0.

    10  group id, member id  → ShareSubscription  what the member said of itself
    11  group id             → GroupEpoch         epoch i32, hash of the subscribed topics i64
    12  group id             → TargetEpoch        assignment epoch i32, {0: timestamp i64}
    13  group id, member id  → Partitions         [topic id, [partition i32]]: what the member shall have
    14  group id, member id  → ShareAssignment    epochs i32 i32, state i8, assigned as in 13
    15  group id             → StatePartitions    three lists of [topic id, name, [partition i32]], the third without
                                                  partitions: those whose share state is being made, is there, is
                                                  being deleted

Invalid bytes raise `MalformedRecord`, never anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from broker.coordinator.modern_group_messages import Partitions
from broker.coordinator.modern_group_records import (
    GroupEpoch,
    RecordKind,
    TargetEpoch,
    decode_partitions,
    encode_i32s,
    encode_partitions,
    encode_strings,
)
from broker.coordinator.modern_group_records import decode_value as decode_modern
from broker.coordinator.modern_group_records import encode_value as encode_modern
from broker.coordinator.record_reader import RecordReader, encode_string
from broker.protocol.wire import array_length, nullable_string, string

_KEY_VERSION, _EPOCHS, _GROUP = Struct(">h"), Struct(">iib"), Struct(">iq")
_NO_TAGS = b"\0"
_VERSION_0 = b"\0\0"


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
    group_id: str
    member_id: str = ""


@dataclass(frozen=True, slots=True)
class ShareSubscription:
    """What a member said of itself."""

    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ShareAssignment:
    """Where a member is: always stable, because nobody waits for a partition that others have, too."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Partitions = frozenset()


class TopicShares(NamedTuple):
    """Partitions of a topic."""

    name: str
    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class StatePartitions:
    """How far the states of the group's partitions are, by topic id. `deleting` has the topics' names."""

    initializing: Mapping[UUID, TopicShares] = field(default_factory=dict)
    initialized: Mapping[UUID, TopicShares] = field(default_factory=dict)
    deleting: Mapping[UUID, str] = field(default_factory=dict)


def encode_key(key: ShareGroupKey) -> bytes:
    """Raises MalformedRecord if a name is too long."""
    head = _KEY_VERSION.pack(key.kind) + encode_string(key.group_id)
    return head + encode_string(key.member_id) if key.kind in _OF_MEMBERS else head


def decode_key(data: bytes) -> ShareGroupKey | None:
    """The key of a record. None for another version, whose record is not of these."""
    reader = RecordReader(data)
    version = reader.key_version()
    if version not in ShareRecord.__members__.values():
        return None
    kind = ShareRecord(version)
    key = ShareGroupKey(kind, reader.string(), reader.string() if kind in _OF_MEMBERS else "")
    reader.expect_end()
    return key


def encode_value(value: object) -> bytes:
    """The value of a record: one of the types above, or partitions."""
    if isinstance(value, (frozenset, TargetEpoch)):
        return encode_modern(value)
    return _VERSION_0 + _ENCODERS[type(value)](value) + _NO_TAGS


def decode_value(kind: ShareRecord, data: bytes) -> Any:
    """The value of a record of this kind, in the type that `encode_value` takes."""
    if kind in _MODERN:
        return decode_modern(_MODERN[kind], data)
    reader = RecordReader(data)
    reader.version(0, flexible=0)
    value = _DECODERS[kind](reader)
    reader.tags()
    reader.expect_end()
    return value


def _encode_subscription(value: ShareSubscription) -> bytes:
    texts = string(value.client_id, True) + string(value.client_host, True)
    return nullable_string(value.rack_id, True) + texts + encode_strings(value.topic_names)


def _decode_subscription(reader: RecordReader) -> ShareSubscription:
    rack_id, client_id, client_host = reader.nullable_string(), reader.string(), reader.string()
    names = frozenset(reader.string() for _ in range(reader.array_length()))
    return ShareSubscription(rack_id, client_id, client_host, names)


def _decode_group_epoch(reader: RecordReader) -> GroupEpoch:
    return GroupEpoch(reader.i32(), reader.i64())


def _encode_assignment(value: ShareAssignment) -> bytes:
    partitions = encode_partitions(dict.fromkeys(value.assigned, 0), with_epochs=False)
    return _EPOCHS.pack(value.epoch, value.previous_epoch, 0) + partitions


def _decode_assignment(reader: RecordReader) -> ShareAssignment:
    epoch, previous, _state = reader.i32(), reader.i32(), reader.i8()
    return ShareAssignment(epoch, previous, frozenset(decode_partitions(reader, 0)))


def _encode_states(value: StatePartitions) -> bytes:
    parts = []
    for topics in (value.initializing, value.initialized):
        parts.append(array_length(len(topics), True))
        for topic_id, (name, partitions) in sorted(topics.items()):
            parts += topic_id.bytes, string(name, True), encode_i32s(sorted(partitions)), _NO_TAGS
    parts.append(array_length(len(value.deleting), True))
    for topic_id, name in sorted(value.deleting.items()):
        parts += topic_id.bytes, string(name, True), _NO_TAGS
    return b"".join(parts)


def _decode_states(reader: RecordReader) -> StatePartitions:
    initializing, initialized = _decode_shares(reader), _decode_shares(reader)
    deleting = {}
    for _ in range(reader.array_length()):
        topic_id = UUID(bytes=reader.take(16))
        deleting[topic_id] = reader.string()
        reader.tags()
    return StatePartitions(initializing, initialized, deleting)


def _decode_shares(reader: RecordReader) -> dict[UUID, TopicShares]:
    topics = {}
    for _ in range(reader.array_length()):
        topic_id, name = UUID(bytes=reader.take(16)), reader.string()
        topics[topic_id] = TopicShares(name, frozenset(reader.i32() for _ in range(reader.array_length())))
        reader.tags()
    return topics


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    ShareSubscription: _encode_subscription,
    GroupEpoch: lambda value: _GROUP.pack(value.epoch, value.metadata_hash),
    ShareAssignment: _encode_assignment,
    StatePartitions: _encode_states,
}
_DECODERS: dict[ShareRecord, Callable[[RecordReader], object]] = {
    ShareRecord.MEMBER: _decode_subscription,
    ShareRecord.GROUP_EPOCH: _decode_group_epoch,
    ShareRecord.CURRENT: _decode_assignment,
    ShareRecord.STATE_PARTITIONS: _decode_states,
}
_MODERN = {ShareRecord.TARGET_EPOCH: RecordKind.TARGET_EPOCH, ShareRecord.TARGET: RecordKind.TARGET}
