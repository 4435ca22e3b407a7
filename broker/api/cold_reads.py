"""Look-ups of pages that are not in the page cache: a thread reads them first, so that other connections are served.

Called by the handlers of Fetch and ListOffsets after an attempt that raised ColdRead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from broker.log.segment_file import ColdRead, unless_cold

T = TypeVar("T")

MAX_MISSES: Final = 1000
"""Cold reads that one request may retry."""


async def warmed(attempt: Callable[[], T], cold: ColdRead) -> T:
    """Retry `attempt` after reading the missing pages in a thread.

    The last attempt waits for the disk, in case pages are dropped from the cache as fast as they are read.
    """
    for _ in range(MAX_MISSES):
        with suppress(OSError):  # the next attempt raises it again
            await asyncio.to_thread(cold.warm)
        cold.settle()
        try:
            return unless_cold(attempt)
        except ColdRead as missed:
            cold = missed
    return attempt()
