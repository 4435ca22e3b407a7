"""Kafka's records of consumer groups (KIP-848) in the `__consumer_offsets` topic, as typed values.

Kafka's tools can read these records, and this module can read Kafka's (`ConsumerGroup*Key/Value.json`). The key's
version, an i16, says what the value is. Strings of keys have an i16 length; values are flexible, version 0.

    3  group id              → GroupEpoch           epoch i32, {0: hash of the subscribed topics i64}
    5  group id, member id   → MemberSubscription   what the member said of itself, {0: of a classic member}
    6  group id              → TargetEpoch          assignment epoch i32, {0: timestamp i64}
    7  group id, member id   → Partitions           [topic id, [partition i32]]: what the member shall have
    8  group id, member id   → CurrentAssignment    epochs i32 i32, state i8, assigned and revoking as in 7, each
                                                    with {0: assignment epochs [i32]} (KIP-1251)
    16 group id, pattern     → ResolvedRegex        [topic string], version i64, timestamp i64

Version 4 (partition metadata) is of Kafka 4.0 only and is skipped: the hash in 3 replaces it. A null value is a
tombstone. Invalid bytes raise `MalformedRecord`, never anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Any, NamedTuple
from uuid import UUID

from broker.coordinator.modern_group_messages import Partitions, TopicIdPartition
from broker.coordinator.record_reader import MalformedRecord, RecordReader, encode_string
from broker.protocol.wire import array_length, nullable_string, string, unsigned_varint

_I8, _I16, _I32, _I64 = Struct(">b"), Struct(">h"), Struct(">i"), Struct(">q")
_CURRENT_HEAD = Struct(">iib")

_NO_TAGS = b"\0"
_VERSION_0 = b"\0\0"


class RecordKind(IntEnum):
    """The version of a key. In this order the records of a group are applied."""

    GROUP_EPOCH = 3
    MEMBER = 5
    TARGET_EPOCH = 6
    TARGET = 7
    CURRENT = 8
    REGEX = 16


_OF_GROUP = (RecordKind.GROUP_EPOCH, RecordKind.TARGET_EPOCH)


class ConsumerGroupKey(NamedTuple):
    """The key of one record. `name` is a member's id or a pattern, and empty for what is of the whole group."""

    kind: RecordKind
    group_id: str
    name: str = ""


class MemberState(IntEnum):
    """How far a member is on its way to its target. A state of a later Kafka is read as UNKNOWN."""

    STABLE = 0
    UNREVOKED = 1
    """It must give up partitions first. It keeps its epoch meanwhile."""
    UNRELEASED = 2
    """It waits for partitions that other members have not given up yet."""
    UNKNOWN = 127


class GroupEpoch(NamedTuple):
    epoch: int
    metadata_hash: int = 0


class TargetEpoch(NamedTuple):
    """The group epoch whose targets are stored, and when they were computed (ms since the epoch)."""

    epoch: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClassicMembership:
    """What a member of the classic protocol said in its JoinGroup. `protocols` are (name, subscription)."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What a member said of itself. Times are in ms."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMembership | None = None
    """None for a member of the consumer protocol."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """Where a member is. Both maps have for each partition the epoch at which the member got it (KIP-1251)."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    revoking: Mapping[TopicIdPartition, int] = field(default_factory=dict)
    """What it was told to give up, and may still have."""


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that a pattern matched. `version` is of the cluster's metadata, which we do not number: 0."""

    topics: frozenset[str]
    timestamp_ms: int
    version: int = 0


def encode_key(key: ConsumerGroupKey) -> bytes:
    """Raises MalformedRecord if a name is too long."""
    head = _I16.pack(key.kind) + encode_string(key.group_id)
    return head if key.kind in _OF_GROUP else head + encode_string(key.name)


