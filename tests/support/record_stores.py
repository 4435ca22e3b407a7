"""A record store whose appends a test lets through one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.coordinator.record_store import KeyValue, MemoryRecordStore


class GatedRecordStore(MemoryRecordStore):
    """Appends wait while `gate` is closed; `waiting` counts those that stand before it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0

    async def append(self, partition: int, records: Sequence[KeyValue]) -> None:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        MemoryRecordStore.append(self, partition, records)

    async def until_waiting(self) -> None:
        """Return once an append stands before the closed gate."""
        for _ in range(1_000):
            if self.waiting:
                return
            await asyncio.sleep(0)
        raise AssertionError("nothing was appended")
