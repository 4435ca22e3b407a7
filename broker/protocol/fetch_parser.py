"""Fetch responses as the client and followers take them, in one form for all versions.

The records are a view of the buffer that the socket filled.
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Any, Final, NamedTuple

from broker.errors import ErrorCode, ProtocolError
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import read_response, to_ms
from broker.protocol.replica_fetch_request import REPLICA_FETCH_VERSION
from broker.protocol.struct_reader import read_varint

_TOPIC_IDS_SINCE: Final = 13
_NOTHING: Final = memoryview(b"")
_NO_EPOCH: Final = (-1, -1)

# What a leader sends, as protocol/fetch_response.py writes it.
_CORRELATION_ID_SIZE: Final = 4
_HEAD: Final = struct.Struct(">BihiB")
_PARTITION: Final = struct.Struct(">ihqqqBi")
_LONG: Final = 0x80
"""An array whose length takes more than one byte."""


class FetchedPartition(NamedTuple):
    """One partition in a response. `topic` is the name, or the topic id in versions that have that instead."""

    topic: str | uuid.UUID
    partition: int
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of the aborted transactions in range; empty unless read_committed."""
    preferred_read_replica: int
    records: memoryview
    """Record batches, a view of the response's buffer; the last one may be incomplete (KIP-74)."""
    diverging: tuple[int, int] | None = None
    """The largest leader epoch up to the follower's last one, and its end offset, where the logs diverge (KIP-595)."""
    archived_end: int = 0
    """For followers: so far the leader's archive goes; 0 for none."""


class FetchReply(NamedTuple):
    """A whole response. `error` is about the request; each partition has its own error."""

    throttle_ms: int
    error: ErrorCode
    session_id: int
    partitions: list[FetchedPartition]


def parse_fetch_response(version: int, payload: memoryview) -> FetchReply:
    """Parse a response, from the correlation id on. Raises ProtocolError."""
    if version == REPLICA_FETCH_VERSION and (usual := _usual(payload)) is not None:
        return usual
    _, body, end = read_response(ApiKey.FETCH, version, payload)
    if end != len(payload):
        raise ProtocolError(f"FETCH response version {version}: {len(payload) - end} bytes are left over")
    by_id = version >= _TOPIC_IDS_SINCE
    partitions: list[FetchedPartition] = []
    for topic in body.responses:
        name = topic.topic_id if by_id else topic.topic
        partitions += [_partition(name, partition) for partition in topic.partitions]
    error, session_id = getattr(body, "error_code", ErrorCode.none), getattr(body, "session_id", 0)
    return FetchReply(to_ms(body.throttle_time), error, session_id, partitions)


def _usual(payload: memoryview, new: Any = tuple.__new__) -> FetchReply | None:
    """The response of a leader when nothing is wrong; None for any other bytes, which the general way parses or
    refuses. A follower parses thousands in a second, mostly of one partition."""
    try:
        tags, throttle_ms, error, session_id, topics = _HEAD.unpack_from(payload, _CORRELATION_ID_SIZE)
        at, partitions = _CORRELATION_ID_SIZE + _HEAD.size, []
        if tags or error or not 0 < topics < _LONG:
            return None
        for _ in range(topics - 1):
            topic_id, count = _topic_id(bytes(payload[at : at + 16])), payload[at + 16]
            at += 17
            if topic_id is None or not 0 < count < _LONG:
                return None
            for _ in range(count - 1):
                index, failed, high, stable, start, aborted, preferred = _PARTITION.unpack_from(payload, at)
                size, at = read_varint(payload, at + _PARTITION.size)
                end = at + max(size - 1, 0)
                if failed or aborted or payload[end]:
                    return None
                fields = topic_id, index, ErrorCode.none, high, stable, start, [], preferred, payload[at:end], None, 0
                partitions.append(new(FetchedPartition, fields))
                at = end + 1
            if payload[at]:
                return None
            at += 1
        if payload[at] or at + 1 != len(payload):
            return None
    except (struct.error, LookupError, ValueError):
        return None
    return FetchReply(throttle_ms, ErrorCode.none, session_id, partitions)


@functools.lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> uuid.UUID | None:
    """None for the id that stands for none."""
    return uuid.UUID(bytes=raw) if any(raw) else None


def _partition(topic: str | uuid.UUID, one: Any, new: Any = tuple.__new__) -> FetchedPartition:
    """`new` takes half the time of the class itself."""
    aborted, diverging = one.aborted_transactions, getattr(one, "diverging_epoch", _NO_EPOCH)
    values = (
        topic,
        *(one[:5] if hasattr(one, "log_start_offset") else (*one[:4], -1)),
        [tuple(transaction) for transaction in aborted] if aborted else [],
        getattr(one, "preferred_read_replica", -1),
        one.records or _NOTHING,
        None if diverging == _NO_EPOCH else tuple(diverging),
        max(one.snapshot_id.end_offset, 0) if hasattr(one, "snapshot_id") else 0,
    )
    partition: FetchedPartition = new(FetchedPartition, values)
    return partition
