"""The committed offsets of one group, those of open transactions, and which of them have expired. Pure.

Owned by the group machine; the runtime writes it through `apply`, `add_pending` and `end_transaction` only, live and on
replay alike, in the order of the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from broker.coordinator.group_messages import NO_OFFSET
from broker.coordinator.pending_commits import PendingCommits
from broker.coordinator.records import OffsetAndMetadata
from broker.protocol.topic_partition import TopicPartition

__all__ = ["GroupOffsets"]


class GroupOffsets:
    """Partition → committed offset."""

    __slots__ = ("_arriving", "_committed", "_pending", "in_flight")

    def __init__(self) -> None:
        # Commits whose append has not ended; the runtime counts them, a group with any is not removed.
        self.in_flight = 0
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: PendingCommits[TopicPartition, OffsetAndMetadata] = PendingCommits()
        # How many commits in transactions are on their way to the log, per partition.
        self._arriving: Counter[TopicPartition] = Counter()

    def __len__(self) -> int:
        return len(self._committed)

    def apply(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """One stored record outside of transactions: a commit, or None for a tombstone."""
        if committed is None:
            self._committed.pop(partition, None)
            self._pending.remove(partition)
        else:
            self._committed[partition] = committed
            if self._pending:
                self._pending.overtake(partition)

    # --- transactions

    @property
    def has_pending(self) -> bool:
        """Whether a transaction that is not over has committed something."""
        return bool(self._pending)

    @property
    def pending_partitions(self) -> list[TopicPartition]:
        return list(self._pending.keys)

    def announce(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of a transaction are being stored: from now on the partitions are unstable."""
        for partition in partitions:
            self._arriving[partition] += 1

    def arrived(self, partitions: Iterable[TopicPartition]) -> None:
        """These are stored, or failed to be."""
        for partition in partitions:
            self._arriving[partition] -= 1
            if not self._arriving[partition]:
                del self._arriving[partition]

    def add_pending(self, producer_id: int, partition: TopicPartition, committed: OffsetAndMetadata) -> None:
        """One stored record of an open transaction."""
        self._pending.add(producer_id, partition, committed)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The producer's marker stands in the log: what it committed holds from now on, or never."""
        self._committed.update(self._pending.end(producer_id, commit=commit))

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a transaction may still move the offset (KIP-447)."""
        return partition in self._pending or partition in self._arriving

    # --- reading

    def all(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return dict(self._committed)

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """One entry per partition asked for; `NO_OFFSET` where there is none."""
        return {partition: self._committed.get(partition, NO_OFFSET) for partition in partitions}

    def known(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that have an offset, pending ones not counted."""
        return [partition for partition in partitions if partition in self._committed]

    def any_of(self, partitions: set[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that have an offset, or a pending one; costs no more than the fewer of the two."""
        found = self._committed.keys() & partitions
        if self._pending:
            found |= self._pending.keys & partitions
        return list(found)

    def expired(
        self, now_ms: int, retention_ms: int, *, empty_since_ms: int | None, in_use: frozenset[str]
    ) -> list[TopicPartition]:
        """What is older than the retention.

        Age counts from `empty_since_ms` (when the last member left) where that is given, else from each
        commit; an offset with an expiry of its own keeps to that. Topics `in_use` never expire, nor do offsets
        that an open transaction moves.
        """
        expired = []
        for partition, committed in self._committed.items():
            if partition.topic in in_use or self.is_unstable(partition):
                continue
            since = committed.commit_timestamp if empty_since_ms is None else empty_since_ms
            due = committed.expire_timestamp if committed.expire_timestamp >= 0 else since + retention_ms
            if now_ms >= due:
                expired.append(partition)
        return expired
