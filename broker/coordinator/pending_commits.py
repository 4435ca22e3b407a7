"""What open transactions have written but not made visible, by key and by producer. Pure.

Used twice: by a group's offsets while it lives, and on the raw keys while a partition is replayed, so that both
give the same. Fed in the order of the log, which decides between writers of one key: at the end of a transaction a
value counts only if no later record of its key counts already (Kafka's
`GroupMetadata.completePendingTxnOffsetCommit`). That is also what compaction leaves over.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

__all__ = ["PendingCommits"]

K = TypeVar("K")
V = TypeVar("V")


class PendingCommits(Generic[K, V]):
    """Key → producer id → the last value of that producer's open transaction."""

    __slots__ = ("_keys_of", "_of")

    def __init__(self) -> None:
        # The producers of a key stand in the order of their last records; None: a later record counts already.
        self._of: dict[K, dict[int, V | None]] = {}
        self._keys_of: dict[int, dict[K, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, key: K) -> bool:
        """Whether a transaction that is still open has written the key."""
        return key in self._of

    @property
    def keys(self) -> AbstractSet[K]:
        return self._of.keys()

    def items(self) -> Iterator[tuple[int, K, V]]:
        """(producer id, key, value) of what may yet come to count, the records of one key in order."""
        for key, values in self._of.items():
            for producer_id, value in values.items():
                if value is not None:
                    yield producer_id, key, value

    def add(self, producer_id: int, key: K, value: V) -> None:
        """A record of an open transaction."""
        values = self._of.setdefault(key, {})
        values.pop(producer_id, None)
        values[producer_id] = value
        self._keys_of.setdefault(producer_id, {})[key] = None

    def overtake(self, key: K) -> None:
        """A record outside of transactions was written: whatever becomes of those before it, it stays."""
        values = self._of.get(key)
        if values is not None:
            self._of[key] = dict.fromkeys(values)

    def remove(self, key: K) -> None:
        """A tombstone was written: what is before it is gone, committed or not."""
        for producer_id in self._of.pop(key, ()):
            del self._keys_of[producer_id][key]

    def end(self, producer_id: int, *, commit: bool) -> dict[K, V]:
        """The producer's transaction has ended: what comes to count by it (nothing when it was aborted)."""
        counting: dict[K, V] = {}
        for key in self._keys_of.pop(producer_id, ()):
            values = self._of[key]
            value = values[producer_id]
            if commit and value is not None:
                counting[key] = value
                for earlier in values:
                    if earlier == producer_id:
                        break
                    values[earlier] = None
            del values[producer_id]
            if not values:
                del self._of[key]
        return counting