def decode_key(data: bytes) -> ConsumerGroupKey | None:
    """The key of a record. None for another version, whose record is not of these."""
    reader = RecordReader(data)
    version = reader.key_version()
    if version not in RecordKind.__members__.values():
        return None
    kind = RecordKind(version)
    key = ConsumerGroupKey(kind, reader.string(), "" if kind in _OF_GROUP else reader.string())
    reader.expect_end()
    return key


def encode_value(value: object) -> bytes:
    """The value of a record: one of the types above, or partitions."""
    if isinstance(value, frozenset):
        return _VERSION_0 + encode_partitions(dict.fromkeys(value, 0), with_epochs=False) + _NO_TAGS
    return _VERSION_0 + _ENCODERS[type(value)](value)


def decode_value(kind: RecordKind, data: bytes) -> Any:
    """The value of a record of this kind, in the type that `encode_value` takes."""
    reader = RecordReader(data)
    reader.version(0, flexible=0)
    value = _DECODERS[kind](reader)
    reader.expect_end()
    return value


def _encode_group_epoch(value: GroupEpoch) -> bytes:
    return _I32.pack(value.epoch) + _tagged(_I64.pack(value.metadata_hash) if value.metadata_hash else b"")


def _decode_group_epoch(reader: RecordReader) -> GroupEpoch:
    epoch = reader.i32()
    return GroupEpoch(epoch, _tagged_i64(reader))


def _encode_target_epoch(value: TargetEpoch) -> bytes:
    return _I32.pack(value.epoch) + _tagged(_I64.pack(value.timestamp_ms) if value.timestamp_ms else b"")


def _decode_target_epoch(reader: RecordReader) -> TargetEpoch:
    epoch = reader.i32()
    return TargetEpoch(epoch, _tagged_i64(reader))


def _encode_member(value: MemberSubscription) -> bytes:
    parts = [
        nullable_string(value.instance_id, True),
        nullable_string(value.rack_id, True),
        string(value.client_id, True),
        string(value.client_host, True),
        encode_strings(value.topic_names),
        string(value.topic_regex, True),
        _I32.pack(value.rebalance_timeout_ms),
        nullable_string(value.server_assignor, True),
    ]
    classic = b""
    if value.classic is not None:
        # A nullable struct in a tagged field begins with 1.
        classic = b"\1" + _I32.pack(value.classic.session_timeout_ms)
        classic += array_length(len(value.classic.protocols), True)
        for name, metadata in value.classic.protocols:
            classic += string(name, True) + unsigned_varint(len(metadata) + 1) + metadata + _NO_TAGS
        classic += _NO_TAGS
    return b"".join(parts) + _tagged(classic)


def _decode_member(reader: RecordReader) -> MemberSubscription:
    return MemberSubscription(
        instance_id=reader.nullable_string(),
        rack_id=reader.nullable_string(),
        client_id=reader.string(),
        client_host=reader.string(),
        topic_names=frozenset(reader.string() for _ in range(reader.array_length())),
        topic_regex=reader.nullable_string() or "",
        rebalance_timeout_ms=reader.i32(),
        server_assignor=reader.nullable_string(),
        classic=_decode_classic(reader.tags().get(0)),
    )


def _decode_classic(data: bytes | None) -> ClassicMembership | None:
    if not data:
        return None
    reader = RecordReader(data, is_flexible=True)
    if reader.i8() < 0:
        return None
    session_timeout_ms, protocols = reader.i32(), []
    for _ in range(reader.array_length()):
        protocols.append((reader.string(), reader.blob()))
        reader.tags()
    reader.tags()
    reader.expect_end()
    return ClassicMembership(session_timeout_ms, tuple(protocols))


def _decode_target(reader: RecordReader) -> Partitions:
    target = frozenset(decode_partitions(reader, 0))
    reader.tags()
    return target


def _encode_current(value: CurrentAssignment) -> bytes:
    head = _CURRENT_HEAD.pack(value.epoch, value.previous_epoch, value.state)
    return head + encode_partitions(value.assigned) + encode_partitions(value.revoking) + _NO_TAGS


