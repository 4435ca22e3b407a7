"""The Fetch request of a follower, version 15, encoded and decoded by hand: a busy one sends thousands in a second.

It names the topics by id (KIP-516), each partition with the follower's leader epoch (KIP-320) and the epoch of its last
record (KIP-595), and the follower with its broker epoch (KIP-903). A test compares it with kio's decoding. What is not
exactly as `encode_replica_fetch` writes it is left to kio.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.protocol.wire import array_length, string

REPLICA_FETCH_VERSION: Final = 15

_HEADER = struct.Struct(">ihhi")
_LIMITS = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqiB")
_INDEX = struct.Struct(">i")
_REPLICA = struct.Struct(">BBBiqB")
_REPLICA_STATE_TAG, _REPLICA_STATE_SIZE = 1, 13
_READ_UNCOMMITTED = 0
_NO_RACK = b"\x01"
"""An empty string: the rack is that of a consumer."""
_INT16 = struct.Struct(">h")
_CLIENT_ID_AT: Final = 8
_NO_ID = bytes(16)


class ReplicaFetchLimits(NamedTuple):
    """Limits of a response: sizes in bytes, time in ms."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchPosition(NamedTuple):
    """Where a follower stands in one partition. `last_epoch` is the leader epoch of its last record, -1 without one."""

    topic_id: uuid.UUID
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int
    max_bytes: int


def encode_replica_fetch(
    client_id: str,
    replica: tuple[int, int],
    limits: ReplicaFetchLimits,
    *,
    session_id: int,
    session_epoch: int,
    positions: Iterable[FetchPosition],
    forgotten: Iterable[tuple[uuid.UUID, int]] = (),
) -> bytearray:
    """A request frame, length first; the correlation id is 0. `replica`: the follower's broker id and broker epoch.
    `forgotten` partitions leave the session (KIP-227)."""
    frame = bytearray(_header(client_id))
    frame += _LIMITS.pack(
        limits.max_wait_ms,
        limits.min_bytes,
        limits.max_bytes,
        _READ_UNCOMMITTED,
        session_id,
        session_epoch,
    )
    _add_topics(frame, ((position[0], _PARTITION.pack(*position[1:], 0)) for position in positions))
    _add_topics(frame, ((topic_id, _INDEX.pack(partition)) for topic_id, partition in forgotten))
    frame += _NO_RACK
    frame += _REPLICA.pack(1, _REPLICA_STATE_TAG, _REPLICA_STATE_SIZE, *replica, 0)
    _INDEX.pack_into(frame, 0, len(frame) - _INDEX.size)
    return frame


@functools.lru_cache(maxsize=64)
def _header(client_id: str) -> bytes:
    return _HEADER.pack(0, ApiKey.FETCH, REPLICA_FETCH_VERSION, 0) + string(client_id, False) + b"\0"


def _add_topics(frame: bytearray, rows: Iterable[tuple[uuid.UUID, bytes]]) -> None:
    topics: dict[uuid.UUID, list[bytes]] = {}
    for topic_id, row in rows:
        topics.setdefault(topic_id, []).append(row)
    frame += array_length(len(topics), True)
    for topic_id, partitions in topics.items():
        frame += topic_id.bytes + array_length(len(partitions), True)
        for partition in partitions:
            frame += partition
        frame += b"\0"


class ReplicaState(NamedTuple):
    replica_id: int
    replica_epoch: int


class AskedPartition(NamedTuple):
    """A `FetchPosition` without its topic, with kio's field names."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class AskedTopic(NamedTuple):
    topic_id: uuid.UUID
    partitions: list[AskedPartition]


class ForgottenTopic(NamedTuple):
    topic_id: uuid.UUID
    partitions: list[int]


class ReplicaFetch(NamedTuple):
    """The body of a request, with kio's field names; `max_wait` in ms."""

    replica_state: ReplicaState
    max_wait: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[AskedTopic]
    forgotten_topics_data: list[ForgottenTopic]
    rack_id: str = ""


def decode_replica_fetch(frame: bytes | bytearray | memoryview) -> tuple[str, ReplicaFetch] | None:
    """(client id, body) of a request without its length; None unless it has exactly the form of a follower's.

    Arrays of more than 126 elements are left to kio, too.
    """
    try:
        start = _CLIENT_ID_AT + _INT16.size
        at = start + _INT16.unpack_from(frame, _CLIENT_ID_AT)[0]
        if at < start or frame[at]:
            return None  # no client id, or tags after it
        client_id = str(frame[start:at], "utf-8")
        max_wait, min_bytes, max_bytes, isolation, session_id, epoch = _LIMITS.unpack_from(frame, at + 1)
        count, at = _count(frame, at + 1 + _LIMITS.size)
        topics, forgotten = [], []
        for _ in range(count):
            topic_id, rows, at = _read_topic(frame, at, _PARTITION)
            if any(row[6] for row in rows):
                return None
            topics.append(AskedTopic(topic_id, [AskedPartition(*row[:6]) for row in rows]))
        count, at = _count(frame, at)
        for _ in range(count):
            topic_id, rows, at = _read_topic(frame, at, _INDEX)
            forgotten.append(ForgottenTopic(topic_id, [row[0] for row in rows]))
        no_rack = frame[at] == 1
        tags, tag, size, replica_id, replica_epoch, no_more = _REPLICA.unpack_from(frame, at + 1)
        ends = at + 1 + _REPLICA.size == len(frame)
    except (struct.error, IndexError, ValueError):
        return None
    if not (no_rack and ends and (tags, tag, size, no_more) == (1, _REPLICA_STATE_TAG, _REPLICA_STATE_SIZE, 0)):
        return None
    replica = ReplicaState(replica_id, replica_epoch)
    return client_id, ReplicaFetch(
        replica, max_wait, min_bytes, max_bytes, isolation, session_id, epoch, topics, forgotten
    )


def _read_topic(
    frame: bytes | bytearray | memoryview, at: int, row: struct.Struct
) -> tuple[uuid.UUID, list[tuple[int, ...]], int]:
    """(id, rows, where it ends). Raises ValueError for what only kio can read."""
    count, start = _count(frame, at + 16)
    end = start + count * row.size
    if frame[end]:
        raise ValueError("not a follower's")
    rows = [row.unpack_from(frame, position) for position in range(start, end, row.size)]
    return _topic_id(bytes(frame[at : at + 16])), rows, end + 1


def _count(frame: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """(elements of an array, where they begin). Raises ValueError for null and for long arrays."""
    count = frame[at] - 1
    if not 0 <= count < 0x7F:
        raise ValueError(f"{count} elements")
    return count, at + 1


@functools.lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> uuid.UUID:
    if raw == _NO_ID:
        raise ValueError("no topic id")  # kio has None for it
    return uuid.UUID(bytes=raw)
