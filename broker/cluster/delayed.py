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
    """Waits until its partitions have gained `missing_bytes`, or one of them changed hands."""

    def __init__(self, partitions: Iterable[Watched], missing_bytes: int) -> None:
        self._partitions = tuple(partitions)
        self._missing = missing_bytes
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, seconds: float) -> None:
        """Return when satisfied or after `seconds`."""
        for partition in self._partitions:
            partition.waiters.add(self)
        timer = asyncio.get_running_loop().call_later(seconds, self.end)
        try:
            await self._done
        finally:
            timer.cancel()
            for partition in self._partitions:
                partition.waiters.discard(self)

    def gained(self, size: int) -> None:
        """`size` more bytes can be read."""
        self._missing -= size
        if self._missing <= 0:
            self.end()

    def end(self) -> None:
        """Stop to wait, whatever there is."""
        if not self._done.done():
            self._done.set_result(None)
