"""The answers of /metrics. A large one is given to all who ask within a second, and one is made at a time.

So those who ask often, or all at once, cost little more than one scraper does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

FRESH_S: Final = 1.0
LARGE: Final = 2000
"""Samples. Fewer are collected in a few milliseconds, and whoever looks twice sees what has changed."""

T = TypeVar("T")


class Scrapes(Generic[T]):
    """Collects and encodes. Lives on the event loop."""

    def __init__(self, collect: Callable[[], Awaitable[tuple[T, int]]], clock: Callable[[], float]) -> None:
        """`collect` gives what there is and how many samples that are; `clock` tells seconds."""
        self._collect = collect
        self._clock = clock
        self._one = asyncio.Lock()
        self._fresh_until = float("-inf")
        self._collected: T
        self._texts: dict[str, bytes] = {}

    async def text(self, form: str, encode: Callable[[T], bytes]) -> bytes:
        """What `encode` makes, in a thread, of what was collected. `form` tells its result from that of others."""
        async with self._one:
            if self._clock() >= self._fresh_until:
                self._texts.clear()
                self._collected, samples = await self._collect()
                if samples >= LARGE:
                    self._fresh_until = self._clock() + FRESH_S
            if form not in self._texts:
                # In a thread: with thousands of partitions it would block the event loop for too long.
                self._texts[form] = await asyncio.to_thread(encode, self._collected)
            return self._texts[form]
