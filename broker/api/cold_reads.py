"""Look-ups of what is not in the page cache: a thread reads it first, so that others are served meanwhile.

Called by the handlers of Fetch and ListOffsets for an attempt that has ended with ColdRead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from broker.log.segment_file import ColdRead, unless_cold

__all__ = ["warmed"]

T = TypeVar("T")

MOST_MISSES: Final = 1000
"""Misses of one request, each in another partition or a little farther on."""


async def warmed(attempt: Callable[[], T], cold: ColdRead) -> T:
    """Begin anew after each miss. Where pages go as fast as they come, the last time waits for the disk."""
    for _ in range(MOST_MISSES):
        with suppress(OSError):  # reading again tells
            await asyncio.to_thread(cold.warm)
        cold.settle()
        try:
            return unless_cold(attempt)
        except ColdRead as missed:
            cold = missed
    return attempt()
