"""A partition that this broker leads: its log, its high watermark, and the fetches that wait for records.

With one replica a record is committed once it is appended, so the high watermark is the log end offset. Records that
the topic wants on disk before they are acknowledged (flush.messages, flush.ms) stay above it until their fsync. While
the disk is slow, appends go through a queue and their writes run in a thread. Belongs to the event loop.
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
from broker.records.control import EndMarker
from broker.replica.append_queue import AppendQueue
from broker.replica.delayed_fetch import Waiter
from broker.replica.group_commit import GroupCommit

__all__ = ["UNKNOWN_EPOCH", "Partition"]

UNKNOWN_EPOCH = (-1, -1)

Turn = tuple[AppendResult, asyncio.Future[None] | None]
"""The result of a queued append, and the fsync to wait for, if any."""


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
        """`threads` run the fsyncs that appends wait for, `append_threads` the writes to a slow disk."""
        self._commit = GroupCommit(log, threads, self._flushed)
        self._queue = AppendQueue(append_threads)
        self._is_closed = False
        self._held: int | None = None
        """Records from this offset on are hidden from readers until they are on disk; None: no record is hidden."""
        self._held_markers: list[tuple[int, int]] = []
        """(offset, last stable offset before it) of transaction markers that are not on disk."""
        self._visible = 0, 0
        """High watermark and last stable offset of the last notification to waiting fetches."""
        self.tp = tp
        self.log = log
        self.leader_epoch = leader_epoch
        self.waiters: set[Waiter] = set()
        self.bytes_in = self.messages_in = self.bytes_out = 0
        """For the metrics, since this broker became leader. api/fetch counts `bytes_out`."""

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed record."""
        if self._held is None:
            return self.log.log_end_offset
        return min(max(self._held, self.log.recovery_point), self.log.log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """Offset below which no transaction is open (Kafka's `UnifiedLog.fetchLastStableOffsetMetadata`).

        A transaction stays open until its marker is below the high watermark.
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
        """Raise BrokerError when a client names another leader epoch than ours (KIP-320); -1 names none."""
        if 0 <= epoch < self.leader_epoch:
            raise BrokerError(ErrorCode.fenced_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise BrokerError(ErrorCode.unknown_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest leader epoch <= `epoch`; (-1, -1) when unknown."""
        return self.log.end_offset_for_epoch(epoch, self.leader_epoch)

    def append(self, records: bytes | bytearray | memoryview) -> AppendResult | Awaitable[AppendResult]:
        """Append a coordinator's batches as `append_checked` does. Too large batches raise BrokerError at once."""
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
        if not (self._queue.is_busy or self.log.is_slow):
            return complete(append)

        def turn() -> PendingAppend[Turn]:
            if self._is_closed:
                raise BrokerError(ErrorCode.not_leader_or_follower, f"{self.tp} is not led here any more")
            result = yield from append
            return result, self.flushed()

        return _flushed(self._queue.add(turn))

    async def drain(self) -> None:
        """Wait for the queued appends."""
        await self._queue.drain()

    def _appended(self, result: AppendResult, size: int) -> AppendResult:
        if result.duplicate:
            return result
        self.bytes_in += size
        self.messages_in += result.last_offset - result.base_offset + 1
        if not self._hold(result.base_offset) and self.waiters:
            stable = size if self.log.first_unstable_offset is None else 0
            self._notify(size, stable)
        return result

    def append_marker(self, marker: EndMarker) -> AppendResult | Awaitable[AppendResult]:
        """End a producer's transaction in this partition and notify waiting fetches.

        While the disk is slow, returns an awaitable as `append_checked` does. Raises BrokerError
        `invalid_producer_epoch`, `transaction_coordinator_fenced`, `kafka_storage_error`, at once or when awaited.
        """
        return self._submit(self._ending(marker))

    def _ending(self, marker: EndMarker) -> PendingAppend[AppendResult]:
        unstable = self.log.first_unstable_offset
        result = yield from self.log.prepare_marker(marker, leader_epoch=self.leader_epoch)
        stable = result.base_offset if unstable is None else unstable
        if self._hold(result.base_offset, stable):
            self._held_markers.append((result.base_offset, stable))
        elif self.waiters:
            size = self._bytes_between(result.base_offset, result.last_offset + 1)
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
            self._held, self._visible = offset, (offset, stable)
        return True

    def _flushed(self) -> None:
        """After an fsync: show the flushed records to readers and notify waiting fetches."""
        if self._held is None:
            return
        point = self.log.recovery_point
        self._held_markers = [held for held in self._held_markers if held[0] >= point]
        self._held = max(self._held, point) if self._commit.is_waited_for else None
        before, self._visible = self._visible, (self.high_watermark, self.last_stable_offset)
        if self.waiters:
            self._notify(*(self._bytes_between(old, new) for old, new in zip(before, self._visible, strict=True)))

    def _notify(self, gained: int, stable: int) -> None:
        """Notify waiting fetches of `gained` more bytes, `stable` of them below the last stable offset."""
        for waiter in tuple(self.waiters):
            waiter.gained(stable if waiter.committed else gained)

    def _bytes_between(self, start: int, end: int) -> int:
        """The bytes that a fetch from `start` (or the log start offset) gets, which are of one segment."""
        found = self.log.read(max(start, self.log.log_start_offset), sys.maxsize, up_to=end)
        return 0 if found is None else found.length

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> FileSlice | None:
        """Records from `offset` up to the high watermark or, with `committed`, the last stable offset.

        Includes aborted transactions (see `aborted_in`). Raises BrokerError `offset_out_of_range`.
        """
        up_to = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, up_to=up_to)

    def aborted_in(self, offset: int, found: FileSlice) -> list[AbortedTransaction]:
        """The aborted transactions in `found`, which `read(offset, …, committed=True)` returned. Raises BrokerError."""
        return self.log.aborted_in(offset, found, self.last_stable_offset)

    def close(self) -> None:
        """Stop leading the partition: end waiting fetches, and refuse queued appends that have not begun."""
        self._is_closed = True
        for waiter in tuple(self.waiters):
            waiter.end()


async def _flushed(turn: asyncio.Future[Turn]) -> AppendResult:
    result, flushed = await turn
    if flushed is not None:
        await flushed
    return result
