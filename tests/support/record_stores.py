"""Record stores whose appends a test lets through one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from broker.coordinator.record_store import KeyValue, MemoryRecordStore
from broker.coordinator.transaction_state import ProducerIdAndEpoch


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
        for _ in range(1_000):
            if self.waiting:
                return
            await asyncio.sleep(0)
        raise AssertionError("nothing was appended")


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
