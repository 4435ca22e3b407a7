"""Where the group coordinator keeps its records: the seam to the `__consumer_offsets` log.

`GroupStore` is what the runtime needs; the server implements it over the partition logs.
`MemoryGroupStore` is its twin for tests: it keeps what a compacted log would, record by record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

__all__ = ["GroupStore", "KeyValue", "MemoryGroupStore"]

# Key and value of one record; a None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]


class GroupStore(Protocol):
    """Keyed records in numbered partitions."""

    async def append(self, partition: int, records: Sequence[KeyValue]) -> None:
        """Store `records` at the end of a partition, all or none; returns when they are safe.

        Raises BrokerError with the reason (`not_leader_or_follower`, `not_enough_replicas`,
        `message_too_large`, `kafka_storage_error` …) when they are not. The runtime makes one call
        per partition at a time.
        """
        ...

    def read(self, partition: int) -> Iterable[KeyValue]:
        """Every record of a partition from its start, oldest first; read in a worker thread."""
        ...


class MemoryGroupStore:
    """A `GroupStore` in memory; `fail_with`, when set, is what the next appends raise."""

    def __init__(self) -> None:
        self.records: dict[int, list[KeyValue]] = {}
        self.appends = 0
        self.fail_with: BaseException | None = None

    async def append(self, partition: int, records: Sequence[KeyValue]) -> None:
        if self.fail_with is not None:
            raise self.fail_with
        self.records.setdefault(partition, []).extend(records)
        self.appends += 1

    def read(self, partition: int) -> Iterable[KeyValue]:
        return list(self.records.get(partition, ()))
