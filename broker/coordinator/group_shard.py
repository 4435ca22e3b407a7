"""The groups of one `__consumer_offsets` partition: replay, effects, deadlines, expiry.

Owned by the group coordinator, which routes requests here. Runs on the event loop; only decoding during a replay
runs in a worker thread. Offsets and deletions take effect after they are in the log, so memory is never ahead of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.coordinator.consumer_group_state import ConsumerGroup
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.coordinator.group import Effects, Group, Now, Store
from broker.coordinator.group_kinds import GroupKinds, GroupReplay
from broker.coordinator.group_records import OffsetAndMetadata, encode_offset_key
from broker.coordinator.modern_group import ModernGroup
from broker.coordinator.modern_group_messages import Resolve
from broker.coordinator.record_format import KeyValue, MalformedRecord
from broker.coordinator.record_store import RecordStore
from broker.coordinator.record_writer import APPEND_ERRORS, Done, RecordWriter
from broker.coordinator.topic_pattern import TopicPattern
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import BrokerError, ErrorCode
from broker.net.delayed_answer import DelayedAnswer
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

# A member's error when a change of the membership cannot be stored. Every other code becomes UNKNOWN_SERVER_ERROR.
_MEMBERSHIP_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.none: ErrorCode.none,
    ErrorCode.request_timed_out: ErrorCode.rebalance_in_progress,
}


JOINS_S, MOST_JOINS_S = 0.01, 0.5
"""A member that joins waits so long for others that join at the same time, again after each, and at most so long."""

COMMIT_TIMEOUT_S = 5.0
"""How long a client waits until its offsets or its generation are stored (Kafka's offsets.commit.timeout.ms)."""


class GroupShard:
    """One partition's groups. `loaded` is False while they are replayed."""

    def __init__(
        self, partition: int, store: RecordStore, clock: Clock, kinds: GroupKinds, timer: DeadlineTimer
    ) -> None:
        self.partition = partition
        self.groups: dict[str, Group] = {}
        self.loaded = False
        self._unloaded = False
        self._store = store
        self._clock = clock
        self._kinds = kinds
        self._timer = timer
        self._writer = RecordWriter(store, partition)
        self._tasks = BackgroundTasks()
        self._last_joins: dict[ModernGroup, float] = {}
        # Group id → the time its timer is set to (monotonic s).
        self._armed: dict[str, float] = {}
        # Producer id → the groups in whose offsets its open transaction takes part.
        self._transactions: dict[int, set[str]] = {}
        # Transactions that ended during the replay (producer id, committed), in order.
        self._ended_while_loading: list[tuple[int, bool]] = []

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.now_ms())

    def create(self, group_id: str) -> Group:
        """Make an empty group. Nothing of it is stored yet."""
        group = self._kinds.classic(group_id, self._clock.now_ms())
        self.groups[group_id] = group
        return group

    def topics_changed(self, names: Collection[str]) -> None:
        """Topics were created, deleted, or have other partitions. Groups that subscribe to none of them only take note:
        there may be many."""
        topics, changed = self._kinds.topics(), frozenset(names)
        for group in tuple(self.groups.values()):
            if isinstance(group, ConsumerGroup):
                if group.membership.used_regexes() or not changed.isdisjoint(group.topics_in_use()):
                    self.perform(group, group.topics_changed(topics, self.now()))
                else:
                    group.topics = topics

    # --- replay ----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Replay the partition. Every member gets a new session."""
        began = self._clock.monotonic()
        replay = GroupReplay(self._kinds)
        async for run in self._store.read(self.partition):
            replay.add(run)
        await asyncio.to_thread(replay.build, self.now())
        if self._unloaded:
            return  # unloaded during the replay
        now = self.now()
        self.groups = replay.groups
        self._transactions = replay.open_transactions
        for producer_id, commit in self._ended_while_loading:
            self._end_transaction(producer_id, commit)
        for group in self.groups.values():
            if isinstance(group, ModernGroup):
                group.topics = self._kinds.topics()  # they may have changed during the replay
            self.perform(group, group.replayed(now))
        self.loaded = True
        if self.groups:
            spent = self._clock.monotonic() - began
            logger.info("Loaded %d groups of partition %d in %.2f s", len(self.groups), self.partition, spent)

    def unload(self, error: ErrorCode) -> None:
        """Forget the groups. Requests that wait get `error`."""
        self.loaded = False
        self._unloaded = True
        if error is ErrorCode.not_coordinator:
            self._writer.close()
        for group in self.groups.values():
            self.perform(group, group.kill(error, self.now()))
        self.groups = {}
        self._transactions = {}
        self._armed.clear()

    async def flush(self) -> None:
        await self._tasks.close()
        await self._writer.flush()

    # --- effects ---------------------------------------------------------------------------------

    def perform(self, group: Group, effects: Effects) -> None:
        """Carry out the effects of an event: answer, store, and set the group's timer."""
        for store in effects.stores:
            self._store_membership(group, store)
        for waiter, answer in effects.replies:
            if isinstance(waiter, DelayedAnswer):
                waiter.complete(answer)
            elif not (future := cast("asyncio.Future[Any]", waiter)).done():
                future.set_result(answer)
        if effects.successor is not None and self.groups.get(group.group_id) is group:
            self.groups[group.group_id] = group = effects.successor
            self.perform(group, group.tick(self.now()))
        if effects.resolve is not None:
            self._tasks.begin(f"looking up the topics of group {group.group_id}", self._resolve(group, effects.resolve))
        self._arm(group)

    def await_joins(self, group: ModernGroup) -> None:
        """A member joins. Many may at once, and shall share one batch: each further one costs all others a new target.

        To be called before its event.
        """
        loop = asyncio.get_running_loop()
        self._last_joins[group] = loop.time()
        if not group.awaits_joins:
            group.awaits_joins = True
            loop.call_later(JOINS_S, self._end_joins, group, loop.time())

    def _end_joins(self, group: ModernGroup, began: float) -> None:
        loop = asyncio.get_running_loop()
        until = min(self._last_joins[group] + JOINS_S, began + MOST_JOINS_S)
        if loop.time() < until:
            loop.call_at(until, self._end_joins, group, began)
        else:
            del self._last_joins[group]
            group.awaits_joins = False
            self.perform(group, group.tick(self.now()))

    def _store_membership(self, group: Group, store: Store) -> None:
        stored: Done = partial(self._membership_stored, group, store, group.obsolete_keys)
        if not isinstance(group, ModernGroup):
            stored = self._at_most_once(stored)
        try:
            records = [*((key, None) for key in group.obsolete_keys), *store.records()]
        except MalformedRecord as error:
            logger.warning("The members of group %s cannot be stored: %s", group.group_id, error)
            stored(ErrorCode.unknown_server_error)
        else:
            self._writer.write(records, stored)

    def _at_most_once(self, stored: Done) -> Done:
        """Calls `stored` when the append has ended or, with REQUEST_TIMED_OUT, when it takes too long.

        The group then forms another generation, whose record follows this one (as in Kafka).
        """
        is_done = False

        def once(code: ErrorCode) -> None:
            nonlocal is_done
            if not is_done:
                is_done = True
                time_out.cancel()
                stored(code)

        time_out = asyncio.get_running_loop().call_later(COMMIT_TIMEOUT_S, once, ErrorCode.request_timed_out)
        return once

    def _membership_stored(self, group: Group, store: Store, obsolete: list[bytes], code: ErrorCode) -> None:
        if code is ErrorCode.none and group.obsolete_keys is obsolete:
            group.obsolete_keys = []
        error = _MEMBERSHIP_ERRORS.get(code, ErrorCode.unknown_server_error)
        self.perform(group, group.stored(store, error, self.now()))

    async def _resolve(self, group: Group, asked: Resolve) -> None:
        """Look up the topics that patterns match and that the client may describe, in a thread."""
        allows = cast(Callable[[str], bool], asked.client)
        names = [name for name in self._kinds.topics() if allows(name)]

        def matches(regex: str) -> Collection[str]:
            try:
                return TopicPattern(regex).matching(names)
            except Exception as error:  # as in Kafka, it has no topics then; members sent it before it was too much
                logger.warning("Group %s: %s", group.group_id, error, exc_info=not isinstance(error, BrokerError))
                return ()

        found = await asyncio.to_thread(lambda: {regex: matches(regex) for regex in asked.regexes})
        if isinstance(group, ConsumerGroup) and self.groups.get(group.group_id) is group:
            self.perform(group, group.regexes_resolved(found, self.now()))

    def _arm(self, group: Group) -> None:
        if group.wake_at < self._armed.get(group.group_id, float("inf")):
            self._armed[group.group_id] = group.wake_at
            self._timer.at(group.wake_at, partial(self._wake, group.group_id, group.wake_at))

    def _wake(self, group_id: str, armed_for: float) -> None:
        """The timer does not hold the group, because a session may last 30 minutes longer than the leadership."""
        if self._armed.get(group_id) == armed_for:
            del self._armed[group_id]
            if (group := self.groups.get(group_id)) is not None:
                self.perform(group, group.tick(self.now()))

    # --- offsets ---------------------------------------------------------------------------------

    def commit(
        self,
        group: Group,
        records: Sequence[KeyValue],
        committed: Mapping[TopicPartition, OffsetAndMetadata],
        producer: ProducerIdAndEpoch | None,
    ) -> asyncio.Future[ErrorCode]:
        """Store offsets. They take effect once they are stored, those of a transaction once it is committed.

        The partitions of a transaction are unstable from before the append, so that a member of the next generation
        waits for what this generation may still commit (KIP-447).
        """
        if producer is not None:
            group.offsets.begin_append(committed)

        def applied(code: ErrorCode) -> None:
            if producer is not None:
                group.offsets.end_append(committed)
            if code is not ErrorCode.none:
                return
            if producer is not None:
                self._transactions.setdefault(producer.producer_id, set()).add(group.group_id)
            for partition, value in committed.items():
                if producer is None:
                    group.offsets.apply(partition, value)
                else:
                    group.offsets.add_pending(producer.producer_id, partition, value)

        return self._append(group, records, applied, producer)

    def transaction_ended(self, producer_id: int, *, commit: bool, waiting: Awaitable[object] | None = None) -> None:
        """The producer's marker is in the partition or, with `waiting`, is being appended."""
        self._writer.transaction_ended(partial(self._marker_stored, producer_id, commit), waiting)

    def _marker_stored(self, producer_id: int, commit: bool, code: ErrorCode) -> None:
        if code is not ErrorCode.none:
            return  # the transaction coordinator sends the marker again
        if self.loaded:
            self._end_transaction(producer_id, commit)
        else:  # the replay may read the marker or not; the second end of a transaction changes nothing
            self._ended_while_loading.append((producer_id, commit))

    def _end_transaction(self, producer_id: int, commit: bool) -> None:
        for group_id in self._transactions.pop(producer_id, ()):
            group = self.groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, commit=commit)

    def _append(
        self,
        group: Group,
        records: Sequence[KeyValue],
        applied: Callable[[ErrorCode], None],
        producer: ProducerIdAndEpoch | None = None,
    ) -> asyncio.Future[ErrorCode]:
        """Store records of a group's offsets, then call `applied`, then complete the future.

        When the followers are slow, the future is done with REQUEST_TIMED_OUT before. `applied` is called when it is
        known whether the records are stored, so that memory and log stay equal (Kafka drops them from memory).
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ErrorCode] = loop.create_future()
        time_out = loop.call_later(COMMIT_TIMEOUT_S, _complete, future, ErrorCode.request_timed_out)
        group.offsets.in_flight += 1

        def done(code: ErrorCode) -> None:
            group.offsets.in_flight -= 1
            time_out.cancel()
            try:
                applied(code)
            finally:
                _complete(future, code)

        if producer is None:
            self._writer.write(records, done)
        else:
            self._writer.write_now(records, done, producer)  # a transaction needs a batch of its own
        return future

    def delete_offsets(self, group: Group, partitions: Sequence[TopicPartition]) -> asyncio.Future[ErrorCode]:
        """Write tombstones for offsets, and remove the offsets once these are stored."""

        def applied(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                for partition in partitions:
                    group.offsets.apply(partition, None)
                if self.groups.get(group.group_id) is group and group.is_unused and not len(group.offsets):
                    self.delete_group(group)

        tombstones = [(encode_offset_key(group.group_id, *partition), None) for partition in partitions]
        return self._append(group, tombstones, applied)

    def delete_group(self, group: Group) -> asyncio.Future[ErrorCode]:
        """Write tombstones for an empty group and all its offsets, and remove it once these are stored."""
        group.set_dead(True)  # refuses joins and commits until the append has ended

        def applied(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                group.set_dead(False)
            elif self.groups.get(group.group_id) is group:
                del self.groups[group.group_id]
                self._armed.pop(group.group_id, None)

        partitions = dict.fromkeys([*group.offsets.all(), *group.offsets.pending_partitions])
        tombstones: list[KeyValue] = [(encode_offset_key(group.group_id, *tp), None) for tp in partitions]
        tombstones += [(key, None) for key in (*group.obsolete_keys, *group.stored_keys())]
        return self._append(group, tombstones, applied)

    def expire(self) -> None:
        """Delete expired offsets, and groups that have nothing left."""
        now = self.now()
        for group in list(self.groups.values()):
            if group.offsets.in_flight:
                continue
            expired = group.expired_offsets(now)
            if group.is_unused and len(expired) == len(group.offsets):
                if expired or group.has_records:
                    self.delete_group(group)
                else:
                    del self.groups[group.group_id]  # it has no records in the log
            elif expired:
                self.delete_offsets(group, expired)


def _complete(future: asyncio.Future[ErrorCode], code: ErrorCode) -> None:
    if not future.done():
        future.set_result(code)
