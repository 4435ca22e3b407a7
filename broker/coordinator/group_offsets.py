"""The committed offsets of one group, and those of transactions that are still open. Pure.

The runtime changes them only by `apply`, `add_pending` and `end_transaction`, in the order of the log, both live and on
replay. `PendingCommits` decides which record of a key wins when a transaction ends. The live group keeps them by
partition, replay by raw key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

from broker.coordinator.group_messages import NO_OFFSET
from broker.coordinator.group_records import OffsetAndMetadata
from broker.protocol.topic_partition import TopicPartition

K = TypeVar("K")
V = TypeVar("V")


class PendingCommits(Generic[K, V]):
    """Key → producer id → the last value of that producer's open transaction.

    When a transaction ends, its value counts only if no later record of the key counts already (Kafka's
    `GroupMetadata.completePendingTxnOffsetCommit`). Compaction leaves the same record.
    """

    __slots__ = ("_by_key", "_by_producer")

    def __init__(self) -> None:
        # The producers of a key are in the order of their last records. None: a later record counts already.
        self._by_key: dict[K, dict[int, V | None]] = {}
        self._by_producer: dict[int, dict[K, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: K) -> bool:
        """Whether an open transaction has written the key."""
        return key in self._by_key

    @property
    def keys(self) -> AbstractSet[K]:
        return self._by_key.keys()

    def items(self) -> Iterator[tuple[int, K, V]]:
        """(producer id, key, value) of every record that may still count. Those of one key are in order."""
        for key, values in self._by_key.items():
            for producer_id, value in values.items():
                if value is not None:
                    yield producer_id, key, value

    def add(self, producer_id: int, key: K, value: V) -> None:
        """A record of an open transaction."""
        values = self._by_key.setdefault(key, {})
        values.pop(producer_id, None)
        values[producer_id] = value
        self._by_producer.setdefault(producer_id, {})[key] = None

    def supersede(self, key: K) -> None:
        """A record outside of transactions was written: none of the records before it can count any more."""
        values = self._by_key.get(key)
        if values is not None:
            self._by_key[key] = dict.fromkeys(values)

    def remove(self, key: K) -> None:
        """A tombstone was written: all records before it are gone, committed or not."""
        for producer_id in self._by_key.pop(key, ()):
            del self._by_producer[producer_id][key]

    def end(self, producer_id: int, *, commit: bool) -> dict[K, V]:
        """End the producer's transaction. Returns the values that count from now on, none if it was aborted."""
        committed: dict[K, V] = {}
        for key in self._by_producer.pop(producer_id, ()):
            values = self._by_key[key]
            value = values[producer_id]
            if commit and value is not None:
                committed[key] = value
                for earlier in values:
                    if earlier == producer_id:
                        break
                    values[earlier] = None
            del values[producer_id]
            if not values:
                del self._by_key[key]
        return committed


class GroupOffsets:
    """Partition → committed offset."""

    __slots__ = ("_appending", "_committed", "_pending", "in_flight")

    def __init__(self) -> None:
        # Appends of the runtime that have not ended. A group with any is not removed.
        self.in_flight = 0
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: PendingCommits[TopicPartition, OffsetAndMetadata] = PendingCommits()
        # Transactional commits that are being appended, per partition.
        self._appending: Counter[TopicPartition] = Counter()

    def __len__(self) -> int:
        return len(self._committed)

    def apply(self, partition: TopicPartition, committed: OffsetAndMetadata | None) -> None:
        """Apply a stored record outside of transactions: a commit, or None for a tombstone."""
        if committed is None:
            self._committed.pop(partition, None)
            self._pending.remove(partition)
        else:
            self._committed[partition] = committed
            if self._pending:
                self._pending.supersede(partition)

    # --- transactions

    @property
    def has_pending(self) -> bool:
        """Whether an open transaction has committed offsets."""
        return bool(self._pending)

    @property
    def pending_partitions(self) -> list[TopicPartition]:
        return list(self._pending.keys)

    def begin_append(self, partitions: Iterable[TopicPartition]) -> None:
        """Transactional commits are being appended: the partitions are unstable from now on."""
        for partition in partitions:
            self._appending[partition] += 1

    def end_append(self, partitions: Iterable[TopicPartition]) -> None:
        """The append has ended, with or without an error."""
        for partition in partitions:
            self._appending[partition] -= 1
            if not self._appending[partition]:
                del self._appending[partition]

    def add_pending(self, producer_id: int, partition: TopicPartition, committed: OffsetAndMetadata) -> None:
        """Apply a stored record of an open transaction."""
        self._pending.add(producer_id, partition, committed)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """The producer's marker is in the log: apply or drop its offsets."""
        self._committed.update(self._pending.end(producer_id, commit=commit))

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction may still change the offset (KIP-447)."""
        return partition in self._pending or partition in self._appending

    # --- reading

    def all(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return dict(self._committed)

    def of(self, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """One entry per partition, `NO_OFFSET` for those without a commit."""
        return {partition: self._committed.get(partition, NO_OFFSET) for partition in partitions}

    def known(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that have a committed offset."""
        return [partition for partition in partitions if partition in self._committed]

    def any_of(self, partitions: set[TopicPartition]) -> list[TopicPartition]:
        """Those of `partitions` that have an offset or a pending one. Cheap if either side is small."""
        found = self._committed.keys() & partitions
        if self._pending:
            found |= self._pending.keys & partitions
        return list(found)

    def expired(
        self, now_ms: int, retention_ms: int, *, empty_since_ms: int | None, in_use: frozenset[str]
    ) -> list[TopicPartition]:
        """The partitions whose offsets are older than the retention time.

        Their age counts from `empty_since_ms` (when the last member left), or from the commit if that is None. An
        offset with an expiry time of its own uses that. Topics `in_use` and unstable offsets never expire.
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
