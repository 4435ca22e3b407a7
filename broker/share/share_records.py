"""Kafka's record formats of the `__share_group_state` topic (`ShareSnapshotKey/Value.json`,
`ShareUpdateKey/Value.json`), as typed values.

Kafka's tools can read these records, and this module can read Kafka's.

    key       version i16 = 0 (snapshot), 1 (update)   group string, topic id (16 bytes), partition i32
    snapshot  version i16 = 0   snapshot epoch i32, state epoch i32, leader epoch i32, start offset i64,
                                create timestamp i64, write timestamp i64 (ms), batches, tagged fields
    update    version i16 = 0   snapshot epoch i32, leader epoch i32, start offset i64 (−1: as before), batches,
                                tagged fields
    batches   [first offset i64, last offset i64, state i8, delivery count i16, tagged fields]
    tag       0 delivery complete count i32 (KIP-1226)

Lengths of values are unsigned varints of the length plus one. An update changes the state of its snapshot; a snapshot
without a value is a tombstone. Invalid bytes raise `MalformedRecord`, never anything else.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from broker.coordinator.record_reader import MalformedRecord, RecordReader, encode_string
from broker.protocol.wire import array_length
from broker.share.persister import SharePartitionKey, StateBatch

_I32 = Struct(">i")
_SNAPSHOT_HEAD = Struct(">hiiiqqq")
_UPDATE_HEAD = Struct(">hiiq")
_BATCH = Struct(">qqbhB")
_COUNT_TAG = Struct(">BBBi")


class ShareUpdate(NamedTuple):
    """A change since the snapshot."""

    snapshot_epoch: int
    leader_epoch: int
    start_offset: int
    state_batches: Sequence[StateBatch] = ()
    delivery_complete_count: int = -1


class ShareSnapshot(NamedTuple):
    """The whole state of one share partition. Timestamps are in ms since the epoch."""

    snapshot_epoch: int
    state_epoch: int
    leader_epoch: int
    start_offset: int
    create_timestamp: int = 0
    write_timestamp: int = 0
    state_batches: Sequence[StateBatch] = ()
    delivery_complete_count: int = -1

    def updated(self, update: ShareUpdate) -> ShareSnapshot:
        """The state after an update. The start never moves back: a write that comes late must not undo a later one."""
        start = max(self.start_offset, update.start_offset)
        return self._replace(
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start,
            state_batches=combined(self.state_batches, update.state_batches, start),
            delivery_complete_count=update.delivery_complete_count,
        )


def combined(before: Sequence[StateBatch], new: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    """Disjoint batches in order, from `start_offset` on. Of two for one offset the higher delivery count stays, then
    the higher state, as in Kafka (`PersisterStateBatchCombiner`); so it does not matter which of them came first."""
    batches = list(before)
    for batch in sorted(new):  # in order each is added at the end, and not moved by the next
        low = bisect_left(batches, batch.first_offset, key=_last)
        high = bisect_right(batches, batch.last_offset, key=_first)
        batches[low:high] = _overlaid(batches[low:high], batch)
    joined: list[StateBatch] = []
    for batch in batches:
        if batch.last_offset < start_offset:
            continue
        batch = batch._replace(first_offset=max(batch.first_offset, start_offset))
        if joined and joined[-1].last_offset + 1 == batch.first_offset and joined[-1][2:] == batch[2:]:
            batch = batch._replace(first_offset=joined.pop().first_offset)
        joined.append(batch)
    return joined


def _overlaid(overlapped: Sequence[StateBatch], new: StateBatch) -> list[StateBatch]:
    """One batch over others that it overlaps, in order."""
    pieces = []
    position = new.first_offset
    for old in overlapped:
        if old.first_offset < new.first_offset:
            pieces.append(old._replace(last_offset=new.first_offset - 1))
        first, last = max(old.first_offset, new.first_offset), min(old.last_offset, new.last_offset)
        if position < first:
            pieces.append(new._replace(first_offset=position, last_offset=first - 1))
        winner = max(old, new, key=_rank)
        pieces.append(winner._replace(first_offset=first, last_offset=last))
        if old.last_offset > new.last_offset:
            pieces.append(old._replace(first_offset=new.last_offset + 1))
        position = last + 1
    if position <= new.last_offset:
        pieces.append(new._replace(first_offset=position))
    return pieces


_first = attrgetter("first_offset")
_last = attrgetter("last_offset")
_rank = attrgetter("delivery_count", "delivery_state")


def encode_snapshot_key(key: SharePartitionKey) -> bytes:
    return b"\x00\x00" + _encode_key(key)


def encode_update_key(key: SharePartitionKey) -> bytes:
    return b"\x00\x01" + _encode_key(key)


def _encode_key(key: SharePartitionKey) -> bytes:
    return encode_string(key.group_id) + key.topic_id.bytes + _I32.pack(key.partition)


def decode_key(data: bytes) -> tuple[SharePartitionKey, bool] | None:
    """The key of a record, and whether it is one of a snapshot. None for a key version of a later Kafka, which should
    be skipped."""
    reader = RecordReader(data)
    version = reader.key_version()
    if version > 1:
        return None
    key = SharePartitionKey(reader.string(), uuid.UUID(bytes=reader.take(16)), reader.i32())
    reader.expect_end()
    return key, version == 0


def encode_snapshot(state: ShareSnapshot) -> bytes:
    head = _SNAPSHOT_HEAD.pack(0, *state[:6])
    return head + _encode_rest(state.state_batches, state.delivery_complete_count)


def encode_update(update: ShareUpdate) -> bytes:
    return _UPDATE_HEAD.pack(0, *update[:3]) + _encode_rest(update.state_batches, update.delivery_complete_count)


def _encode_rest(batches: Sequence[StateBatch], count: int) -> bytes:
    tags = b"\0" if count == -1 else _COUNT_TAG.pack(1, 0, 4, count)
    return b"".join((array_length(len(batches), True), *(_BATCH.pack(*batch, 0) for batch in batches), tags))


def decode_snapshot(data: bytes) -> ShareSnapshot:
    reader = RecordReader(data)
    reader.version(0, flexible=0)
    epochs = reader.i32(), reader.i32(), reader.i32()
    return ShareSnapshot(*epochs, reader.i64(), reader.i64(), reader.i64(), *_decode_rest(reader))


def decode_update(data: bytes) -> ShareUpdate:
    reader = RecordReader(data)
    reader.version(0, flexible=0)
    return ShareUpdate(reader.i32(), reader.i32(), reader.i64(), *_decode_rest(reader))


def _decode_rest(reader: RecordReader) -> tuple[list[StateBatch], int]:
    """Batches, disjoint and in order, and the delivery complete count."""
    batches = []
    for _ in range(reader.array_length()):
        batch = StateBatch(reader.i64(), reader.i64(), reader.i8(), reader.i16())
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise MalformedRecord(f"a batch from offset {batch.first_offset} to {batch.last_offset}")
        reader.tags()
        batches.append(batch)
    count = reader.tags().get(0, b"\xff\xff\xff\xff")
    reader.expect_end()
    if len(count) != 4:
        raise MalformedRecord(f"a delivery complete count of {len(count)} bytes")
    return combined((), batches, 0), int.from_bytes(count, signed=True)
