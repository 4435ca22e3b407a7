"""The committed offsets of one group and which of them have expired. Pure.

Owned by the group machine; the runtime writes it through `apply` only, live and on replay alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.coordinator.group_messages import NO_OFFSET
from broker.coordinator.records import OffsetAndMetadata
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupOffsets"]


class GroupOffsets:
    """Partition → committed offset."""

    __slots__ = ("_committed", "in_flight")

    def __init__(self) -> None:
        # Commits whose append has not ended; the runtime counts them, a group with any is not removed.
        self.in_flight = 0
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def apply(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """One stored record: a commit, or None for a tombstone."""
        if committed is None:
            self._committed.pop(partition, None)
        else:
            self._committed[partition] = committed

    def all(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return dict(self._committed)

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """One entry per partition asked for; `NO_OFFSET` where there is none."""
        return {partition: self._committed.get(partition, NO_OFFSET) for partition in partitions}

    def known(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that have an offset."""
        return [partition for partition in partitions if partition in self._committed]

    def expired(
        self, now_ms: int, retention_ms: int, *, empty_since_ms: int | None, in_use: frozenset[str]
    ) -> list[TopicPartition]:
        """What is older than the retention.

        Age counts from `empty_since_ms` (when the last member left) where that is given, else from each
        commit; an offset with an expiry of its own keeps to that. Topics `in_use` never expire.
        """
        expired = []
        for partition, committed in self._committed.items():
            if partition.topic in in_use:
                continue
            since = committed.commit_timestamp if empty_since_ms is None else empty_since_ms
            due = committed.expire_timestamp if committed.expire_timestamp >= 0 else since + retention_ms
            if now_ms >= due:
                expired.append(partition)
        return expired
