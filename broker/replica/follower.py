"""A partition that this broker follows in one leader epoch: its log and what it knows of the high watermark.

The fetcher calls `append` and `truncate` with what the leader answers, one after another. The bytes are appended as
they come, so that replicas are equal byte for byte (P3). Consumers may read up to the high watermark (KIP-392), which
comes from the leader and is at most the leader's. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.archived_log import ArchivedState, not_read_yet
from broker.log.follower_append import FollowerAppend
from broker.log.log import Log
from broker.log.pending_append import PendingAppend, complete
from broker.log.producer_state import ProducerStates
from broker.log.segment import Segment
from broker.log.segment_file import FileSlice
from broker.log.truncated_records import TruncatedRecords, records_from
from broker.metrics import TopicMetrics
from broker.protocol.topic_partition import TopicPartition
from broker.replica.append_queue import AppendQueue
from broker.replica.replica import Replica

logger = logging.getLogger(__name__)

NO_EPOCH = -1


class Follower(Replica):
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
        metrics: TopicMetrics | None = None,
        *,
        is_added: bool = False,
    ) -> None:
        """`high_watermark`: what this replica knew in its last role, or from its checkpoint. `queue`: the appends of
        its last role, of which one may still be writing. `threads` run fsyncs."""
        super().__init__(tp, log, leader_epoch, metrics)
        self.leader = leader
        """NO_LEADER (-1) while the partition has none."""
        self.queue = AppendQueue(None) if queue is None else queue
        self._threads = threads
        self.is_added = is_added
        """Whether a reassignment that is in progress adds this replica. It may end within the leader epoch."""
        self.is_closed = False
        self.leader_end_offset: int | None = None
        """At least so far the leader's log goes, as its last answer shows; None before that. For the metrics."""
        self._high_watermark = min(high_watermark, log.log_end_offset)
        self._settled_from = log.log_end_offset
        """Which transactions end in the log between the high watermark and this offset is not known."""
        self._unsettled: deque[tuple[int, int]] = deque()
        """(last offset of an append, where the oldest transaction open before it or in it begins) for each append that
        is not below the high watermark."""
        log.committed, log.told_archived_end, log.archive_moved = self._high_watermark, 0, lambda: None

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
    def is_caught_up(self) -> bool:
        """Whether this replica has all that the leader's last answer said to be committed."""
        return self.leader_end_offset is not None and self.log.log_end_offset >= self.leader_end_offset

    # --- what the leader answers

    async def append(
        self,
        records: bytearray | memoryview,
        leader_high_watermark: int,
        leader_log_start: int,
        archived_end: int = 0,
    ) -> FollowerAppend | None:
        """Append the batches of an answer, then advance the high watermark and the log's start; None without records.

        Records before `archived_end` are in the archive: they may leave this disk.

        While the disk is slow, the write runs in a thread and this waits for it; `records` must stay as they are. Where
        the topic wants records on disk (flush.messages, flush.ms), this waits for an fsync, because the next fetch
        acknowledges them.
        Raises BrokerError, of which CorruptBatch is one, and appends nothing then; `not_leader_or_follower` when this
        replica has another role by now.
        """
        if self.appends_at_once:
            return self.append_at_once(records, leader_high_watermark, leader_log_start, archived_end)
        appended = None
        if len(records):
            unstable = self.log.first_unstable_offset
            if self.queue.is_busy or self.log.is_slow:
                written = await self.queue.add(functools.partial(self._turn, records))
            else:
                written = complete(self._turn(records))
            appended = self._note(written, unstable)
            if appended.size and self.log.flush_due():
                await asyncio.get_running_loop().run_in_executor(self._threads, self.log.flush)
        self._check_open()
        self._advance(leader_high_watermark, leader_log_start, archived_end)
        return appended

    @property
    def appends_at_once(self) -> bool:
        """Whether an append now waits neither for a slow disk nor for an fsync."""
        return not (self.queue.is_busy or self.log.is_slow or self.log.config.may_flush_appends)

    def append_at_once(
        self,
        records: bytearray | memoryview,
        leader_high_watermark: int,
        leader_log_start: int,
        archived_end: int = 0,
    ) -> FollowerAppend | None:
        """The same without waiting, while `appends_at_once`."""
        self._check_open()
        appended = None
        if len(records):
            unstable = self.log.first_unstable_offset
            appended = self._note(complete(self.log.prepare_follower_append(records, self.leader_epoch)), unstable)
        self._advance(leader_high_watermark, leader_log_start, archived_end)
        return appended

    def _turn(self, records: bytearray | memoryview) -> PendingAppend[FollowerAppend]:
        self._check_open()
        return (yield from self.log.prepare_follower_append(records, self.leader_epoch))

    def _note(self, appended: FollowerAppend, unstable: int | None) -> FollowerAppend:
        """`unstable`: where the oldest open transaction began before the append."""
        if appended.size:
            self.metrics.replication_bytes_in += appended.size
            self.metrics.reassignment_bytes_in += appended.size if self.is_added else 0
            self._unsettled.append((appended.last_offset, appended.first_offset if unstable is None else unstable))
        return appended

    def _advance(self, leader_high_watermark: int, leader_log_start: int, archived_end: int) -> None:
        before = (self._high_watermark, self.last_stable_offset) if self.waiters else None
        end = self.log.log_end_offset
        self.leader_end_offset = max(end, leader_high_watermark)
        self._high_watermark = max(self._high_watermark, min(leader_high_watermark, end))
        self.log.committed = self._high_watermark
        while self._unsettled and self._unsettled[0][0] < self._high_watermark:
            self._unsettled.popleft()
        self.log.told_archived_end = archived_end
        self.log.advance_start(leader_log_start)
        if before is not None:
            self._notify_advance(before, (self._high_watermark, self.last_stable_offset))

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
        read = self.log.producers_before(offset)
        found: list[tuple[ProducerStates | None, TruncatedRecords | None]] = []

        def turn() -> PendingAppend[None]:
            self._check_open()
            segments = self.log.segments
            yield lambda: found.append((read(), _records_from(segments, offset)))
            self._check_open()
            self._note_truncation(offset, found[0][1], reason)
            self._cut(min(offset, self._high_watermark), lambda: self.log.truncate_to(offset, found[0][0]))

        await self.queue.add(turn)
        return self.log.log_end_offset

    def _note_truncation(self, offset: int, gone: TruncatedRecords | None, reason: str) -> None:
        """Say and count what goes. None: nobody can read how many records these are, so the offsets count."""
        end = self.log.log_end_offset
        if gone is None:
            gone, what = TruncatedRecords(end - offset, -1, -1), f"up to {end - offset} records (not all can be read)"
        else:
            what = f"{gone.records} records of leader epochs {gone.first_epoch} to {gone.last_epoch}"
        self.metrics.truncated_records += gone.records
        text = "%s: truncating %s, offsets %d to %d, which the leader, broker %d of epoch %d, does not have: %s%s"
        more = "; producers with acks=1 or acks=0 may have been told that they are stored" if gone.records else ""
        if offset < self._high_watermark:
            more += f"; records below the high watermark {self._high_watermark} go"
        level = logging.WARNING if more else logging.INFO
        logger.log(level, text, self.tp, what, offset, end - 1, self.leader, self.leader_epoch, reason, more)

    async def restart_at(self, offset: int, leader_log_start: int) -> int:
        """Drop the whole log and begin again at `offset`, where the leader's local log begins. Raises as `truncate`.

        Of the records that the leader has in the archive only, the leader epochs and the producers are taken from
        there: this replica may lead one day. Raises `kafka_storage_error` while the archive cannot be read.
        """
        state = await self._archived_state(offset) if leader_log_start < offset else None
        begin = offset if state is None else state.offset
        text = "%s: the leader's log begins at offset %d, this one ends at %d: it begins again there"
        logger.warning(text, self.tp, begin, self.log.log_end_offset)
        await self.queue.drain()
        if state is None:
            self._cut(begin, lambda: self.log.truncate_fully_and_start_at(begin))
        else:
            self._cut(begin, lambda: self.log.begin_after_archive(state))
        return self.log.log_end_offset

    async def _archived_state(self, offset: int) -> ArchivedState:
        if self.log.archived_state is None:
            raise not_read_yet(self.log.directory, offset - 1)
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.log.archived_state, offset)

    def _cut(self, high_watermark: int, cut: Callable[[], None]) -> None:
        self._check_open()
        self._high_watermark = self.log.committed = min(self._high_watermark, high_watermark)
        cut()
        end = self.log.log_end_offset
        self._high_watermark = self.log.committed = min(max(high_watermark, self.log.local_start_offset), end)
        self._settled_from = min(self._settled_from, end)
        self._unsettled = deque((min(last, end - 1), stable) for last, stable in self._unsettled if stable < end)
        self._notify(0, 0)

    # --- reading

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> FileSlice | None:
        """As a leader's. Raises BrokerError `offset_not_available` for an offset that only the leader may have."""
        if offset > self.log.log_end_offset:
            text = f"{self.tp} ends at {self.log.log_end_offset} on this follower: offset {offset} is not there yet"
            raise BrokerError(ErrorCode.offset_not_available, text)
        return super().read(offset, max_bytes, committed=committed)

    def close(self) -> None:
        """Stop following: nothing is appended any more, but for a write that has begun. Ends fetches that wait."""
        self.is_closed = True
        for waiter in tuple(self.waiters):
            waiter.end()

    def _check_open(self) -> None:
        if self.is_closed:
            text = f"{self.tp} does not follow broker {self.leader} in leader epoch {self.leader_epoch} any more"
            raise BrokerError(ErrorCode.not_leader_or_follower, text)


def _records_from(segments: Sequence[Segment], offset: int) -> TruncatedRecords | None:
    try:
        return records_from(segments, offset)
    except (OSError, CorruptBatch):
        return None
