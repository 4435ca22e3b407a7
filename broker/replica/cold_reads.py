"""Look-ups that must wait for the disk or for the archive's store, so that other connections are served meanwhile.

Called after an attempt that raised ColdRead. Pages that are not in the page cache are read by a thread; for a store no
thread waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from broker.errors import BrokerError, ErrorCode
from broker.log.download import Download
from broker.log.segment_file import ColdRead, unless_cold

T = TypeVar("T")

MAX_MISSES: Final = 1000
"""Cold reads that one request may retry."""


async def read_warm(attempt: Callable[[], T]) -> T:
    """The result of `attempt`, at once if nothing is cold. Raises as `warmed`."""
    try:
        return unless_cold(attempt)
    except ColdRead as cold:
        return await warmed(attempt, cold)


async def warmed(attempt: Callable[[], T], cold: ColdRead, *, store_s: float = 30.0) -> T:
    """Retry `attempt` after reading the missing pages in a thread, or after the store has answered.

    The last attempt waits for the disk, in case pages are dropped from the cache as fast as they are read. Raises
    BrokerError `request_timed_out` when the store takes more than `store_s` seconds in all.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + store_s
    for _ in range(MAX_MISSES):
        if cold.download is None:
            with suppress(OSError):  # the next attempt raises it again
                await asyncio.to_thread(cold.warm)
        else:
            await _answered(cold.download, deadline - loop.time())
        cold.keep()
        try:
            return unless_cold(attempt)
        except ColdRead as missed:
            cold = missed
    try:
        return attempt()
    except ColdRead as missed:
        raise BrokerError(ErrorCode.request_timed_out, "too much had to be read from the archive") from missed


async def _answered(download: Download, seconds: float) -> None:
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    waiter = partial(call_in, loop, answered.set)
    download.watch(waiter)
    try:
        await asyncio.wait_for(answered.wait(), seconds)
    except TimeoutError:
        raise BrokerError(ErrorCode.request_timed_out, "the archive does not answer in time") from None
    finally:
        download.unwatch(waiter)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call back in the event loop, from any thread, also from one that outlives the loop."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)