def _decode_current(reader: RecordReader) -> CurrentAssignment:
    epoch, previous, state = reader.i32(), reader.i32(), reader.i8()
    assigned, revoking = decode_partitions(reader, epoch), decode_partitions(reader, epoch)
    reader.tags()
    known = state in MemberState.__members__.values()
    return CurrentAssignment(epoch, previous, MemberState(state) if known else MemberState.UNKNOWN, assigned, revoking)


def _encode_regex(value: ResolvedRegex) -> bytes:
    return encode_strings(value.topics) + _I64.pack(value.version) + _I64.pack(value.timestamp_ms) + _NO_TAGS


def _decode_regex(reader: RecordReader) -> ResolvedRegex:
    topics = frozenset(reader.string() for _ in range(reader.array_length()))
    version, timestamp_ms = reader.i64(), reader.i64()
    reader.tags()
    return ResolvedRegex(topics, timestamp_ms, version)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    GroupEpoch: _encode_group_epoch,
    MemberSubscription: _encode_member,
    TargetEpoch: _encode_target_epoch,
    CurrentAssignment: _encode_current,
    ResolvedRegex: _encode_regex,
}
_DECODERS: dict[RecordKind, Callable[[RecordReader], object]] = {
    RecordKind.GROUP_EPOCH: _decode_group_epoch,
    RecordKind.MEMBER: _decode_member,
    RecordKind.TARGET_EPOCH: _decode_target_epoch,
    RecordKind.TARGET: _decode_target,
    RecordKind.CURRENT: _decode_current,
    RecordKind.REGEX: _decode_regex,
}


def by_topic_id(partitions: Iterable[TopicIdPartition]) -> dict[UUID, list[int]]:
    """The partitions of each topic, in order."""
    topics: dict[UUID, list[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, []).append(partition)
    return {topic_id: sorted(topics[topic_id]) for topic_id in sorted(topics)}


def encode_partitions(partitions: Mapping[TopicIdPartition, int], *, with_epochs: bool = True) -> bytes:
    topics = by_topic_id(partitions)
    parts = [array_length(len(topics), True)]
    for topic_id, numbers in topics.items():
        parts += topic_id.bytes, encode_i32s(numbers)
        epochs = [partitions[TopicIdPartition(topic_id, number)] for number in numbers]
        parts.append(_tagged(encode_i32s(epochs) if with_epochs else b""))
    return b"".join(parts)


def decode_partitions(reader: RecordReader, default_epoch: int) -> dict[TopicIdPartition, int]:
    """Partition → assignment epoch. A Kafka before 4.3 stores no such epochs: the member's own stands for them."""
    partitions = {}
    for _ in range(reader.array_length()):
        topic_id = UUID(bytes=reader.take(16))
        numbers = [reader.i32() for _ in range(reader.array_length())]
        epochs = [default_epoch] * len(numbers)
        if tag := reader.tags().get(0):
            tag_reader = RecordReader(tag, is_flexible=True)
            epochs = [tag_reader.i32() for _ in range(tag_reader.array_length())] or epochs
        if len(epochs) != len(numbers):
            raise MalformedRecord(f"{len(epochs)} assignment epochs of {len(numbers)} partitions")
        partitions.update({TopicIdPartition(topic_id, n): epoch for n, epoch in zip(numbers, epochs, strict=True)})
    return partitions


def encode_i32s(numbers: Collection[int]) -> bytes:
    return array_length(len(numbers), True) + b"".join(map(_I32.pack, numbers))


def encode_strings(texts: Iterable[str]) -> bytes:
    encoded = [string(text, True) for text in sorted(texts)]
    return array_length(len(encoded), True) + b"".join(encoded)


def _tagged(content: bytes) -> bytes:
    """The tagged fields of a struct: the field with tag 0, or none if it is empty."""
    return b"\1\0" + unsigned_varint(len(content)) + content if content else _NO_TAGS


def _tagged_i64(reader: RecordReader) -> int:
    tag = reader.tags().get(0)
    return 0 if tag is None else RecordReader(tag).i64()
