"""Where the coordinators keep their records: the seam to the logs of their internal topics.

`RecordStore` is what the runtimes need; log_record_store.py is it over the partition logs.
`MemoryRecordStore` is its twin for tests: it keeps what the log would, append by append.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from broker.coordinator.transaction_state import ProducerIdAndEpoch

__all__ = ["KeyValue", "MemoryRecordStore", "RecordRun", "RecordStore"]

# Key and value of one record; a None value is a tombstone.
KeyValue: TypeAlias = tuple[bytes, bytes | None]


class RecordRun(NamedTuple):
    """Records that stand behind each other in the log, or the marker that ends a transaction."""

    records: Sequence[KeyValue] = ()
    # Of the transaction the records belong to, or that ends here; -1: outside of transactions.
    producer_id: int = -1
    # Only of a marker: how the transaction ended.
    commit: bool | None = None


class RecordStore(Protocol):
    """Keyed records in numbered partitions of one internal topic."""

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[object] | None:
        """Store `records` at the end of a partition, all or none, within the open transaction of `producer` if one
        is given.

        Gives None when they are safe already, else what to wait for until they are. Raises BrokerError with the reason
        (`not_leader_or_follower`, `not_enough_replicas`, `kafka_storage_error`, of a producer `invalid_producer_epoch`
        …) when they do not stand in the partition, now or to who waits; that they are too much at once
        (`message_too_large`, `record_list_too_large`) is raised now. Their place is behind those of earlier calls and
        before those of later ones.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[RecordRun]:
        """Every record of a partition from its start, oldest first; control records as markers."""
        ...


class MemoryRecordStore:
    """A `RecordStore` in memory; `fail_with`, when set, is what the next appends raise."""

    def __init__(self) -> None:
        self.runs: dict[int, list[RecordRun]] = {}
        self.appends = 0
        self.fail_with: BaseException | None = None

    @property
    def records(self) -> dict[int, list[KeyValue]]:
        """Partition → all its records, whatever transaction they belong to."""
        return {partition: [record for run in runs for record in run.records] for partition, runs in self.runs.items()}

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[None] | None:
        if self.fail_with is not None:
            raise self.fail_with
        producer_id = -1 if producer is None else producer.producer_id
        self.runs.setdefault(partition, []).append(RecordRun(tuple(records), producer_id))
        self.appends += 1
        return None

    def append_marker(self, partition: int, producer_id: int, *, commit: bool) -> None:
        """End a transaction, as the transaction coordinator does behind our back."""
        self.runs.setdefault(partition, []).append(RecordRun((), producer_id, commit))

    async def read(self, partition: int) -> AsyncIterator[RecordRun]:
        for run in tuple(self.runs.get(partition, ())):
            yield run
