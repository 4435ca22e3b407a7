"""A fetch that waits: answered when enough bytes have come, or when its time is up.

Made by api/fetch, told by the partitions it names. Nothing polls: an append tells its waiters, and one
timer ends the wait (Kafka: DelayedFetch in the purgatory).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

__all__ = ["DelayedFetch"]


class Watched(Protocol):
    """What can be waited for: a partition that tells its waiters of every append."""

    waiters: set[DelayedFetch]


class DelayedFetch:
    """Waits until its partitions have gained `missing_bytes`, or one of them changed hands, or `seconds` are over.

    It counts from the moment it is made, not from the first step of whoever awaits it: an append that comes in
    between must not be missed. One that nobody awaits any more ends with its time.
    """

    def __init__(
        self, partitions: Iterable[Watched], missing_bytes: int, seconds: float, *, committed: bool = False
    ) -> None:
        """`committed`: only bytes below the last stable offset count."""
        self.committed = committed
        self._partitions = tuple(partitions)
        self._missing = missing_bytes
        loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(seconds, self.end)
        for partition in self._partitions:
            partition.waiters.add(self)

    async def wait(self) -> None:
        """Return when satisfied or out of time."""
        try:
            await self._done
        finally:
            self.end()

    def gained(self, size: int) -> None:
        """`size` more bytes can be read."""
        self._missing -= size
        if self._missing <= 0:
            self.end()

    def end(self) -> None:
        """Stop to wait, whatever there is. Idempotent."""
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)
        if not self._done.done():
            self._done.set_result(None)
