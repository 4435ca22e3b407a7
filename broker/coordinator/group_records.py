"""Kafka's record formats of the `__consumer_offsets` topic (`OffsetCommitKey/Value.json`,
`GroupMetadataKey/Value.json`), as typed values.

Kafka's tools can read these records, and this module can read Kafka's.

    key    version i16 = 0, 1   group string, topic string, partition i32           → an offset
           version i16 = 2      group string                                        → a group
    offset version i16, offset i64, [leader epoch i32: v3], metadata string, commit timestamp i64,
           [expire timestamp i64: v1]
    group  version i16, protocol type string, generation i32, protocol string?, leader string?,
           [state timestamp i64: v2+], members [id string, [instance id string?: v3], client id string,
           client host string, [rebalance timeout i32: v1+], session timeout i32,
           subscription bytes, assignment bytes]

A string has an i16 length (-1 = null), bytes have an i32 length. A null record value is a tombstone. Offsets are
written as v3, or as v1 if they have an expiry time of their own; groups are written as v3. Version 4 of both values is
read too: it is v3 in flexible encoding (KIP-915: compact lengths, and tagged fields that are skipped). Invalid bytes
raise `MalformedRecord`, never anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from broker.coordinator.record_reader import MAX_STRING_BYTES, MalformedRecord, RecordReader, encode_string

_I16 = Struct(">h")
_I32 = Struct(">i")
_I64 = Struct(">q")
_OFFSET_V3_HEAD = Struct(">hqih")  # version, offset, leader epoch, length of the metadata
_OFFSET_V1_HEAD = Struct(">hqh")  # version, offset, length of the metadata
_TWO_I64 = Struct(">qq")


class OffsetKey(NamedTuple):
    """The key of one committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of one group's membership."""

    group_id: str


class OffsetAndMetadata(NamedTuple):
    """One committed offset. Timestamps are in ms since the epoch, -1 means none."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """One member of a stored generation. Time-outs are in ms."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One stored generation of a group. An empty group has no members."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key under which an offset is stored (version 1)."""
    return b"\x00\x01" + encode_string(group_id) + encode_string(topic) + _I32.pack(partition)


def encode_group_key(group_id: str) -> bytes:
    """The key under which a group's membership is stored (version 2)."""
    return b"\x00\x02" + encode_string(group_id)


def decode_key(data: bytes) -> OffsetKey | GroupKey | None:
    """The key of a record. None for a key version of a later Kafka, which should be skipped."""
    reader = RecordReader(data)
    version = reader.key_version()
    if version > 2:
        return None
    group_id = reader.string()
    key = GroupKey(group_id) if version == 2 else OffsetKey(group_id, reader.string(), reader.i32())
    reader.expect_end()
    return key


def encode_offset(committed: OffsetAndMetadata) -> bytes:
    """The value of an offset: v3, or v1 (without leader epoch, as in Kafka) when it has its own expiry."""
    metadata = committed.metadata.encode()
    if len(metadata) > MAX_STRING_BYTES:
        raise MalformedRecord(f"offset metadata of {len(metadata)} bytes does not fit a record")
    if committed.expire_timestamp >= 0:
        head = _OFFSET_V1_HEAD.pack(1, committed.offset, len(metadata))
        return head + metadata + _TWO_I64.pack(committed.commit_timestamp, committed.expire_timestamp)
    head = _OFFSET_V3_HEAD.pack(3, committed.offset, committed.leader_epoch, len(metadata))
    return head + metadata + _I64.pack(committed.commit_timestamp)


def decode_offset(data: bytes) -> OffsetAndMetadata:
    """Read an offset's value, versions 0 to 4."""
    reader = RecordReader(data)
    version = reader.version(4, flexible=4)
    committed = OffsetAndMetadata(
        offset=reader.i64(),
        leader_epoch=reader.i32() if version >= 3 else -1,
        metadata=reader.string(),
        commit_timestamp=reader.i64(),
        expire_timestamp=reader.i64() if version == 1 else -1,
    )
    reader.tags()
    reader.expect_end()
    return committed


def encode_group(group: GroupMetadata) -> bytes:
    """The value of a group's membership, v3."""
    parts = [
        _I16.pack(3),
        encode_string(group.protocol_type),
        _I32.pack(group.generation_id),
        _nullable_string(group.protocol_name),
        _nullable_string(group.leader),
        _I64.pack(group.state_timestamp_ms),
        _I32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            encode_string(member.member_id),
            _nullable_string(member.group_instance_id),
            encode_string(member.client_id),
            encode_string(member.client_host),
            _I32.pack(member.rebalance_timeout_ms),
            _I32.pack(member.session_timeout_ms),
            _I32.pack(len(member.subscription)),
            member.subscription,
            _I32.pack(len(member.assignment)),
            member.assignment,
        )
    return b"".join(parts)


def decode_group(data: bytes) -> GroupMetadata:
    """Read a group's value, versions 0 to 4. In v0 a member's rebalance time-out is its session time-out."""
    reader = RecordReader(data)
    version = reader.version(4, flexible=4)
    group = GroupMetadata(
        protocol_type=reader.string(),
        generation_id=reader.i32(),
        protocol_name=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=reader.i64() if version >= 2 else -1,
        members=tuple(_decode_member(reader, version) for _ in range(reader.array_length())),
    )
    reader.tags()
    reader.expect_end()
    return group


def _decode_member(reader: RecordReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    timeouts = [reader.i32() for _ in range(2 if version >= 1 else 1)]
    subscription, assignment = reader.blob(), reader.blob()
    reader.tags()
    return MemberMetadata(
        member_id, group_instance_id, client_id, client_host, timeouts[0], timeouts[-1], subscription, assignment
    )


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics of one member's subscription (`ConsumerProtocolSubscription.json`: version i16, topics [string], …).

    None if the subscription cannot be read. The rest of it means nothing to the coordinator.
    """
    reader = RecordReader(metadata)
    try:
        if reader.i16() < 0:
            return None
        return frozenset(reader.string() for _ in range(reader.array_length()))
    except MalformedRecord:
        return None


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else encode_string(text)
