"""Threads that finish the checks of large batches, so that no other connection waits for them.

Owned by the API context, used by the Produce handler. There are two threads: one client's large batches do not block
all others, and the memory for decompression stays limited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from broker.background_tasks import BackgroundTasks, log_unexpected
from broker.errors import BrokerError
from broker.log.append_checks import BatchCheck
from broker.net.stopwatch import Stopwatch, shielded, work_in_thread

THREADS: Final = 2

T = TypeVar("T")


class CheckThreads:
    """`finish` runs checks in a thread. `keep` completes work even if its connection is closed."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._kept = BackgroundTasks()

    async def finish(self, checks: Sequence[BatchCheck]) -> list[BrokerError | None]:
        """Run the checks one after another. Returns the error of each, or None."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, "batch-checks")
        return await work_in_thread(lambda: [_failure(check) for check in checks], self._threads)

    def keep(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Run `work` as a task that is not cancelled with its caller: as in Kafka, a request that arrived is served.

        A cancelled caller still waits for the end of the work, so that the request's memory is released after it.
        """
        watch = Stopwatch(work)
        return _completed(self._kept.add(watch), watch)

    async def close(self) -> None:
        """Wait for all work that was kept."""
        await self._kept.wait()
        if self._threads is not None:
            self._threads.shutdown(wait=False)


async def _completed(task: asyncio.Future[T], watch: Stopwatch) -> T:
    try:
        return await shielded(task, watch)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        log_unexpected("a request whose client has left", task)
        raise


def _failure(check: BatchCheck) -> BrokerError | None:
    try:
        check.run()
    except BrokerError as error:
        return error
    return None
