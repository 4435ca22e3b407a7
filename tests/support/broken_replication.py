"""Faults of replication, to be planted in broker processes (planted.py): what a history must find.

Each function breaks one rule of broker/replica, in one process for good.
"""

from __future__ import annotations

from typing import Any

from broker.log.producer_state import NO_OFFSET
from broker.replica.follower import Follower
from broker.replica.in_sync_state import UNKNOWN_OFFSET, InSyncState
from broker.replica.partition import Partition
from broker.replica.replica import Replica

__all__: list[str] = []


def acknowledge_early() -> None:
    """The leader answers acks=all as soon as it has the records itself (P1)."""
    _replace(Partition, "watch_commit", lambda self, offset, on_commit: False)


def believe_the_coordinator_alone() -> None:
    """A coordinator acts on what only its own log has (P7)."""
    _replace(Partition, "_until_committed", lambda self, offset: None)


def read_uncommitted() -> None:
    """The leader gives consumers what the other replicas may not have (P2), and wakes them for it."""
    append: Any = Partition._appended

    def read(self: Any, offset: int, max_bytes: int, *, committed: bool = False) -> Any:
        unstable = self.log.first_unstable_offset if committed else None
        return self.log.read(offset, max_bytes, up_to=self.log.log_end_offset if unstable is None else unstable)

    def appended(self: Any, result: Any, size: int) -> Any:
        append(self, result, size)
        self._notify(size, size)
        return result

    _replace(Partition, "read", read)
    _replace(Partition, "_appended", appended)


def truncate_to_the_watermark() -> None:
    """A follower drops all above the high watermark that it knows, and asks for no epoch (Kafka before KIP-101)."""
    begin: Any = Follower.__init__

    def init(self: Any, *arguments: Any, **more: Any) -> None:
        begin(self, *arguments, **more)
        if self.log.log_end_offset > self._high_watermark:
            self.log.truncate_to(self._high_watermark)

    _replace(Follower, "__init__", init)
    _replace(Replica, "diverging_epoch", lambda self, last_fetched_epoch, offset: None)


def ignore_the_last_epoch() -> None:
    """A leader does not look at the epoch of a follower's last record, so a follower keeps what diverges (P3)."""
    _replace(Replica, "diverging_epoch", lambda self, last_fetched_epoch, offset: None)


def join_early() -> None:
    """A follower is in the ISR with its first fetch, however far it is behind (P1)."""

    def may_join(self: Any, replica: int, now: float) -> bool:
        follower = self._followers.get(replica)
        return replica not in self.isr and follower is not None and follower.log_end_offset != UNKNOWN_OFFSET

    def is_in_sync(self: Any, replica: int, now: float) -> bool:
        follower = self._followers.get(replica)
        if follower is None:
            return False
        return follower.log_end_offset != UNKNOWN_OFFSET or now - follower.caught_up_at <= self._max_lag_s

    _replace(InSyncState, "may_join", may_join)
    _replace(InSyncState, "_is_in_sync", is_in_sync)


def forget_producers() -> None:
    """A new leader does not know the producers whose batches it has fetched as a follower, so it appends them twice."""
    begin: Any = Partition.__init__

    def init(self: Any, tp: Any, log: Any, *arguments: Any, **more: Any) -> None:
        for entry in [entry for entry in log.producers if entry.transaction_first_offset == NO_OFFSET]:
            del log.producers._entries[entry.producer_id]
        begin(self, tp, log, *arguments, **more)

    _replace(Partition, "__init__", init)


def _replace(owner: type, name: str, function: Any) -> None:
    assert name in vars(owner) or name == "read", f"{owner.__name__} has no {name} any more"
    setattr(owner, name, function)
