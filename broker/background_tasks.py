"""Tasks of the event loop that go on by themselves.

The one way to run such a task: it is kept alive until it ends, and whatever it raises, and nobody else gets, is logged.
An asyncio task alone may be collected as garbage, and keeps its exception until somebody asks for it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from broker.errors import PykafkaError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class BackgroundTasks:
    """The running tasks of one part. `what` names the work in the log, as in "reading topics again failed"."""

    def __init__(self) -> None:
        self._running: set[asyncio.Future[Any]] = set()
        self._told: dict[str, str] = {}
        """The last failure of each kind of work, which is told once."""

    def __bool__(self) -> bool:
        return bool(self._running)

    def begin(self, what: str, work: Awaitable[T]) -> asyncio.Future[T]:
        """Run `work` as a task. If it fails, that is logged."""
        task = self.add(work)
        task.add_done_callback(functools.partial(self._tell, what))
        return task

    def add(self, work: Awaitable[T]) -> asyncio.Future[T]:
        """Run `work` as a task, whose failure is for the caller to notice."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def finish(self, what: str, work: Awaitable[T]) -> T:
        """The result of `work`, which goes on if the caller is cancelled. If it fails then, that is logged."""
        task = self.add(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(functools.partial(self._tell, what))
            raise

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of all, but at most `timeout_s`."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _tell(self, what: str, task: asyncio.Future[Any]) -> None:
        error = log_unexpected(what, task)
        if error is None:
            self._told.pop(what, None)
        elif isinstance(error, PykafkaError) and self._told.get(what) != str(error):
            self._told[what] = str(error)
            logger.warning("%s failed: %s", what, error)


def log_unexpected(what: str, task: asyncio.Future[Any]) -> BaseException | None:
    """The error of a task that has ended, which is logged unless it is a PykafkaError."""
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, PykafkaError):
        logger.error("%s failed", what, exc_info=error)
    return error


def name_of(work: Callable[..., object]) -> str:
    """The function behind what is called, for the log."""
    if isinstance(work, functools.partial):
        return name_of(work.args[0] if work.func is asyncio.to_thread else work.func)
    return getattr(work, "__qualname__", repr(work))
