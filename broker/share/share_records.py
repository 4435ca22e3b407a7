"""Kafka's record formats of the `__share_group_state` topic (`ShareSnapshotKey/Value.json`,
`ShareUpdateKey/Value.json`), as typed values.

An update changes the state of its snapshot; a snapshot without a value is a tombstone. The delivery complete count is
of KIP-1226.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Annotated, NamedTuple

from broker.coordinator.record_format import MalformedRecord, RecordFormat
from broker.protocol.entities import Int32, Int64, Wire
from broker.share.persister import SharePartitionKey, StateBatch


def _checked(batches: Sequence[StateBatch]) -> list[StateBatch]:
    """Disjoint and in order."""
    for batch in batches:
        if not 0 <= batch.first_offset <= batch.last_offset:
            raise MalformedRecord(f"a batch from offset {batch.first_offset} to {batch.last_offset}")
    return combined((), batches, 0)


_StateBatches = Annotated[Sequence[StateBatch], Wire(stored=tuple[StateBatch, ...], read=_checked)]
_Count = Annotated[Int32, Wire(tag=0)]


class ShareUpdate(NamedTuple):
    """A change since the snapshot."""

    snapshot_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    """-1: as before."""
    state_batches: _StateBatches = ()
    delivery_complete_count: _Count = -1


class ShareSnapshot(NamedTuple):
    """The whole state of one share partition. Timestamps are in ms since the epoch."""

    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    start_offset: Int64
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: _StateBatches = ()
    delivery_complete_count: _Count = -1

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


_SNAPSHOT, _UPDATE = 0, 1
"""Versions of the key."""
_KEYS = RecordFormat({_SNAPSHOT: SharePartitionKey, _UPDATE: SharePartitionKey})
_SNAPSHOTS, _UPDATES = RecordFormat({0: ShareSnapshot}, flexible=0), RecordFormat({0: ShareUpdate}, flexible=0)

encode_snapshot, decode_snapshot = _SNAPSHOTS.encode, _SNAPSHOTS.decode
encode_update, decode_update = _UPDATES.encode, _UPDATES.decode


def encode_snapshot_key(key: SharePartitionKey) -> bytes:
    return _KEYS.encode(key, _SNAPSHOT)


def encode_update_key(key: SharePartitionKey) -> bytes:
    return _KEYS.encode(key, _UPDATE)


def decode_key(data: bytes) -> tuple[SharePartitionKey, bool] | None:
    """The key of a record, and whether it is one of a snapshot. None for a key version of a later Kafka, which should
    be skipped."""
    key = _KEYS.decode_key(data)
    return None if key is None else (key, data[1] == _SNAPSHOT)
