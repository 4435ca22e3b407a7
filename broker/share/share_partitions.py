"""The share partitions of this broker: those of all share groups, of the partitions that it leads.

Handlers of ShareFetch and ShareAcknowledge call it. It loads a state from the persister at the first use, stores what
must be stored before the answer, wakes fetches that wait, lets locks expire, and drops a partition that this broker
does not lead any more or whose state has got another epoch. Lives on the event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from broker.errors import ErrorCode
from broker.share.persister import SharePartitionKey
from broker.share.share_partition_state import (
    AcknowledgementBatch,
    AcquiredRecords,
    FetchedBatch,
    ShareLimits,
    SharePartitionState,
)


class SharePartition:
    """One, loaded. Once `is_fenced`, get another one from `SharePartitions`."""

    state: SharePartitionState
    is_fenced: bool

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        batches: Sequence[FetchedBatch],
        *,
        max_records: int,
        batch_size: int,
        is_record_limit: bool = False,
    ) -> list[AcquiredRecords]:
        """As `SharePartitionState.acquire`. Read the log at `state.next_fetch_offset()` before, and only committed
        records (below the high watermark, or the last stable offset)."""
        raise NotImplementedError

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch]) -> Awaitable[ErrorCode]:
        """NONE once it is stored. `invalid_record_state`, `invalid_request`: nothing was changed. Any other error: it
        may be stored or not; the records are the member's again until their locks expire."""
        raise NotImplementedError

    def release(self, member_id: str) -> Awaitable[ErrorCode]:
        """All that the member has. When its session ends."""
        raise NotImplementedError

    def when_available(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` each time that something becomes available again, and when the partition is fenced. New records
        of the log are told by the replica. Call the returned function when nobody waits any more."""
        raise NotImplementedError


class SharePartitions:
    """Loads and keeps share partitions."""

    async def get(self, key: SharePartitionKey) -> SharePartition:
        """Loaded. Raises BrokerError: `unknown_topic_id`, `not_leader_or_follower`, `invalid_request` (never
        initialized), or why the state cannot be read now, which is retriable."""
        raise NotImplementedError

    def drop_group(self, group_id: str) -> None:
        """Forget the group's partitions: its offsets were altered, or it was deleted."""
        raise NotImplementedError

    def limits_changed(self, group_id: str, limits: ShareLimits) -> None:
        """The group's settings were changed."""
        raise NotImplementedError
