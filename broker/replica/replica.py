"""What a replica of a partition on this broker has in both roles, leader and follower: what readers see, and who waits.

Consumers may read from either (KIP-392). Belongs to the event loop.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Collection

from broker.errors import BrokerError, ErrorCode
from broker.log.aborted_index import AbortedTransaction
from broker.log.log import Log
from broker.log.segment_file import ColdRead, FileSlice
from broker.metrics import TopicMetrics
from broker.protocol.topic_partition import TopicPartition
from broker.replica.delayed_fetch import Waiter

UNKNOWN_EPOCH = (-1, -1)

Offsets = tuple[int, int]
"""A high watermark and a last stable offset."""


class Replica(abc.ABC):
    """The base of Partition and Follower."""

    def __init__(self, tp: TopicPartition, log: Log, leader_epoch: int, metrics: TopicMetrics | None = None) -> None:
        self.tp = tp
        self.log = log
        self.leader_epoch = leader_epoch
        self.waiters: set[Waiter] = set()
        self.adding: Collection[int] = ()
        """The brokers that get a replica by a reassignment that is in progress (KIP-455)."""
        self.metrics = metrics or TopicMetrics()
        """Shared by the partitions of a topic. api/fetch counts the bytes that go out."""

    @property
    @abc.abstractmethod
    def high_watermark(self) -> int:
        """The offset after the last record that consumers may read."""

    @property
    @abc.abstractmethod
    def last_stable_offset(self) -> int:
        """An offset below which no transaction is open."""

    # --- leader epochs

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest leader epoch <= `epoch`; (-1, -1) when unknown."""
        return self.log.end_offset_for_epoch(epoch, self.leader_epoch)

    def diverging_epoch(self, last_fetched_epoch: int, offset: int) -> tuple[int, int] | None:
        """Where the log of a reader that has records up to `offset` must be cut, as (leader epoch, end offset there).

        None when it is a prefix of this one (KIP-320, KIP-595). Raises BrokerError `offset_out_of_range` when that
        cannot be said.
        """
        log = self.log
        if last_fetched_epoch == log.epochs.latest and log.log_start_offset <= offset <= log.log_end_offset:
            return None  # of the newest epoch with records the end is the end of the log
        epoch, end = self.end_offset_for_epoch(last_fetched_epoch)
        if (epoch, end) == UNKNOWN_EPOCH:
            raise BrokerError(
                ErrorCode.offset_out_of_range, f"{self.tp} does not know leader epoch {last_fetched_epoch}"
            )
        start = self.log.log_start_offset
        if offset < start:
            raise BrokerError(ErrorCode.offset_out_of_range, f"offset {offset} of {self.tp} is below {start}")
        return (epoch, end) if epoch < last_fetched_epoch or end < offset else None

    # --- reading

    def read(self, offset: int, max_bytes: int, *, committed: bool = False) -> FileSlice | None:
        """Records from `offset` up to the high watermark or, with `committed`, the last stable offset.

        Includes aborted transactions (see `aborted_in`). Raises BrokerError `offset_out_of_range`.
        """
        up_to = self.last_stable_offset if committed else self.high_watermark
        return self.log.read(offset, max_bytes, up_to=up_to)

    def aborted_in(self, offset: int, found: FileSlice) -> list[AbortedTransaction]:
        """The aborted transactions in `found`, which `read(offset, …, committed=True)` returned. Raises BrokerError."""
        return self.log.aborted_in(offset, found, self.last_stable_offset)

    # --- waiting fetches

    def _notify_advance(self, before: Offsets, after: Offsets, appended: int = 0) -> None:
        """Notify waiting fetches that the offsets moved, and that `appended` bytes were appended."""
        gained = stable = 0
        if before != after and not all(waiter.replica for waiter in self.waiters):
            try:
                gained, stable = (
                    self._bytes_between(old, new) if old < new else 0 for old, new in zip(before, after, strict=True)
                )
            except (BrokerError, ColdRead):  # each fetch shall see by itself that the log cannot be read at once
                gained = stable = sys.maxsize
        self._notify(gained, stable, appended)

    def _notify(self, gained: int, stable: int, appended: int = 0) -> None:
        """Notify waiting fetches of `gained` more bytes below the high watermark, `stable` of them below the last
        stable offset, and `appended` above the former log end."""
        for waiter in tuple(self.waiters):
            waiter.gained(appended if waiter.replica else stable if waiter.committed else gained)

    def _bytes_between(self, start: int, end: int) -> int:
        """The bytes that a fetch from `start` (or the local start) gets, which are of one segment."""
        found = self.log.read(max(start, self.log.local_start_offset), sys.maxsize, up_to=end)
        return 0 if found is None else found.length


def check_leader_epoch(tp: TopicPartition, ours: int, theirs: int) -> None:
    """Raise BrokerError when a client names another leader epoch than ours (KIP-320); -1 names none."""
    if 0 <= theirs < ours:
        raise BrokerError(ErrorCode.fenced_leader_epoch, f"{tp} is at leader epoch {ours}")
    if theirs > ours:
        raise BrokerError(ErrorCode.unknown_leader_epoch, f"{tp} is at leader epoch {ours}")
