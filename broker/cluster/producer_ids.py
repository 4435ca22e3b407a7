"""Producer ids, handed out from blocks that are taken from ZooKeeper (KIP-98, /latest_producer_id_block).

Two brokers never give the same id, and a broker that dies only leaves a hole. Lives on the event loop;
only the taking of a block waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

__all__ = ["ProducerIds"]


class ProducerIds:
    """`allocate` takes a new block of ids; it blocks and is called in a worker thread."""

    def __init__(self, allocate: Callable[[], range]) -> None:
        self._allocate = allocate
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """An id that is at hand, or None when a block must be fetched first."""
        return next(self._block, None)

    async def take_from_new_block(self) -> int:
        """An id, after fetching a block if nobody else has meanwhile."""
        async with self._lock:
            while (producer_id := self.take()) is None:
                self._block = iter(await asyncio.to_thread(self._allocate))
        return producer_id
