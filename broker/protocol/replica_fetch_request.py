"""The Fetch request of a follower, version 15, encoded by hand: a busy one sends thousands in a second.

It names the topics by id (KIP-516), each partition with the follower's leader epoch (KIP-320) and the epoch of its last
record (KIP-595), and the follower with its broker epoch (KIP-903). A test decodes it.
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Collection, Iterable
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
    positions: Collection[FetchPosition],
    forgotten: Collection[tuple[uuid.UUID, int]] = (),
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
    if len(positions) == 1:  # as mostly
        (position,) = positions
        frame += b"\x02" + position[0].bytes + b"\x02" + _PARTITION.pack(*position[1:], 0) + b"\0"
    else:
        _add_topics(frame, ((position[0], _PARTITION.pack(*position[1:], 0)) for position in positions))
    if forgotten:
        _add_topics(frame, ((topic_id, _INDEX.pack(partition)) for topic_id, partition in forgotten))
    else:
        frame += b"\x01"
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
