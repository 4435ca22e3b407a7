"""What the members of one share group have of one partition (KIP-932). Pure.

Offsets from the start (Kafka's SPSO) to the end are in runs: consecutive offsets that share a state, a delivery count,
a member and a deadline. Offsets from the end on were never fetched.

    available ──acquire, delivery count + 1──▶ acquired ──accept──▶ acknowledged
        ▲                                      │  │  └───reject, gap──▶ archived
        └──release, lock expired───────────────┘  └──the same at the delivery limit──▶ archived
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from broker.share.persister import ShareState, ShareWrite


class RecordState(IntEnum):
    """With the values of the records of `__share_group_state`. ACQUIRED is never stored."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 4


class AcknowledgeType(IntEnum):
    """What a member says about a record (ShareAcknowledge)."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class ShareLimits(NamedTuple):
    """Settings of a group (`group.share.*`, or its own `share.*`)."""

    delivery_count_limit: int = 5
    max_record_locks: int = 2000
    lock_duration_s: float = 30.0


class FetchedBatch(NamedTuple):
    """One record batch of the log, both ends included. `has_records` is False for a control batch, and, for committed
    reads, for one of an aborted transaction."""

    first_offset: int
    last_offset: int
    has_records: bool = True


class AcquiredRecords(NamedTuple):
    """Offsets that a member has got, both ends included (ShareFetch)."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AcknowledgementBatch(NamedTuple):
    """What a member says about offsets, both ends included: one type for all, or one for each."""

    first_offset: int
    last_offset: int
    acknowledge_types: Sequence[int]


class SharePartitionState:
    """The machine. `now` is monotonic (s). After each event call `tick` no later than `wake_at`.

    A change that must be stored is in transition until it is: `next_write` gives all such changes as one write, and the
    runtime reports its end to `write_ended`. One write is under way at a time; what comes meanwhile is in the next one.
    """

    def __init__(
        self, stored: ShareState, leader_epoch: int, limits: ShareLimits, *, log_start: int, log_end: int
    ) -> None:
        """`stored.start_offset` must be set by now. What lies outside of the log is forgotten."""
        self.limits = limits
        self.start_offset = stored.start_offset
        self.end_offset = stored.start_offset
        self.wake_at = float("inf")

    def next_fetch_offset(self) -> int | None:
        """Where to read the log for `acquire`, or None: as many records are in flight as may be."""
        raise NotImplementedError

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        batches: Sequence[FetchedBatch],
        now: float,
        *,
        max_records: int,
        batch_size: int,
        is_record_limit: bool = False,
    ) -> list[AcquiredRecords]:
        """Give a member available records of `batches`, which were read at `fetch_offset` without a gap.

        The log has no record between two of `batches`, nor from `fetch_offset` to the first one: such offsets are
        archived. Whole batches are given, as many as `max_records` has room for, but one at least; with
        `is_record_limit` not more than `max_records` (KIP-1206). Ranges begin anew at the first batch
        after `batch_size` records. Never more are in flight than the limit.
        """
        raise NotImplementedError

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], now: float) -> None:
        """Put acquired records of a member into transition, all or none; renew locks.

        Raises BrokerError `invalid_record_state` if one is not acquired by the member (any more), or is in transition;
        `invalid_request` for a wrong type, or offsets that were never acquired. Offsets below the start are ignored.
        """
        raise NotImplementedError

    def release(self, member_id: str) -> None:
        """Put all that a member has acquired into transition to available (its session has ended)."""
        raise NotImplementedError

    def tick(self, now: float) -> bool:
        """Make available, or archive at the limit, what has an expired lock. Returns whether anything changed."""
        raise NotImplementedError

    def log_start_moved(self, offset: int) -> None:
        """DeleteRecords or retention: nothing below `offset` is delivered any more."""
        raise NotImplementedError

    def next_write(self) -> ShareWrite | None:
        """All changes that are not stored, if there are any and no write is under way."""
        raise NotImplementedError

    def write_ended(self, *, is_stored: bool, now: float) -> None:
        """Complete the transitions of the write, or take them back: the records are their member's again, unless the
        lock has expired meanwhile."""
        raise NotImplementedError
