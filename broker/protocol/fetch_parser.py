"""Parses Fetch responses, for the client and for followers.

By hand, because kio would copy the record bytes out of the response: callers get a view of the buffer that the socket
filled. A property test compares everything else with kio for every version. The layout (Kafka's FetchResponse.json,
versions 4 to 16):

    correlation id   int32, then tags from 12
    throttle time    int32, ms
    error, session   int16, int32, from 7
    topics           array of
      name           string, from 13 the topic id instead (16 bytes)
      partitions     array of
        index, error, high watermark, last stable offset   int32, int16, int64, int64
        log start offset                                   int64, from 5
        aborted      nullable array of (producer id, first offset), both int64, tags from 12
        read replica int32, from 11
        records      nullable bytes
        tags         from 12; tag 0 is the diverging epoch (int32, int64), KIP-595
      tags           from 12
    tags             from 12

From 12 on lengths are unsigned varints of the length plus one (KIP-482).
"""

from __future__ import annotations

import functools
import struct
import uuid
from typing import Final, NamedTuple

from broker.errors import ErrorCode, ProtocolError

_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION_HEAD = struct.Struct(">ihqq")
_INT64 = struct.Struct(">q")
_ABORTED = struct.Struct(">qq")
_EPOCH_END = struct.Struct(">iq")
_DIVERGING_EPOCH: Final = 0
_NO_ABORTED_AT: Final = 30
_FLEXIBLE_HEAD = struct.Struct(">ihqqqBi")
"""A partition from version 12 on without aborted transactions, whose number is at `_NO_ABORTED_AT`."""
_NOTHING = memoryview(b"")


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


class FetchReply(NamedTuple):
    """A whole response. `error` is about the request; each partition has its own error."""

    throttle_ms: int
    error: ErrorCode
    session_id: int
    partitions: list[FetchedPartition]


def parse_fetch_response(version: int, payload: memoryview) -> FetchReply:
    """Parse a response, from the correlation id on. Raises ProtocolError."""
    reader = _Reader(payload, flexible=version >= _FLEXIBLE_SINCE)
    try:
        reply = _read_reply(reader, version)
    except (struct.error, IndexError, ValueError) as error:
        raise ProtocolError(f"FETCH response version {version}: {error}") from error
    if reader.position != len(payload):
        raise ProtocolError(f"FETCH response version {version}: {len(payload) - reader.position} bytes are left over")
    return reply


def _read_reply(reader: _Reader, version: int) -> FetchReply:
    reader.unpack(_INT32)  # correlation id
    reader.skip_tags()
    (throttle_ms,) = reader.unpack(_INT32)
    error, session_id = ErrorCode.none, 0
    if version >= 7:
        error, (session_id,) = ErrorCode(reader.unpack(_INT16)[0]), reader.unpack(_INT32)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.array_length()):
        topic = reader.topic_id() if version >= _TOPIC_IDS_SINCE else reader.string()
        for _ in range(reader.array_length()):
            partitions.append(_read_partition(reader, version, topic))  # noqa: PERF401
        reader.skip_tags()
    reader.skip_tags()
    return FetchReply(throttle_ms, error, session_id, partitions)


def _read_partition(reader: _Reader, version: int, topic: str | uuid.UUID) -> FetchedPartition:
    aborted = []
    if version >= _FLEXIBLE_SINCE and reader.peek(_NO_ABORTED_AT) <= 1:
        head = reader.unpack(_FLEXIBLE_HEAD)
        index, error, high_watermark, last_stable_offset, log_start_offset, _, preferred_read_replica = head
    else:
        index, error, high_watermark, last_stable_offset = reader.unpack(_PARTITION_HEAD)
        log_start_offset = reader.unpack(_INT64)[0] if version >= 5 else -1
        for _ in range(reader.array_length()):
            producer_id, first_offset = reader.unpack(_ABORTED)
            aborted.append((producer_id, first_offset))
            reader.skip_tags()
        preferred_read_replica = reader.unpack(_INT32)[0] if version >= 11 else -1
    records = reader.bytes_view()
    diverging = reader.diverging_epoch()
    return FetchedPartition(
        topic,
        index,
        ErrorCode(error) if error else ErrorCode.none,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        preferred_read_replica,
        records,
        diverging,
    )


class _Reader:
    """A position in the response. Reading past the end raises struct.error, IndexError or ValueError."""

    def __init__(self, data: memoryview, *, flexible: bool) -> None:
        self.position = 0
        self._data = data
        self._flexible = flexible

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self._data, self.position)
        self.position += layout.size
        return values

    def peek(self, offset: int) -> int:
        """The byte at `offset` from here."""
        return self._data[self.position + offset]

    def array_length(self) -> int:
        """Number of items; 0 for a null array."""
        length = max(self._length(_INT32), 0)
        if length > len(self._data) - self.position:  # an item has at least a byte
            raise ValueError(f"an array of {length} items cannot fit")
        return length

    def string(self) -> str:
        return str(self._take(self._length(_INT16)), "utf-8")

    def topic_id(self) -> uuid.UUID:
        return _topic_id(bytes(self._take(16)))

    def bytes_view(self) -> memoryview:
        length = self._length(_INT32)
        return self._take(length) if length > 0 else _NOTHING

    def diverging_epoch(self) -> tuple[int, int] | None:
        """The tagged field 0 of a partition, if it is there. The others name leaders and snapshots."""
        found = None
        if self._flexible and not self._data[self.position]:
            self.position += 1
        elif self._flexible:
            for _ in range(self._unsigned_varint()):
                tag = self._unsigned_varint()
                content = self._take(self._unsigned_varint())
                if tag == _DIVERGING_EPOCH:
                    found = _EPOCH_END.unpack_from(content)
        return found

    def skip_tags(self) -> None:
        """Tagged fields name leaders and snapshots, which readers learn from metadata."""
        if not self._flexible:
            return
        if not self._data[self.position]:
            self.position += 1
            return
        for _ in range(self._unsigned_varint()):
            self._unsigned_varint()  # tag
            self._take(self._unsigned_varint())

    def _length(self, layout: struct.Struct) -> int:
        return self._unsigned_varint() - 1 if self._flexible else self.unpack(layout)[0]

    def _take(self, length: int) -> memoryview:
        end = self.position + length
        if length < 0 or end > len(self._data):
            raise ValueError(f"{length} bytes at byte {self.position} do not fit in {len(self._data)}")
        view = self._data[self.position : end]
        self.position = end
        return view

    def _unsigned_varint(self) -> int:
        value = shift = 0
        while shift < 35:
            byte = self._data[self.position]
            self.position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise ValueError(f"the varint ending at byte {self.position} is longer than 5 bytes")


@functools.lru_cache(maxsize=4096)
def _topic_id(raw: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=raw)
