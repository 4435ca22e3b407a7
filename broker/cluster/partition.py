"""A partition this broker leads: its log, its high watermark, and the fetches that wait for more.

Called by api/produce, api/fetch, api/list_offsets and the offsets store. With one replica a record is
committed once it is appended, so the high watermark is the log end offset. Not thread-safe: the event
loop owns it.
"""

from __future__ import annotations

from broker.cluster.delayed import DelayedFetch
from broker.errors import BrokerError, ErrorCode
from broker.log.log import AppendResult, Log
from broker.log.segment_file import FileSlice
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Partition"]


class Partition:
    """The leader's view of one partition."""

    def __init__(self, tp: TopicPartition, log: Log, leader_epoch: int) -> None:
        self.tp = tp
        self.log = log
        self.leader_epoch = leader_epoch
        self.waiters: set[DelayedFetch] = set()
        self.bytes_in = self.messages_in = self.bytes_out = 0
        """Since we became its leader, for the metrics; `bytes_out` is counted by who sends what was read."""

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed record."""
        return self.log.log_end_offset

    @property
    def last_stable_offset(self) -> int:
        """Offset up to which no transaction is open."""
        return self.high_watermark

    def check_epoch(self, epoch: int) -> None:
        """Raise when a client names another leader epoch than ours (KIP-320); -1 names none."""
        if 0 <= epoch < self.leader_epoch:
            raise BrokerError(ErrorCode.fenced_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")
        if epoch > self.leader_epoch:
            raise BrokerError(ErrorCode.unknown_leader_epoch, f"{self.tp} is at leader epoch {self.leader_epoch}")

    def append(self, records: bytes | bytearray | memoryview) -> AppendResult:
        """Append as leader and wake the fetches that wait. Raises BrokerError."""
        result = self.log.append(records, leader_epoch=self.leader_epoch)
        if result.duplicate:
            return result
        self.bytes_in += len(records)
        self.messages_in += result.last_offset - result.base_offset + 1
        if self.waiters:
            for waiter in tuple(self.waiters):
                waiter.gained(len(records))
        return result

    def read(self, offset: int, max_bytes: int) -> FileSlice | None:
        """Committed records from `offset` on. Raises BrokerError `offset_out_of_range`."""
        return self.log.read(offset, max_bytes, up_to=self.high_watermark)

    def close(self) -> None:
        """The partition is no longer ours: let every waiting fetch find out."""
        for waiter in tuple(self.waiters):
            waiter.end()
