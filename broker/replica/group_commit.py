"""Group commit: appends that must be on disk before they are acknowledged share fsyncs.

One fsync of a log runs at a time, in a thread. It serves all appends that waited when it began. Those that come
meanwhile wait for the next fsync, which serves them all. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from broker.errors import BrokerError, ErrorCode
from broker.log.log import Log


class GroupCommit:
    """The fsyncs of one log that appends wait for."""

    def __init__(self, log: Log, threads: Executor | None, flushed: Callable[[], None]) -> None:
        """`flushed` is called after each fsync, before the appends that waited for it continue."""
        self._log = log
        self._threads = threads
        self._flushed = flushed
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_waited_for(self) -> bool:
        """Whether another fsync will follow."""
        return bool(self._waiting)

    def wait(self) -> asyncio.Future[None]:
        """A future that is done when all appends so far are on disk; it raises BrokerError `kafka_storage_error`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                served, self._waiting = self._waiting, []
                failure: BrokerError | None = None
                try:
                    await loop.run_in_executor(self._threads, self._log.flush)
                    self._flushed()
                except BrokerError as error:
                    failure = error
                except Exception as error:  # no append may wait for ever
                    failure = BrokerError(ErrorCode.kafka_storage_error, f"the fsync failed: {error!r}")
                for future in served:
                    if future.done():
                        continue  # the request was given up
                    if failure is None:
                        future.set_result(None)
                    else:
                        future.set_exception(BrokerError(failure.code, failure.message))
        finally:
            self._task = None
