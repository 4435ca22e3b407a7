"""The Fetch request of a follower, version 13, encoded by hand: a busy follower sends thousands in a second.

It names the topics by id (KIP-516), and each partition with the follower's leader epoch (KIP-320) and the epoch of its
last record (KIP-595). A test compares it with kio's decoding.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from typing import Final, NamedTuple

from broker.protocol.api_keys import ApiKey
from broker.protocol.wire import array_length, string

__all__ = ["REPLICA_FETCH_VERSION", "FetchPosition", "ReplicaFetchLimits", "encode_replica_fetch"]

REPLICA_FETCH_VERSION: Final = 13

_HEADER = struct.Struct(">ihhi")
_LIMITS = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqiB")
_INDEX = struct.Struct(">i")
_READ_UNCOMMITTED = 0


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
    replica_id: int,
    limits: ReplicaFetchLimits,
    *,
    session_id: int,
    session_epoch: int,
    positions: Iterable[FetchPosition],
    forgotten: Iterable[tuple[uuid.UUID, int]] = (),
) -> bytearray:
    """A request frame, length first; the correlation id is 0. `forgotten` partitions leave the session (KIP-227)."""
    frame = bytearray(_HEADER.pack(0, ApiKey.FETCH, REPLICA_FETCH_VERSION, 0))
    frame += string(client_id, False) + b"\0"
    frame += _LIMITS.pack(
        replica_id,
        limits.max_wait_ms,
        limits.min_bytes,
        limits.max_bytes,
        _READ_UNCOMMITTED,
        session_id,
        session_epoch,
    )
    asked: dict[uuid.UUID, list[bytes]] = {}
    for topic_id, *position in positions:
        asked.setdefault(topic_id, []).append(_PARTITION.pack(*position, 0))
    _add_topics(frame, asked)
    left: dict[uuid.UUID, list[bytes]] = {}
    for topic_id, partition in forgotten:
        left.setdefault(topic_id, []).append(_INDEX.pack(partition))
    _add_topics(frame, left)
    frame += string("", True) + b"\0"  # the rack is that of a consumer
    _INDEX.pack_into(frame, 0, len(frame) - _INDEX.size)
    return frame


def _add_topics(frame: bytearray, topics: dict[uuid.UUID, list[bytes]]) -> None:
    frame += array_length(len(topics), True)
    for topic_id, partitions in topics.items():
        frame += topic_id.bytes + array_length(len(partitions), True)
        for partition in partitions:
            frame += partition
        frame += b"\0"
