"""A fetch that waits until enough bytes can be read or its time is up (Kafka's DelayedFetch in the purgatory).

Made by api/fetch. Nothing polls: the partition notifies its waiting fetches, and a timer ends the wait. A consumer's
fetch counts bytes below the high watermark, a follower's all that are appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

__all__ = ["DelayedFetch", "Waiter"]


class Waiter(Protocol):
    """Waits for changes of a partition: a delayed fetch, or a partition of a fetch session."""

    @property
    def committed(self) -> bool:
        """Whether only bytes below the last stable offset count."""
        ...

    @property
    def replica(self) -> bool:
        """Whether all bytes of the log count, as for a follower."""
        ...

    def gained(self, size: int) -> None:
        """The partition has changed; `size` more bytes can be read, perhaps none."""
        ...

    def end(self) -> None:
        """This broker stops leading the partition."""
        ...


class Watched(Protocol):
    """A partition, which notifies `waiters` of every change."""

    waiters: set[Waiter]


class DelayedFetch:
    """Waits until its partitions gained `missing_bytes`, one of them changed its leader, or `seconds` are over.

    Counts from its creation, not from the first `wait`, so that no append in between is missed. If nobody waits any
    more, the timer ends it.
    """

    def __init__(
        self,
        partitions: Iterable[Watched],
        missing_bytes: int,
        seconds: float,
        *,
        committed: bool = False,
        replica: bool = False,
    ) -> None:
        self.committed = committed
        """Whether only bytes below the last stable offset count."""
        self.replica = replica
        """Whether all bytes of the log count, as for a follower."""
        self._partitions = tuple(partitions)
        self._missing = missing_bytes
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(seconds, self.end)
        for partition in self._partitions:
            partition.waiters.add(self)

    async def wait(self) -> None:
        """Return when there are enough bytes or the time is up."""
        try:
            await self._done
        finally:
            self.end()

    def gained(self, size: int) -> None:
        """Count `size` more bytes that can be read."""
        self._missing -= size
        if self._missing <= 0:
            self.end()

    def end(self) -> None:
        """End the wait. Idempotent."""
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)
        if not self._done.done():
            self._done.set_result(None)
