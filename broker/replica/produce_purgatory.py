"""The appends of one partition with acks=all that wait until all in-sync replicas have them (Kafka's DelayedProduce).

Partition notifies it when the high watermark advances. Nothing polls, and no thread waits. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import heapq

from broker.errors import BrokerError

__all__ = ["ProducePurgatory"]


class ProducePurgatory:
    """Futures by offset. Requests that wait for the same offset, as retries do, share one."""

    def __init__(self) -> None:
        self._futures: dict[int, asyncio.Future[None]] = {}
        self._offsets: list[int] = []
        """A heap of the keys of `_futures`."""

    def __len__(self) -> int:
        return len(self._futures)

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when the high watermark is above `offset`. Do not cancel it: others may share it."""
        future = self._futures.get(offset)
        if future is None:
            future = self._futures[offset] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._offsets, offset)
        return future

    def advance(self, high_watermark: int) -> None:
        """Complete those that wait for offsets below the watermark."""
        while self._offsets and self._offsets[0] < high_watermark:
            future = self._futures.pop(heapq.heappop(self._offsets))
            if not future.done():
                future.set_result(None)

    def fail(self, error: BrokerError) -> None:
        """End all with an error. Their records stay in the log and may be committed later."""
        futures, self._futures, self._offsets = self._futures, {}, []
        for future in futures.values():
            if not future.done():
                future.set_exception(BrokerError(error.code, error.message))
                future.exception()  # keeps asyncio from logging an error that nobody waits for
