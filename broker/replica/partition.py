"""A partition this broker leads: its log, its high watermark, and the fetches that wait for more.

Called by api/produce, api/fetch, api/list_offsets and the offsets store. With one replica a record is
committed once it is appended, so the high watermark is the log end offset; but records that the topic wants on disk
before they are acknowledged (flush.messages, flush.ms) lie above it until their fsync. While the disk is slow, all
that is appended is so in turns that do not hold up the event loop. Not thread-safe: the event loop owns it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from concurrent.futures import Executor

from broker.errors import BrokerError, ErrorCode
from broker.log.aborted_index import AbortedTransaction
from broker.log.append_checks import BatchCheck, Batches
from broker.log.log import Log
from broker.log.pending_append import AppendResult, PendingAppend, complete
from broker.log.segment_file import FileSlice
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import ControlType
from broker.replica.append_queue import AppendQueue
from broker.replica.delayed_fetch import DelayedFetch
from broker.replica.group_commit import GroupCommit

__all__ = ["UNKNOWN_EPOCH", "Partition"]

UNKNOWN_EPOCH = (-1, -1)

Turn = tuple[AppendResult, asyncio.Future[None] | None]
"""What was appended when its turn came, and what to wait for until it is safe."""


class Partition:
    """The leader's view of one partition."""

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        leader_epoch: int,
        threads: Executor | None = None,
        append_threads: Executor | None = None,
    ) -> None:
        """`threads` do the fsyncs that somebody waits for, `append_threads` the writes to a slow disk."""
        self._commit = GroupCommit(log, threads, self._flushed)
        self._queue = AppendQueue(append_threads)
        self._is_closed = False
        self._held: int | None = None
        """What lies from here on is kept from readers until it is on disk; None while nothing is."""
        self._held_markers: list[tuple[int, int]] = []
        """(offset, last stable offset before it) of markers that are not on disk."""
        self._shown = 0, 0
        """High watermark and last stable offset, as fetches that wait were told of last."""
        self.tp = tp
        self.log = log
        self.leader_epoch = leader_epoch
        self.waiters: set[DelayedFetch] = set()
        self.bytes_in = self.messages_in = self.bytes_out = 0
        """Since we became its leader, for the metrics; `bytes_out` is counted by who sends what was read."""

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed record."""
        if self._held is None:
            return self.log.log_end_offset
        return min(max(self._held, self.log.recovery_point), self.log.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which no transaction is open (Kafka's `UnifiedLog.fetchLastStableOffsetMetadata`).

        With one replica a marker is committed once it is appended. With more, a transaction stays unstable until
        its marker is below the high watermark.
        """
        unstable = self.log.first_unstable_offset
        if self._held is None:
            return self.log.log_end_offset if unstable is None else unstable
        point = self.log.recovery_point
        bounds = [stable for offset, stable in self._held_markers if offset >= point]
        if unstable is not None:
            bounds.append(unstable)
        return min([self.high_watermark, *bounds])

    def check_epoch(self, epoch: int) -> None:
        """Raise when a client names another leader epoch than ours (KIP-320); -1 names none."""
        if 0 <= epoch < self.leader_epoch:
            raise BrokerError(ErrorCode.fenced_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise BrokerError(ErrorCode.unknown_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest leader epoch up to `epoch`; (-1, -1) when unknown."""
        return self.log.end_offset_for_epoch(epoch, self.leader_epoch)

    def append(self, records: bytes | bytearray | memoryview) -> AppendResult | Awaitable[AppendResult]:
        """Append a coordinator's batches, as `append_checked`. That they are too large is raised now."""
        return self._go_through(self._appending_own(*self.log.check_coordinator_batches(records)))

    def _appending_own(self, buffer: bytearray | memoryview, batches: Batches) -> PendingAppend[AppendResult]:
        result = yield from self.log.prepare_coordinator_append(buffer, batches, leader_epoch=self.leader_epoch)
        return self._appended(result, len(buffer))

    def append_checked(self, check: BatchCheck) -> AppendResult | Awaitable[AppendResult]:
        """Append as leader a client's batch whose check is done, and wake the fetches that wait.

        While the disk is slow, what to await instead: the batch is appended in its turn, then, and safe. Raises
        BrokerError, now or then.
        """
        return self._go_through(self._appending(check))

    def _appending(self, check: BatchCheck) -> PendingAppend[AppendResult]:
        result = yield from self.log.prepare_append(check, leader_epoch=self.leader_epoch)
        return self._appended(result, check.size_as_sent)

    def _go_through(self, steps: PendingAppend[AppendResult]) -> AppendResult | Awaitable[AppendResult]:
        """At once or, while the disk is slow, in turn with the others: into the queue now, whenever that is awaited."""
        if not (self._queue.is_busy or self.log.is_slow):
            return complete(steps)

        def turn() -> PendingAppend[Turn]:
            if self._is_closed:
                raise BrokerError(ErrorCode.not_leader_or_follower, f"{self.tp} is not led here any more")
            result = yield from steps
            return result, self.flushed()

        return _safe(self._queue.add(turn))

    async def settled(self) -> None:
        """Wait for the appends that are under way."""
        await self._queue.settled()

    def _appended(self, result: AppendResult, size: int) -> AppendResult:
        if result.duplicate:
            return result
        self.bytes_in += size
        self.messages_in += result.last_offset - result.base_offset + 1
        if not self._hold(result.base_offset) and self.waiters:
            stable = size if self.log.first_unstable_offset is None else 0
            self._tell(size, stable)
        return result

    def append_marker(
        self, producer_id: int, producer_epoch: int, control_type: ControlType, coordinator_epoch: int
    ) -> AppendResult | Awaitable[AppendResult]:
        """End a producer's transaction here and wake the fetches that wait for it.

        While the disk is slow, what to await instead, as of `append_checked`. Raises BrokerError, now or then:
        `invalid_producer_epoch`, `transaction_coordinator_fenced`, `kafka_storage_error`.
        """
        return self._go_through(self._ending(producer_id, producer_epoch, control_type, coordinator_epoch))

    def _ending(
        self, producer_id: int, producer_epoch: int, control_type: ControlType, coordinator_epoch: int
    ) -> PendingAppend[AppendResult]:
        unstable = self.log.first_unstable_offset
        result = yield from self.log.prepare_marker(
            producer_id, producer_epoch, control_type, coordinator_epoch, leader_epoch=self.leader_epoch
        )
        stable = result.base_offset if unstable is None else unstable
        if self._hold(result.base_offset, stable):
            self._held_markers.append((result.base_offset, stable))
        elif self.waiters:
            size = self._bytes_between(result.base_offset, result.last_offset + 1)
            self._tell(size, self._bytes_between(stable, self.last_stable_offset))
        return result

    def flushed(self) -> asyncio.Future[None] | None:
        """To be awaited before what was appended is acknowledged; None where the topic does not ask for an fsync.

        It raises BrokerError `kafka_storage_error`; the records then stay above the high watermark.
        """
        return self._commit.wait() if self.log.flush_due() else None

    def _hold(self, offset: int, stable: int | None = None) -> bool:
        """Keep what was just appended at `offset` from readers, if it has to be on disk first.

        `stable` was the last stable offset before, if the append has moved it.
        """
        if self._held is None:
            if not self.log.flush_due():
                return False
            unstable = self.log.first_unstable_offset
            if stable is None:
                stable = offset if unstable is None else min(unstable, offset)
            self._held, self._shown = offset, (offset, stable)
        return True

    def _flushed(self) -> None:
        """An fsync was made: show what it covers, and wake the fetches that wait for it."""
        if self._held is None:
            return
        point = self.log.recovery_point
        self._held_markers = [held for held in self._held_markers if held[0] >= point]
        self._held = max(self._held, point) if self._commit.is_waited_for else None
        before, self._shown = self._shown, (self.high_watermark, self.last_stable_offset)
        if self.waiters:
            self._tell(*(self._bytes_between(old, new) for old, new in zip(before, self._shown, strict=True)))

    def _tell(self, gained: int, stable: int) -> None:
        """There are `gained` more bytes, and `stable` more of them below the last stable offset."""
        for waiter in tuple(self.waiters):
            waiter.gained(stable if waiter.committed else gained)

    def _bytes_between(self, start: int, end: int) -> int:
        """Of one segment: what a fetch gets that begins at `start`, or where the log starts by now."""
        found = self.log.read(max(start, self.log.log_start_offset), sys.maxsize, up_to=end)
        return 0 if found is None else found.length

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> FileSlice | None:
        """Records from `offset` up to the high watermark or, with `committed`, the last stable offset.

        Those of aborted transactions are among them: see `aborted_in`. Raises BrokerError `offset_out_of_range`.
        """
        up_to = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, up_to=up_to)

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end). Raises BrokerError."""
        return self.log.aborted_between(start, end)

    def aborted_in(self, offset: int, found: FileSlice) -> list[AbortedTransaction]:
        """The aborted transactions in what `read` just gave for `offset` and `committed`. Raises BrokerError."""
        return self.log.aborted_in(offset, found, self.last_stable_offset)

    def close(self) -> None:
        """The partition is no longer ours: let every waiting fetch find out, and every append that has not begun."""
        self._is_closed = True
        for waiter in tuple(self.waiters):
            waiter.end()


async def _safe(turn: asyncio.Future[Turn]) -> AppendResult:
    result, flushed = await turn
    if flushed is not None:
        await flushed
    return result
