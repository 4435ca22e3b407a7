"""Kafka's record formats of the `__consumer_offsets` topic (`OffsetCommitKey/Value.json`,
`GroupMetadataKey/Value.json`), as typed values.

Offsets are written as v3, or as v1 if they have an expiry time of their own; groups are written as v3. Version 4 of
both values is read too: it is v3 in flexible encoding (KIP-915).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

from broker.coordinator.record_format import RecordFormat
from broker.protocol.entities import Bytes, Int32, Int64, String, Wire

_NullAsEmpty = Annotated[bytes, Wire(stored=Bytes | None, read=lambda data: data or b"")]


class OffsetKey(NamedTuple):
    """The key of one committed offset."""

    group_id: String
    topic: String
    partition: Int32


class GroupKey(NamedTuple):
    """The key of one group's membership."""

    group_id: String


class OffsetAndMetadata(NamedTuple):
    """One committed offset. Timestamps are in ms since the epoch, -1 means none."""

    offset: Int64
    leader_epoch: Annotated[Int32, Wire(versions=(3, 4))] = -1
    metadata: String = ""
    commit_timestamp: Int64 = -1
    expire_timestamp: Annotated[Int64, Wire(versions=(1,))] = -1


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """One member of a stored generation. Time-outs are in ms."""

    member_id: String
    group_instance_id: Annotated[String | None, Wire(versions=(3, 4))]
    client_id: String
    client_host: String
    rebalance_timeout_ms: Annotated[Int32, Wire(versions=range(1, 5))]
    session_timeout_ms: Int32
    subscription: _NullAsEmpty
    assignment: _NullAsEmpty


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One stored generation of a group. An empty group has no members."""

    protocol_type: String
    generation_id: Int32
    protocol_name: String | None
    leader: String | None
    state_timestamp_ms: Annotated[Int64, Wire(versions=range(2, 5))]
    members: tuple[MemberMetadata, ...]


_KEYS: RecordFormat[OffsetKey | GroupKey] = RecordFormat({0: OffsetKey, 1: OffsetKey, 2: GroupKey})
_OFFSETS = RecordFormat(dict.fromkeys(range(5), OffsetAndMetadata), flexible=4)
_GROUPS = RecordFormat(dict.fromkeys(range(5), GroupMetadata), flexible=4)

decode_key = _KEYS.decode_key
decode_offset = _OFFSETS.decode


def encode_offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """The key under which an offset is stored (version 1)."""
    return _KEYS.encode((group_id, topic, partition), 1)


def encode_group_key(group_id: str) -> bytes:
    """The key under which a group's membership is stored (version 2)."""
    return _KEYS.encode((group_id,), 2)


def encode_offset(committed: OffsetAndMetadata) -> bytes:
    """The value of an offset: v3, or v1 (without leader epoch, as in Kafka) when it has its own expiry."""
    return _OFFSETS.encode(committed, 3 if committed.expire_timestamp < 0 else 1)


def encode_group(group: GroupMetadata) -> bytes:
    """The value of a group's membership, v3."""
    return _GROUPS.encode(group, 3)


def decode_group(data: bytes) -> GroupMetadata:
    """Read a group's value, versions 0 to 4. In v0 a member's rebalance time-out is its session time-out."""
    group = _GROUPS.decode(data)
    if not data.startswith(b"\0\0"):
        return group
    members = (replace(member, rebalance_timeout_ms=member.session_timeout_ms) for member in group.members)
    return replace(group, members=tuple(members))
