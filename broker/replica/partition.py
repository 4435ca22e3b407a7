"""A partition that this broker leads: its log, its high watermark, and the requests that wait for it.

With one replica a record is committed once it is appended, so the high watermark is the log end offset. With several,
`in_sync` says how far the in-sync replicas are. Records that the topic wants on disk before they are acknowledged
(flush.messages, flush.ms) stay above the watermark until their fsync. While the disk is slow, appends go through a
queue and their writes run in a thread. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Executor

from broker.clock import Clock, SystemClock
from broker.errors import BrokerError, ErrorCode
from broker.log.append_checks import BatchCheck, Batches
from broker.log.log import Log
from broker.log.pending_append import AppendResult, PendingAppend, complete
from broker.metrics import TopicMetrics
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import BatchHeader
from broker.records.control import BUMPS_EPOCH, EndMarker
from broker.replica.append_queue import AppendQueue
from broker.replica.cluster_metadata import NO_STATE, PartitionInfo
from broker.replica.group_commit import GroupCommit
from broker.replica.in_sync_state import UNKNOWN_OFFSET, InSyncState
from broker.replica.offset_purgatory import OffsetPurgatory, OnPassed
from broker.replica.replica import Replica

NO_REPLICA = -1
"""Read from this broker (KIP-392)."""

Turn = tuple[AppendResult, asyncio.Future[None] | None]
"""The result of a queued append, and the fsync to wait for, if any."""


class Partition(Replica):
    """The leader's view of one partition."""

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        leader_epoch: int,
        threads: Executor | None = None,
        append_threads: Executor | None = None,
        *,
        info: PartitionInfo | None = None,
        high_watermark: int = 0,
        max_lag_s: float = 30.0,
        clock: Clock | None = None,
        on_isr: Callable[[Partition], None] = lambda partition: None,
        broker_epochs: Mapping[int, int] | None = None,
        queue: AppendQueue | None = None,
        metrics: TopicMetrics | None = None,
    ) -> None:
        """`threads` run the fsyncs that appends wait for, `append_threads` the writes to a slow disk.

        `info` names the replicas; without it, or with one replica, nothing waits for followers. `high_watermark` is
        what this replica knew before it became leader. `max_lag_s` is replica.lag.time.max.ms. `on_isr` is called when
        the ISR should change (isr_writer.py). `broker_epochs`: see `InSyncState`.
        """
        super().__init__(tp, log, leader_epoch, metrics)
        self._commit = GroupCommit(log, threads, self._flushed)
        self.queue = AppendQueue(append_threads) if queue is None else queue
        self._is_closed = False
        self._held: int | None = None
        """Records from this offset on are hidden from readers until they are on disk; None: no record is hidden."""
        self._held_markers: list[tuple[int, int]] = []
        """(offset, last stable offset before it) of transaction markers at or above the high watermark."""
        self._visible = 0, 0
        """High watermark and last stable offset of the last notification to waiting fetches."""
        self._produces = OffsetPurgatory()
        self._deletions = OffsetPurgatory()
        """Wait for `low_watermark`."""
        self._verifications: dict[int, object] = {}
        """Producer id → the guard of its verification (`begin_verification`)."""
        self._max_lag_s = max_lag_s
        self._clock = clock or SystemClock()
        self._on_isr = on_isr
        self._broker_epochs = broker_epochs
        self.in_sync: InSyncState | None = None
        """What is known of the followers; None while there is only one replica."""
        self.version = NO_STATE
        """Version of the state in ZooKeeper that this partition knows; only a newer one changes the ISR."""
        log.committed, log.told_archived_end, log.archive_moved = None, 0, self._archive_moved
        if info is not None:
            self.adding = info.adding
        if info is not None and len(info.replicas) > 1:
            self._begin_epoch(info, high_watermark)

    # --- offsets

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed record."""
        end = self.log.log_end_offset
        if self._held is not None:
            end = min(max(self._held, self.log.recovery_point), end)
        in_sync = self.in_sync
        return end if in_sync is None or in_sync.high_watermark > end else in_sync.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open (Kafka's `UnifiedLog.fetchLastStableOffsetMetadata`).

        A transaction stays open until its marker is below the high watermark. Markers that were appended before this
        broker became leader count as committed. That is safe, because a transaction is decided for good before its
        first marker is written.
        """
        unstable = self.log.first_unstable_offset
        if self._held is None and self.in_sync is None:
            return self.log.log_end_offset if unstable is None else unstable
        high_watermark = self.high_watermark
        if unstable is None and not self._held_markers:
            return high_watermark
        bounds = [stable for offset, stable in self._held_markers if offset >= high_watermark]
        if unstable is not None:
            bounds.append(unstable)
        return min([high_watermark, *bounds])

    @property
    def is_catching_up(self) -> bool:
        """Whether the high watermark is below the start of this leader epoch, so that an earlier leader may have shown
        clients a higher one (KIP-207)."""
        return self.in_sync is not None and self.in_sync.high_watermark < self.in_sync.epoch_start

    # --- appending

    def append(self, records: bytes | bytearray | memoryview) -> AppendResult | Awaitable[AppendResult]:
        """Append a coordinator's batches as `append_checked` does. Too large batches raise BrokerError at once.

        After `close` it raises `not_leader_or_follower`: a coordinator may not know yet that it was deposed (P7).
        """
        if self._is_closed:
            raise self._not_led()
        return self._submit(self._appending_own(*self.log.check_coordinator_batches(records)))

    def _appending_own(self, buffer: bytearray | memoryview, batches: Batches) -> PendingAppend[AppendResult]:
        result = yield from self.log.prepare_coordinator_append(buffer, batches, leader_epoch=self.leader_epoch)
        return self._appended(result, len(buffer))

    def append_checked(self, check: BatchCheck) -> AppendResult | Awaitable[AppendResult]:
        """Append a client's batch that has been checked, and notify waiting fetches.

        While the disk is slow, returns an awaitable instead: its result comes when the batch is appended and, if the
        topic asks for it, flushed. Raises BrokerError, at once or when awaited.
        """
        return self._submit(self._appending(check))

    def _appending(self, check: BatchCheck) -> PendingAppend[AppendResult]:
        result = yield from self.log.prepare_append(check, leader_epoch=self.leader_epoch)
        return self._appended(result, check.size_as_sent)

    def _submit(self, append: PendingAppend[AppendResult]) -> AppendResult | Awaitable[AppendResult]:
        """Append at once or, while the disk is slow, through the queue. The caller need not await the result."""
        if not (self.queue.is_busy or self.log.is_slow):
            return complete(append)

        def turn() -> PendingAppend[Turn]:
            if self._is_closed:
                raise self._not_led()
            result = yield from append
            return result, self.flushed()

        return _flushed(self.queue.add(turn))

    def _appended(self, result: AppendResult, size: int) -> AppendResult:
        if result.duplicate:
            return result
        self.metrics.bytes_in += size
        self.metrics.messages_in += result.last_offset - result.base_offset + 1
        is_held = self._hold(result.base_offset)
        if self.in_sync is not None:
            self.in_sync.appended(self.log.log_end_offset, self._clock.monotonic())
            self._advanced(size)
        elif not is_held and self.waiters:
            stable = size if self.log.first_unstable_offset is None else 0
            self._notify(size, stable)
        return result

    def append_marker(self, marker: EndMarker) -> AppendResult | Awaitable[AppendResult]:
        """End a producer's transaction in this partition and notify waiting fetches.

        While the disk is slow, returns an awaitable as `append_checked` does. Raises BrokerError
        `invalid_producer_epoch`, `transaction_coordinator_fenced`, `kafka_storage_error`, `not_leader_or_follower`, at
        once or when awaited.
        """
        if self._is_closed:
            raise self._not_led()
        if marker.transaction_version < BUMPS_EPOCH:
            self._verifications.pop(marker.producer_id, None)
        return self._submit(self._ending(marker))

    def _ending(self, marker: EndMarker) -> PendingAppend[AppendResult]:
        unstable = self.log.first_unstable_offset
        result = yield from self.log.prepare_marker(marker, leader_epoch=self.leader_epoch)
        stable = result.base_offset if unstable is None else unstable
        is_held = self._hold(result.base_offset, stable)
        if is_held or self.in_sync is not None:
            self._held_markers.append((result.base_offset, stable))
        size = self._bytes_between(result.base_offset, result.last_offset + 1) if self.waiters else 0
        if self.in_sync is not None:
            self.in_sync.appended(self.log.log_end_offset, self._clock.monotonic())
            self._advanced(size)
        elif not is_held and self.waiters:
            self._notify(size, self._bytes_between(stable, self.last_stable_offset))
        return result

    def flushed(self) -> asyncio.Future[None] | None:
        """A future to await before acknowledging an append; None when the topic asks for no fsync.

        It raises BrokerError `kafka_storage_error`; then the records stay above the high watermark.
        """
        return self._commit.wait() if self.log.flush_due() else None

    def _hold(self, offset: int, stable: int | None = None) -> bool:
        """Hide the append at `offset` from readers if it must be on disk first; whether it is hidden.

        `stable` is the last stable offset before the append, if the append has moved it.
        """
        if self._held is None:
            if not self.log.flush_due():
                return False
            unstable = self.log.first_unstable_offset
            if stable is None:
                stable = offset if unstable is None else min(unstable, offset)
            self._held = offset
            if self.in_sync is None:
                self._visible = offset, stable
        return True

    def _flushed(self) -> None:
        """After an fsync: show the flushed records to readers and notify waiting fetches."""
        if self._held is None:
            return
        self._held = max(self._held, self.log.recovery_point) if self._commit.is_waited_for else None
        self._advanced()

    def _advanced(self, appended: int = 0) -> None:
        """The high watermark may have advanced, and `appended` bytes were appended: end what waited for that."""
        before, self._visible = self._visible, (self.high_watermark, self.last_stable_offset)
        high_watermark, _ = self._visible
        if self._held_markers:
            self._held_markers = [held for held in self._held_markers if held[0] >= high_watermark]
        if self.in_sync is not None:
            self.log.committed = high_watermark
        self._produces.advance(high_watermark)
        if self.waiters:
            self._notify_advance(before, self._visible, appended)

    # --- replicas

    def check_replica(self, replica: int, broker_epoch: int = -1) -> None:
        """Raise BrokerError `unknown_leader_epoch` unless the broker is a follower, `not_leader_or_follower` for a
        fetch of an earlier registration of the broker (KIP-903).

        This broker may not know of its assignment yet, so it shall try again.
        """
        if self.in_sync is None or replica not in self.in_sync.followers:
            raise BrokerError(ErrorCode.unknown_leader_epoch, f"broker {replica} is no follower of {self.tp}")
        if self.in_sync.is_fenced(replica, broker_epoch):
            text = f"broker {replica} has registered again since its broker epoch {broker_epoch}"
            raise BrokerError(ErrorCode.not_leader_or_follower, text)

    def preferred_read_replica(self, offset: int, nearby: Collection[int]) -> int:
        """The broker among `nearby` that a consumer at `offset` should read from (KIP-392); -1 for this one.

        As Kafka's `RackAwareReplicaSelector`: the replica in the ISR that is farthest, if it has that offset.
        """
        if self.in_sync is None:
            return NO_REPLICA
        found = [
            (follower.log_end_offset, follower.caught_up_at, broker_id)
            for broker_id, follower in self.in_sync.followers.items()
            if broker_id in nearby
            and broker_id in self.in_sync.isr
            and follower.log_start_offset <= offset <= follower.log_end_offset
        ]
        return max(found)[2] if found else NO_REPLICA

    def is_in_sync(self, replica: int) -> bool:
        return self.in_sync is not None and replica in self.in_sync.isr

    def is_known(self, replica: int) -> bool:
        """Whether the position of this follower is known. A new state of the partition lets the leader forget it."""
        return self.in_sync is not None and self.in_sync.is_known(replica)

    def brokers_changed(self) -> None:
        """Brokers came or went: a follower may join the ISR now, or must be counted again."""
        if self.in_sync is not None:
            self._notify(0, 0)
            self._deletions.advance(self.low_watermark)
            if self.isr_to_write() is not None:
                self._on_isr(self)

    def fetched_by(self, replica: int, offset: int, broker_epoch: int = -1, log_start_offset: int = 0) -> None:
        """A follower asks for `offset` in this leader epoch, so its log is equal to this one up to there.

        Its log begins at `log_start_offset`; -1 says nothing. Call it once for each fetch, after `check_replica` and
        `diverging_epoch`.
        Raises BrokerError `offset_out_of_range`.
        """
        in_sync = self.in_sync
        assert in_sync is not None
        start, end = self.log.log_start_offset, self.log.log_end_offset
        if not start <= offset <= end:
            raise BrokerError(ErrorCode.offset_out_of_range, f"offset {offset} is not in [{start}, {end}] of {self.tp}")
        now = self._clock.monotonic()
        advanced = False
        if end != in_sync.log_end_offset:  # a write that began while this broker was a follower has ended
            advanced = in_sync.appended(end, now)
        advanced |= in_sync.fetched(replica, offset, now, broker_epoch)
        if log_start_offset >= 0:
            in_sync.followers[replica].log_start_offset = log_start_offset
        if self._deletions:
            self._deletions.advance(self.low_watermark)
        if advanced:
            self._advanced()
        if in_sync.pending_isr is None and in_sync.may_join(replica, now):
            self._on_isr(self)

    def check_min_isr(self) -> None:
        """Raise BrokerError `not_enough_replicas` when fewer replicas are in sync than min.insync.replicas asks for."""
        in_sync = self.in_sync
        if in_sync is not None and len(in_sync.isr) < in_sync.min_isr:
            isr, needed = sorted(in_sync.isr), in_sync.min_isr
            text = f"{self.tp}: min.insync.replicas={needed}, but the in-sync replicas are {isr}"
            raise BrokerError(ErrorCode.not_enough_replicas, text)

    def watch_commit(self, offset: int, on_commit: OnPassed) -> bool:
        """Call `on_commit` when the record at `offset` is below the high watermark; False if it is already.

        With one replica it is at once. While too few replicas are in sync the wait goes on, as in Kafka since KIP-966:
        the watermark stands still, and the record may be committed later. `on_commit` gets BrokerError
        `not_leader_or_follower` when this broker stops leading the partition. The record stays in the log then, and may
        be committed or lost. This method raises that error, too.
        """
        if self.in_sync is None or offset < self.high_watermark:
            return False
        if self._is_closed:
            raise self._not_led()
        self._produces.watch(offset, on_commit)
        return True

    def unwatch_commit(self, offset: int, on_commit: OnPassed) -> None:
        """Nobody waits for it any more. Without this a partition that lacks replicas for hours would keep them all."""
        self._produces.unwatch(offset, on_commit)

    def until_safe(self, appended: AppendResult | Awaitable[AppendResult]) -> Awaitable[object] | None:
        """What a coordinator awaits before it acts on its append: the fsync, if due, then all in-sync replicas (P7).

        None if the records are safe already. The awaitable raises BrokerError: what the append raises,
        `kafka_storage_error`, or `not_leader_or_follower` when this broker stops leading the partition. A later leader
        may have the records or not.
        """
        if not isinstance(appended, AppendResult):
            return self._safe_after(appended)
        flushed = self.flushed()
        if flushed is None:
            return self._until_committed(appended.last_offset)
        return flushed if self.in_sync is None else self._safe_after(flushed, appended.last_offset)

    async def _safe_after(self, stored: Awaitable[AppendResult | None], last_offset: int = -1) -> None:
        result = await stored
        waiting = self._until_committed(last_offset if result is None else result.last_offset)
        if waiting is not None:
            await waiting

    def _until_committed(self, offset: int) -> asyncio.Future[None] | None:
        if self.in_sync is None or offset < self.high_watermark:
            return None
        if self._is_closed:
            raise self._not_led()
        return self._produces.wait(offset)

    def caught_up(self) -> asyncio.Future[None] | None:
        """A future that is done when the high watermark has reached the start of this leader epoch; None if it has.

        From then on a read gives every record that an earlier leader has committed, so a coordinator may load. Raises
        BrokerError `not_leader_or_follower`, now or when awaited.
        """
        return None if self.in_sync is None else self._until_committed(self.in_sync.epoch_start - 1)

    # --- deletion of records

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of this replica and of the followers whose brokers are registered."""
        start = self.log.log_start_offset
        return start if self.in_sync is None else self.in_sync.low_watermark(start)

    def delete_records(self, before: int) -> None:
        """Let the log start at offset `before`, and tell the followers. Raises BrokerError `offset_out_of_range`."""
        self.log.delete_records(before)
        self._notify(0, 0, sys.maxsize)  # ends the waits of followers only

    def _archive_moved(self) -> None:
        """The archive has grown or starts later: tell the followers, and requests that wait for the start."""
        if not self._is_closed:
            self._deletions.advance(self.low_watermark)
            self._notify(0, 0, sys.maxsize)

    def until_deleted(self, before: int) -> asyncio.Future[None] | None:
        """A future that is done when all replicas begin at offset `before` or later; None if they do.

        Brokers that are not registered do not count: theirs learn of it when they come back. Raises BrokerError
        `not_leader_or_follower`, now or when awaited. Cancel the future to wait no longer.
        """
        if self.low_watermark >= before:
            return None
        if self._is_closed:
            raise self._not_led()
        return self._deletions.wait(before - 1)

    # --- producers

    def is_duplicate(self, header: BatchHeader) -> bool:
        """Whether the log has this batch of an idempotent producer already."""
        entry = self.log.producers.get(header.producer_id)
        return entry is not None and entry.duplicate_of(header) is not None

    # --- transactions whose coordinator is another broker (KIP-890)

    def has_open_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the log has records of the producer's open transaction, and no marker is queued behind them."""
        entry = self.log.producers.get(producer_id)
        is_open = entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == producer_epoch
        return is_open and not self.queue.is_busy

    def begin_verification(self, producer_id: int) -> object:
        """A guard for the time in which the coordinator of a producer's transaction is asked whether it is open.

        A marker that comes meanwhile makes the guard invalid: records that follow it would open a transaction that
        nobody ends (Kafka's VerificationGuard). In version 2 of transactions their epoch tells: a marker of the same
        epoch has ended the transaction before, and after one of a higher epoch they are refused.
        """
        return self._verifications.setdefault(producer_id, object())

    def end_verification(self, producer_id: int, guard: object) -> bool:
        """Whether `guard` is valid. Append the producer's records in the same step of the event loop, or not at all."""
        if self._verifications.get(producer_id) is not guard:
            return False
        del self._verifications[producer_id]
        return True

    def update_state(self, info: PartitionInfo) -> None:
        """The metadata was read again, or this broker has written the ISR: take assignment, leader epoch and ISR.

        Older states than the known one change nothing. Requests that wait go on waiting in the new epoch of the same
        leader: the watermark goes on from where it is.
        """
        if info.leader_epoch < self.leader_epoch:
            return
        in_sync, self.adding = self.in_sync, info.adding
        if in_sync is None and len(info.replicas) == 1:
            self.leader_epoch, self.version = info.leader_epoch, info.version
        elif in_sync is None or info.leader_epoch > self.leader_epoch:
            self._begin_epoch(info, self.log.log_end_offset if in_sync is None else in_sync.high_watermark)
        else:
            if in_sync.followers.keys() | {info.leader} != set(info.replicas):
                in_sync.reassigned(info.replicas, self._clock.monotonic())
            self._take_isr(in_sync, info.isr, info.version)
        if self.in_sync is not None:
            self._advanced()
        self._deletions.advance(self.low_watermark)

    def _take_isr(self, in_sync: InSyncState, isr: Collection[int], version: int) -> None:
        if version > self.version:
            self.version = version
            in_sync.written(isr, self._clock.monotonic())

    def check(self) -> None:
        """Look at the watermark again after a while: it need no longer wait for a follower that has been silent."""
        if self.in_sync is not None and self.in_sync.advance(self._clock.monotonic()):
            self._advanced()

    def suspect(self, broker_id: int, since: float) -> None:
        """A broker seems to be dead since that moment: as a follower it leaves the ISR, unless it has fetched since."""
        if self.in_sync is not None:
            self.in_sync.suspect(broker_id, since)

    # --- changes of the ISR, for isr_writer.py

    def isr_to_write(self) -> frozenset[int] | None:
        """The ISR that should be in ZooKeeper; None when it is there."""
        if self.in_sync is None or self._is_closed:
            return None
        if self.in_sync.pending_isr is None and self._failure and (others := self.in_sync.without_leader()):
            return others
        return self.in_sync.pending_isr or self.in_sync.wanted_isr(self._clock.monotonic())

    @property
    def _failure(self) -> str:
        """Why this replica takes no records any more. Then it gives up leadership, if another one can lead."""
        return self.log.failure or self.log.disk.broken

    def begin_isr_write(self, isr: frozenset[int]) -> str:
        """`isr` is being written; returns why, for the log."""
        assert self.in_sync is not None
        now, end = self._clock.monotonic(), self.log.log_end_offset
        reasons = [f"broker {replica} has caught up" for replica in sorted(isr - self.in_sync.isr)]
        for replica in sorted(self.in_sync.isr - isr):
            follower = self.in_sync.followers.get(replica)
            if replica == self.in_sync.leader:
                reasons.append(f"broker {replica} gives up leadership: {self._failure}")
            elif follower is None:
                reasons.append(f"broker {replica} is no replica")
            elif follower.is_suspected:
                reasons.append(f"broker {replica} seems to be dead")
            elif follower.log_end_offset == UNKNOWN_OFFSET:
                reasons.append(f"broker {replica} has not fetched in leader epoch {self.leader_epoch}")
            else:
                lag = f"has not caught up for {now - follower.caught_up_at:.1f} s"
                reasons.append(f"broker {replica} {lag} (it is at {follower.log_end_offset} of {end})")
        self.in_sync.writing(isr)
        return ", ".join(reasons)

    def isr_written(self, leader_epoch: int, isr: Collection[int], version: int) -> None:
        """ZooKeeper has the ISR that this broker wrote, in a state with this leader epoch and version."""
        if self.in_sync is not None and leader_epoch == self.leader_epoch:
            self._take_isr(self.in_sync, isr, version)
            self._advanced()

    def _begin_epoch(self, info: PartitionInfo, high_watermark: int) -> None:
        """Lead several replicas in the epoch of `info`. Positions of followers are not known yet."""
        before = self._visible if self.in_sync is not None else None
        self.in_sync = InSyncState(
            info.leader,
            info.replicas,
            info.isr,
            high_watermark=max(high_watermark, self.log.local_start_offset),
            log_end_offset=self.log.log_end_offset,
            now=self._clock.monotonic(),
            max_lag_s=self._max_lag_s,
            min_isr=lambda: self.log.config.min_insync_replicas,
            broker_epochs=self._broker_epochs,
        )
        self.leader_epoch, self.version = info.leader_epoch, info.version
        self._visible = before or (self.high_watermark, self.last_stable_offset)
        self.log.committed = self.high_watermark

    def _not_led(self) -> BrokerError:
        return BrokerError(ErrorCode.not_leader_or_follower, f"{self.tp} is not led here any more")

    def close(self) -> None:
        """Stop leading the partition: end waiting requests, and refuse queued appends that have not begun."""
        self._is_closed = True
        self._produces.fail(self._not_led())
        self._deletions.fail(self._not_led())
        for waiter in tuple(self.waiters):
            waiter.end()


async def _flushed(turn: asyncio.Future[Turn]) -> AppendResult:
    result, flushed = await turn
    if flushed is not None:
        await flushed
    return result
