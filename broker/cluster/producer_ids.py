"""Producer ids, from blocks that this broker allocates in ZooKeeper (KIP-98, Kafka's ZkProducerIdManager).

Two brokers never give the same id. A broker that dies leaves the rest of its block unused. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator


class ProducerIds:
    """`allocate` returns a new block of ids. It blocks, and is called in a worker thread."""

    def __init__(self, allocate: Callable[[], range]) -> None:
        self._allocate = allocate
        self._block: Iterator[int] = iter(())
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """The next id, or None when a new block is needed."""
        return next(self._block, None)

    async def take_from_new_block(self) -> int:
        """The next id, after allocating a block unless another caller has done it meanwhile."""
        async with self._lock:
            while (producer_id := self.take()) is None:
                self._block = iter(await asyncio.to_thread(self._allocate))
        return producer_id
