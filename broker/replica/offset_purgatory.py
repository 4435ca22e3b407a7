"""What waits until an offset of a partition advances: the high watermark, or the start of all replicas.

Appends with acks=all and DeleteRecords do (Kafka's DelayedProduce and DelayedDeleteRecords). Partition notifies it.
Nothing polls, and no thread waits. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable

from broker.errors import BrokerError

OnPassed = Callable[[BrokerError | None], None]
"""Called when the offset is passed, or with an error. It must not raise."""


class OffsetPurgatory:
    """Callbacks by offset."""

    def __init__(self) -> None:
        self._waiting: dict[int, list[OnPassed]] = {}
        self._offsets: list[int] = []
        """A heap of the keys of `_waiting`."""

    def __len__(self) -> int:
        return len(self._waiting)

    def watch(self, offset: int, on_passed: OnPassed) -> None:
        """Call `on_passed` in the step in which `advance` passes `offset`."""
        waiting = self._waiting.get(offset)
        if waiting is None:
            self._waiting[offset] = [on_passed]
            heapq.heappush(self._offsets, offset)
        else:
            waiting.append(on_passed)

    def unwatch(self, offset: int, on_passed: OnPassed) -> None:
        """Forget a callback of `watch`, if it has not been called."""
        if on_passed in self._waiting.get(offset, ()):
            self._waiting[offset].remove(on_passed)
            if not self._waiting[offset]:
                del self._waiting[offset]

    def wait(self, offset: int) -> asyncio.Future[None]:
        """A future that is done when `advance` has passed `offset`. Nobody keeps it once it is cancelled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        on_passed = functools.partial(_complete, future)
        self.watch(offset, on_passed)
        future.add_done_callback(lambda done: self.unwatch(offset, on_passed) if done.cancelled() else None)
        return future

    def advance(self, offset: int) -> None:
        """Complete those that wait for offsets below this one."""
        while self._offsets and self._offsets[0] < offset:
            for on_passed in self._waiting.pop(heapq.heappop(self._offsets), ()):
                on_passed(None)

    def fail(self, error: BrokerError) -> None:
        """End all with an error."""
        waiting, self._waiting, self._offsets = self._waiting, {}, []
        for callbacks in waiting.values():
            for on_passed in callbacks:
                on_passed(error)


def _complete(future: asyncio.Future[None], error: BrokerError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(BrokerError(error.code, error.message))
        future.exception()  # keeps asyncio from logging an error that nobody waits for
