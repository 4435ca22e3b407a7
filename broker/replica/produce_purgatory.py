"""The appends of one partition with acks=all that wait until all in-sync replicas have them (Kafka's DelayedProduce).

Partition notifies it when the high watermark advances. Nothing polls, and no thread waits. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable

from broker.errors import BrokerError

__all__ = ["OnCommit", "ProducePurgatory"]

OnCommit = Callable[[BrokerError | None], None]
"""Called when a record is committed, or with an error. It must not raise."""


class ProducePurgatory:
    """Callbacks by offset."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[OnCommit]] = {}
        self._offsets: list[int] = []
        """A heap of the keys of `_waiting`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, offset: int, on_commit: OnCommit) -> None:
        """Call `on_commit` in the step in which the high watermark passes `offset`."""
        waiting = self._waiting.get(offset)
        if waiting is None:
            self._waiting[offset] = [on_commit]
            heapq.heappush(self._offsets, offset)
        else:
            waiting.append(on_commit)

    def unwatch(self, offset: int, on_commit: OnCommit) -> None:
        """Forget a callback of `watch`, if it has not been called."""
        if on_commit in self._waiting.get(offset, ()):
            self._waiting[offset].remove(on_commit)

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when the high watermark is above `offset`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.watch(offset, functools.partial(_settle, future))
        return future

    def advance(self, high_watermark: int) -> None:
        """Complete those that wait for offsets below the watermark."""
        while self._offsets and self._offsets[0] < high_watermark:
            for on_commit in self._waiting.pop(heapq.heappop(self._offsets)):
                on_commit(None)

    def fail(self, error: BrokerError) -> None:
        """End all with an error. Their records stay in the log and may be committed later."""
        waiting, self._waiting, self._offsets = self._waiting, {}, []
        for callbacks in waiting.values():
            for on_commit in callbacks:
                on_commit(error)


def _settle(future: asyncio.Future[None], error: BrokerError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(BrokerError(error.code, error.message))
        future.exception()  # keeps asyncio from logging an error that nobody waits for
