"""Checks of large batches go on in threads of their own, so that no other connection waits for them.

Owned by the API context; called by the Produce handler for what its first look did not finish. There are two threads,
so that one client's large batches do not hold up all others', and memory stays what two decompressors need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from broker.errors import BrokerError
from broker.log.append_checks import BatchCheck

__all__ = ["CheckThreads"]

THREADS: Final = 2

T = TypeVar("T")


class CheckThreads:
    """`finish` runs checks to their ends; `keep` sees work through although its connection is gone."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._kept: set[asyncio.Future[Any]] = set()

    async def finish(self, checks: Sequence[BatchCheck]) -> list[BrokerError | None]:
        """Run the checks one after another; why each failed, or None."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "batch-checks")
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: [_failure(check) for check in checks]
        )

    def keep(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """What awaits this may be cancelled, the work is not: a request that has come is served, as by Kafka. Who is
        cancelled waits for its end all the same, and gives back the request's memory no earlier."""
        task = asyncio.ensure_future(work)
        self._kept.add(task)
        task.add_done_callback(self._ended)
        return _through(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._kept.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to take it

    async def close(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._kept, return_exceptions=True)
        if self._threads is not None:
            self._threads.shutdown(wait=False)


async def _through(task: asyncio.Future[T]) -> T:
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _failure(check: BatchCheck) -> BrokerError | None:
    try:
        check.run()
    except BrokerError as error:
        return error
    return None
