"""The groups of one `__consumer_offsets` partition: replay, effects, deadlines, expiry.

Owned by the group coordinator, which routes requests here. Runs on the event loop; only replay reads
its records in a worker thread. What changes a group outside its own rules goes through the partition's
writer, so memory follows the log and never runs ahead of it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import cast

from broker.clock import Clock
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.coordinator.group_config import GroupConfig
from broker.coordinator.group_effects import Effects, GroupState, Now, Store
from broker.coordinator.group_events import expired_offsets
from broker.coordinator.group_messages import JoinReply, SyncReply
from broker.coordinator.group_state import ClassicGroup
from broker.coordinator.record_store import KeyValue, RecordStore
from broker.coordinator.record_writer import RecordWriter
from broker.coordinator.records import (
    MalformedRecord,
    OffsetKey,
    decode_group,
    decode_key,
    decode_offset,
    encode_group,
    encode_group_key,
    encode_offset_key,
)
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupShard", "replay"]

logger = logging.getLogger(__name__)

# What a member is told when its generation cannot be stored; the rest is UNKNOWN_SERVER_ERROR.
_GENERATION_ERRORS = {
    ErrorCode.none: ErrorCode.none,
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.request_timed_out: ErrorCode.rebalance_in_progress,
}


class GroupShard:
    """One partition's groups; `loaded` is false while they are replayed."""

    def __init__(
        self, partition: int, store: RecordStore, clock: Clock, config: GroupConfig, timer: DeadlineTimer
    ) -> None:
        self.partition = partition
        self.groups: dict[str, ClassicGroup] = {}
        self.loaded = False
        self._unloaded = False
        self._store = store
        self._clock = clock
        self._config = config
        self._timer = timer
        self._writer = RecordWriter(store, partition)
        # Group id → the moment its timer is set to.
        self._armed: dict[str, float] = {}

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.now_ms())

    def create(self, group_id: str) -> ClassicGroup:
        """A new empty group; nothing of it is stored yet."""
        group = ClassicGroup(group_id, self._config, self._clock.now_ms())
        self.groups[group_id] = group
        return group

    # --- replay ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the partition; every replayed member has one session time-out to show up."""
        groups = await asyncio.to_thread(lambda: replay(self._store.read(self.partition), self._config, self.now()))
        if self._unloaded:
            return  # taken away while it was being read
        now = self.now()
        self.groups = groups
        for group in groups.values():
            for member in group.roster.members.values():
                group.touch(member, now)
            self._arm(group)
        self.loaded = True

    def unload(self, error: ErrorCode) -> None:
        """Forget the groups; whoever waits is told `error`."""
        self.loaded = False
        self._unloaded = True
        for group in self.groups.values():
            self.perform(group, group.kill(error, self.now()))
        self.groups = {}
        self._armed.clear()

    async def flush(self) -> None:
        await self._writer.flush()

    # --- effects ---------------------------------------------------------------------------------

    def perform(self, group: ClassicGroup, effects: Effects) -> None:
        """Do what an event asked for: answer, store, and look again when the group wants it."""
        for waiter, answer in effects.replies:
            future = cast("asyncio.Future[JoinReply | SyncReply]", waiter)
            if not future.done():
                future.set_result(answer)
        for store in effects.stores:
            self._store_generation(group, store)
        self._arm(group)

    def _store_generation(self, group: ClassicGroup, store: Store) -> None:
        stored = partial(self._generation_stored, group, store)
        try:
            record = encode_group_key(group.group_id), encode_group(store.metadata)
        except MalformedRecord as error:
            logger.warning("Generation %d of group %s: %s", store.metadata.generation_id, group.group_id, error)
            stored(ErrorCode.unknown_server_error)
        else:
            self._writer.write([record], stored)

    def _generation_stored(self, group: ClassicGroup, store: Store, code: ErrorCode) -> None:
        error = _GENERATION_ERRORS.get(code, ErrorCode.unknown_server_error)
        self.perform(group, group.stored(store, error, self.now()))

    def _arm(self, group: ClassicGroup) -> None:
        if group.wake_at < self._armed.get(group.group_id, float("inf")):
            self._armed[group.group_id] = group.wake_at
            self._timer.at(group.wake_at, partial(self._wake, group, group.wake_at))

    def _wake(self, group: ClassicGroup, armed_for: float) -> None:
        if self._armed.get(group.group_id) == armed_for and self.groups.get(group.group_id) is group:
            del self._armed[group.group_id]
            self.perform(group, group.tick(self.now()))

    # --- offsets ---------------------------------------------------------------------------------

    def append(
        self, group: ClassicGroup, records: Sequence[KeyValue], applied: Callable[[ErrorCode], None]
    ) -> asyncio.Future[ErrorCode]:
        """Store records about a group's offsets, then call `applied`, then tell who still waits."""
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        group.offsets.in_flight += 1

        def done(code: ErrorCode) -> None:
            group.offsets.in_flight -= 1
            applied(code)
            if not future.done():
                future.set_result(code)

        self._writer.write(records, done)
        return future

    def delete_offsets(self, group: ClassicGroup, partitions: Sequence[TopicPartition]) -> asyncio.Future[ErrorCode]:
        """Write tombstones for offsets and forget them once these are stored."""

        def applied(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                for partition in partitions:
                    group.offsets.apply(partition, None)

        tombstones = [(encode_offset_key(group.group_id, *partition), None) for partition in partitions]
        return self.append(group, tombstones, applied)

    def delete_group(self, group: ClassicGroup) -> asyncio.Future[ErrorCode]:
        """Write tombstones for an empty group and all its offsets, and forget it once these are stored."""
        group.state = GroupState.DEAD  # joins and commits must wait until it is decided

        def applied(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                group.state = GroupState.EMPTY
            elif self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]
                self._armed.pop(group.group_id, None)

        tombstones: list[KeyValue] = [(encode_offset_key(group.group_id, *tp), None) for tp in group.offsets.all()]
        tombstones.append((encode_group_key(group.group_id), None))
        return self.append(group, tombstones, applied)

    def expire(self) -> None:
        """Drop expired offsets, and groups of which nothing is left."""
        now = self.now()
        for group in list(self.groups.values()):
            if group.offsets.in_flight:
                continue
            expired = expired_offsets(group, now)
            if group.state is GroupState.EMPTY and not group.roster.pending and len(expired) == len(group.offsets):
                if expired or group.generation_id > 0:
                    self.delete_group(group)
                else:
                    del self.groups[group.group_id]  # nothing of it was ever stored
            elif expired:
                self.delete_offsets(group, expired)


def replay(records: Iterable[KeyValue], config: GroupConfig, now: Now) -> dict[str, ClassicGroup]:
    """Bring groups back from the records of one partition.

    Only the last record of a key counts, so the rest is not even decoded. A record that cannot be read
    is skipped with a warning: it must not take the other groups of the partition away.
    """
    groups: dict[str, ClassicGroup] = {}
    for raw_key, value in dict(records).items():
        if value is None:
            continue
        try:
            key = decode_key(raw_key)
            if key is None:
                continue
            group = groups.get(key.group_id)
            if group is None:
                group = groups[key.group_id] = ClassicGroup(key.group_id, config, now.wall_ms)
            if isinstance(key, OffsetKey):
                partition = TopicPartition(sys.intern(key.topic), key.partition)
                group.offsets.apply(partition, decode_offset(value))
            else:
                group.install(decode_group(value), now)
        except MalformedRecord as error:
            logger.warning("Skipped a record of the offsets topic that cannot be read: %s", error)
    return groups
