"""The Fetch response, encoded by hand so that record bytes never pass through Python.

Called by api/fetch. The response is a list of parts: bytes and, between them, the file ranges of the partitions'
records. The layout depends on the version: fetch sessions from 7 (KIP-227), leader epochs (KIP-320), preferred read
replicas from 11 (KIP-392), flexible from 12, topic ids instead of names from 13, the addresses of other leaders from 16
(KIP-951). Tests compare it with kio's encoding.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from broker.protocol.wire import array_length, nullable_string, string, unsigned_varint

FETCH_VERSIONS = (4, 16)

_FIRST_FLEXIBLE = 12
_FIRST_TOPIC_ID = 13
_FIRST_WITH_LEADERS = 16
_LENGTH = struct.Struct(">i")
_HEAD, _SESSION = struct.Struct(">ii"), struct.Struct(">hi")
_FLEXIBLE_HEAD = struct.Struct(">iBihi")
_PARTITION = struct.Struct(">ihqq")
_FLEXIBLE_PARTITION = struct.Struct(">ihqqqBi")
"""Up to the read replica, with null for the aborted transactions."""
_DIVERGING_EPOCH = struct.Struct(">BBiqB")
_DIVERGING_TAG = (0, 13)
"""Tag 0 with 13 bytes, which are the epoch, its end offset, and no further tagged fields."""
_LEADER = struct.Struct(">BBiiB")
_LEADER_TAG, _LEADER_SIZE = 1, 9
_ARCHIVED = struct.Struct(">BBqiB")
_ARCHIVED_TAG, _ARCHIVED_SIZE = 2, 13
"""The snapshot of KRaft, of which only the end offset counts here."""


class Sized(Protocol):
    """Records that the caller will send; only their length is used here."""

    @property
    def length(self) -> int: ...


class CurrentLeader(NamedTuple):
    """The leader that a broker knows; id -1 if there is none, and no host if it has no address for the client."""

    broker_id: int
    epoch: int
    host: str = ""
    port: int = -1
    rack: str | None = None


class PartitionAnswer(NamedTuple):
    """The answer for one partition. `aborted` is None for read_uncommitted. `diverging` is (leader epoch, end offset):
    where the reader has to cut its log (KIP-595). `preferred` is the broker to read from instead, or -1 (KIP-392)."""

    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]] | None
    records: Sized | None
    diverging: tuple[int, int] | None = None
    preferred: int = -1
    leader: CurrentLeader | None = None
    archived_end: int = 0
    """For followers: the offset after the last archived record, 0 for none. It goes as the end of a snapshot, which has
    a place in the schema and is not used otherwise."""


class TopicAnswer(NamedTuple):
    """The answer for one topic, with its name for versions below 13 and its id from 13 on."""

    name: str
    topic_id: uuid.UUID
    partitions: Sequence[PartitionAnswer]


def encode_fetch_response(
    version: int, correlation_id: int, topics: Sequence[TopicAnswer], *, error: int = 0, session_id: int = 0
) -> list[Any]:
    """The parts of a whole response frame, length first: bytes, and the `records` objects themselves.

    Session id 0: there is no fetch session.
    """
    parts: list[bytes | Sized] = []
    leaders: dict[int, CurrentLeader] = {}
    flexible = version >= _FIRST_FLEXIBLE
    if flexible:
        head = bytearray(_FLEXIBLE_HEAD.pack(correlation_id, 0, 0, error, session_id))
    else:
        head = bytearray(_HEAD.pack(correlation_id, 0))
        if version >= 7:
            head += _SESSION.pack(error, session_id)
    head += array_length(len(topics), flexible)
    for topic in topics:
        head += topic.topic_id.bytes if version >= _FIRST_TOPIC_ID else string(topic.name, flexible)
        head += array_length(len(topic.partitions), flexible)
        for partition in topic.partitions:
            head += _partition(version, partition, flexible)
            if partition.records is not None and partition.records.length:
                parts += (bytes(head), partition.records)
                head = bytearray()
            if flexible:
                head += _tagged(partition)
                if partition.leader is not None and partition.leader.host:
                    leaders[partition.leader.broker_id] = partition.leader
        if flexible:
            head += b"\0"
    if flexible:
        head += _node_endpoints(leaders.values()) if leaders and version >= _FIRST_WITH_LEADERS else b"\0"
    parts.append(bytes(head))
    size = sum([len(part) if isinstance(part, bytes) else part.length for part in parts])
    first = parts[0]
    assert isinstance(first, bytes)
    parts[0] = _LENGTH.pack(size) + first
    return parts


def _tagged(partition: PartitionAnswer) -> bytes:
    """The tagged fields of a partition."""
    diverging, leader = partition.diverging, partition.leader
    if diverging is None and leader is None and not partition.archived_end:
        return b"\0"
    fields = [] if diverging is None else [_DIVERGING_EPOCH.pack(*_DIVERGING_TAG, *diverging, 0)]
    if leader is not None:
        fields.append(_LEADER.pack(_LEADER_TAG, _LEADER_SIZE, leader.broker_id, leader.epoch, 0))
    if partition.archived_end:
        fields.append(_ARCHIVED.pack(_ARCHIVED_TAG, _ARCHIVED_SIZE, partition.archived_end, -1, 0))
    return bytes((len(fields), *b"".join(fields)))


def _partition(version: int, partition: PartitionAnswer, flexible: bool) -> bytes:
    length = partition.records.length if partition.records is not None else 0
    if flexible and partition.aborted is None:
        usual = _FLEXIBLE_PARTITION.pack(*partition[:5], 0, partition.preferred)
        return usual + array_length(length, flexible)
    out = bytearray(_PARTITION.pack(*partition[:4]))
    if version >= 5:
        out += struct.pack(">q", partition.log_start_offset)
    if partition.aborted is None:
        out += b"\0" if flexible else b"\xff\xff\xff\xff"
    else:
        out += array_length(len(partition.aborted), flexible)
        for producer_id, first_offset in partition.aborted:
            out += struct.pack(">qq", producer_id, first_offset)
            if flexible:
                out += b"\0"
    if version >= 11:
        out += struct.pack(">i", partition.preferred)
    out += array_length(length, flexible)
    return bytes(out)


def _node_endpoints(leaders: Collection[CurrentLeader]) -> bytes:
    """All tagged fields of the response: field 0 with the addresses."""
    value = bytearray(array_length(len(leaders), True))
    for one in leaders:
        value += _LENGTH.pack(one.broker_id) + string(one.host, True) + _LENGTH.pack(one.port)
        value += nullable_string(one.rack, True) + b"\0"
    return b"\x01\0" + unsigned_varint(len(value)) + bytes(value)
