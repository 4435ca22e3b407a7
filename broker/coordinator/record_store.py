"""Where the coordinators keep their records: the seam to the logs of their internal topics.

`RecordStore` is what the runtimes need; log_record_store.py is it over the partition logs.
`MemoryRecordStore` is its twin for tests: it keeps what a compacted log would, record by record.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from typing import Protocol, TypeAlias

__all__ = ["KeyValue", "MemoryRecordStore", "RecordStore"]

# Key and value of one record; a None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]


class RecordStore(Protocol):
    """Keyed records in numbered partitions of one internal topic."""

    def append(self, partition: int, records: Sequence[KeyValue]) -> Awaitable[None] | None:
        """Store `records` at the end of a partition, all or none.

        Gives None when they are safe already, else what to wait for until they are. Raises BrokerError
        with the reason (`not_leader_or_follower`, `not_enough_replicas`, `message_too_large`,
        `kafka_storage_error` …) when they are not. The runtime makes one call per partition at a time.
        """
        ...

    def read(self, partition: int) -> Iterable[KeyValue]:
        """Every record of a partition from its start, oldest first; read in a worker thread."""
        ...


class MemoryRecordStore:
    """A `RecordStore` in memory; `fail_with`, when set, is what the next appends raise."""

    def __init__(self) -> None:
        self.records: dict[int, list[KeyValue]] = {}
        self.appends = 0
        self.fail_with: BaseException | None = None

    def append(self, partition: int, records: Sequence[KeyValue]) -> Awaitable[None] | None:
        if self.fail_with is not None:
            raise self.fail_with
        self.records.setdefault(partition, []).extend(records)
        self.appends += 1
        return None

    def read(self, partition: int) -> Iterable[KeyValue]:
        return list(self.records.get(partition, ()))
