"""A partition that this broker follows in one leader epoch: its log and what it knows of the high watermark.

The fetcher calls `append` and `truncate` with what the leader answers, one after another. The bytes are appended as
they come, so that replicas are equal byte for byte (P3). Consumers may read up to the high watermark (KIP-392), which
comes from the leader and is at most the leader's. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from broker.errors import BrokerError, ErrorCode
from broker.log.follower_append import FollowerAppend
from broker.log.log import Log
from broker.log.pending_append import PendingAppend, complete
from broker.log.segment_file import FileSlice
from broker.protocol.topic_partition import TopicPartition
from broker.replica.append_queue import AppendQueue

__all__ = ["Follower"]

logger = logging.getLogger(__name__)

NO_EPOCH = -1


class Follower:
    """The follower's view of one partition. A new leader or leader epoch gets a new object."""

    def __init__(
        self,
        tp: TopicPartition,
        log: Log,
        leader: int,
        leader_epoch: int,
        high_watermark: int,
        queue: AppendQueue | None = None,
        threads: Executor | None = None,
    ) -> None:
        """`high_watermark`: what this replica knew in its last role, or from its checkpoint. `queue`: the appends of
        its last role, of which one may still be writing. `threads` run fsyncs."""
        self.tp = tp
        self.log = log
        self.leader = leader
        """NO_LEADER (-1) while the partition has none."""
        self.leader_epoch = leader_epoch
        self.queue = AppendQueue(None) if queue is None else queue
        self._threads = threads
        self.is_closed = False
        self.bytes_in = 0
        """Appended in this leader epoch, for the metrics."""
        self.leader_end_offset: int | None = None
        """At least so far the leader's log goes, as its last answer shows; None before that. For the metrics."""
        self._high_watermark = min(high_watermark, log.log_end_offset)
        self._settled_from = log.log_end_offset
        """Which transactions end in the log between the high watermark and this offset is not known."""
        self._unsettled: deque[tuple[int, int]] = deque()
        """(last offset of an append, where the oldest transaction open before it or in it begins) for each append that
        is not below the high watermark."""
        log.committed = self._high_watermark

    @property
    def high_watermark(self) -> int:
        """The offset after the last record that this replica knows to be committed. It never goes back, unless the log
        is truncated below it."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        """An offset below which no transaction is open, and each end of a transaction is committed.

        A leader knows the exact one. This one may be lower until the high watermark has passed the last append.
        """
        if self._high_watermark < self._settled_from:
            return self.log.log_start_offset
        unstable = self.log.first_unstable_offset
        bounds = [self._high_watermark] if unstable is None else [self._high_watermark, unstable]
        if self._unsettled:
            bounds.append(self._unsettled[0][1])
        return min(bounds)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last record; -1 for an empty log."""
        return self.log.epochs.latest

    # --- what the leader answers

    async def append(
        self, records: bytearray | memoryview, leader_high_watermark: int, leader_log_start: int
    ) -> FollowerAppend | None:
        """Append the batches of an answer, then advance the high watermark and the log's start; None without records.

        While the disk is slow, the write runs in a thread and this waits for it; `records` must stay as they are. Where
        the topic wants records on disk (flush.messages, flush.ms), this waits for an fsync, because the next fetch
        acknowledges them.
        Raises BrokerError, of which CorruptBatch is one, and appends nothing then; `not_leader_or_follower` when this
        replica has another role by now.
        """
        appended = None
        if len(records):
            unstable = self.log.first_unstable_offset
            appended = await self._append(records)
            if appended.size:
                self.bytes_in += appended.size
                self._unsettled.append((appended.last_offset, appended.first_offset if unstable is None else unstable))
                if self.log.flush_due():
                    await asyncio.get_running_loop().run_in_executor(self._threads, self.log.flush)
        self._check_open()
        self._advance(leader_high_watermark, leader_log_start)
        return appended

    async def _append(self, records: bytearray | memoryview) -> FollowerAppend:
        if not (self.queue.is_busy or self.log.is_slow):
            self._check_open()
            return complete(self.log.prepare_follower_append(records))

        def turn() -> PendingAppend[FollowerAppend]:
            self._check_open()
            return (yield from self.log.prepare_follower_append(records))

        return await self.queue.add(turn)

    def _advance(self, leader_high_watermark: int, leader_log_start: int) -> None:
        end = self.log.log_end_offset
        self.leader_end_offset = max(end, leader_high_watermark)
        self._high_watermark = max(self._high_watermark, min(leader_high_watermark, end))
        self.log.committed = self._high_watermark
        while self._unsettled and self._unsettled[0][0] < self._high_watermark:
            self._unsettled.popleft()
        start = min(leader_log_start, self._high_watermark)
        if start > self.log.log_start_offset:
            self.log.delete_records(start)

    # --- truncation

    async def truncate(self, epoch: int, end_offset: int) -> int:
        """Cut the log where it diverges from the leader's; returns the new end.

        In the leader's log, `epoch` is the largest leader epoch up to this log's last one, and it ends at `end_offset`
        (KIP-595). If this log has no record of that epoch, it is cut after the largest epoch before it; the leader is
        asked again then (KIP-279). Raises BrokerError `kafka_storage_error`.
        """
        own_epoch, own_end = self.log.epochs.end_offset(epoch, NO_EPOCH, self.log.log_end_offset)
        if own_epoch == epoch:
            cut = min(own_end, end_offset)
        elif own_epoch != NO_EPOCH:
            cut = own_end
        else:
            cut = end_offset
        return await self.truncate_to(cut, f"the leader's log diverges: its epoch {epoch} ends at offset {end_offset}")

    async def truncate_to(self, offset: int, reason: str) -> int:
        """Cut the log at `offset`, or earlier where that lies in a batch; returns the new end. Raises as `truncate`."""
        end = self.log.log_end_offset
        if offset >= end:
            return end
        text = "%s: truncating from offset %d to %d: %s"
        level = logging.WARNING if offset < self._high_watermark else logging.INFO
        more = f"; records below the high watermark {self._high_watermark} go" if level == logging.WARNING else ""
        logger.log(level, text, self.tp, end, offset, reason + more)

        return await self._cut(min(offset, self._high_watermark), lambda: self.log.truncate_to(offset))

    async def restart_at(self, offset: int) -> int:
        """Drop the whole log and begin again at `offset`, where the leader's log begins. Raises as `truncate`."""
        text = "%s: the leader's log begins at offset %d, this one ends at %d: it begins again there"
        logger.warning(text, self.tp, offset, self.log.log_end_offset)
        return await self._cut(offset, lambda: self.log.truncate_fully_and_start_at(offset))

    async def _cut(self, high_watermark: int, cut: Callable[[], None]) -> int:
        await self.queue.drain()
        self._check_open()
        self._high_watermark = self.log.committed = min(self._high_watermark, high_watermark)
        cut()
        end = self.log.log_end_offset
        self._high_watermark = self.log.committed = min(max(high_watermark, self.log.log_start_offset), end)
        self._settled_from = min(self._settled_from, end)
        self._unsettled = deque((min(last, end - 1), stable) for last, stable in self._unsettled if stable < end)
        return end

    # --- reading

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> FileSlice | None:
        """Records from `offset` up to the high watermark or, with `committed`, the last stable offset.

        Raises BrokerError `offset_out_of_range`, `kafka_storage_error`.
        """
        up_to = self.last_stable_offset if committed else self._high_watermark
        return self.log.read(offset, max_bytes, up_to=up_to)

    def close(self) -> None:
        """Stop following: nothing is appended any more, but for a write that has begun."""
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            text = f"{self.tp} does not follow broker {self.leader} in leader epoch {self.leader_epoch} any more"
            raise BrokerError(ErrorCode.not_leader_or_follower, text)
