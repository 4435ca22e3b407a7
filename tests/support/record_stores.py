"""Record stores in memory, and some whose appends a test lets through one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence

from broker.coordinator.record_format import KeyValue
from broker.coordinator.record_store import RecordRun
from broker.coordinator.transaction_state import ProducerIdAndEpoch


class MemoryRecordStore:
    """A `RecordStore` in memory. The next appends raise `fail_with` if it is set."""

    def __init__(self) -> None:
        self.runs: dict[int, list[RecordRun]] = {}
        self.appends = 0
        self.fail_with: BaseException | None = None

    @property
    def records(self) -> dict[int, list[KeyValue]]:
        """Partition → all its records, of every transaction."""
        return {partition: [record for run in runs for record in run.records] for partition, runs in self.runs.items()}

    def check(self, partition: int) -> None:
        if self.fail_with is not None:
            raise self.fail_with

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
        """End a transaction, as the transaction coordinator does."""
        self.runs.setdefault(partition, []).append(RecordRun((), producer_id, commit))

    async def read(self, partition: int) -> AsyncIterator[RecordRun]:
        for run in tuple(self.runs.get(partition, ())):
            yield run


class GatedRecordStore(MemoryRecordStore):
    """Appends wait while `gate` is closed; `waiting` counts those that stand before it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        MemoryRecordStore.append(self, partition, records, producer)

    async def until_waiting(self) -> None:
        """Return once an append stands before the closed gate."""
        async with asyncio.timeout(30):
            while not self.waiting:
                await asyncio.sleep(0)


class SyncingRecordStore(MemoryRecordStore):
    """Appends stand in the partition at once, and are safe when `gate` is open: a log that must be synced."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    def append(
        self, partition: int, records: Sequence[KeyValue], producer: ProducerIdAndEpoch | None = None
    ) -> Awaitable[None] | None:
        super().append(partition, records, producer)
        return self._safe()

    async def _safe(self) -> None:
        await self.gate.wait()
