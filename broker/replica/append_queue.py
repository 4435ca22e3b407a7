"""Appends to the log of a slow disk, one after another, whose writes run in a thread while the event loop goes on.

Partition puts an append here when its disk was slow a moment ago, or when earlier appends still wait here. The queue
lives on the event loop; only the write runs elsewhere, and readers of the log see nothing of it before it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from broker.log.pending_append import PendingAppend

T = TypeVar("T")


class AppendQueue:
    """The waiting appends of one log, in order."""

    def __init__(self, threads: Executor | None) -> None:
        self._threads = threads
        self._waiting: list[tuple[Callable[[], PendingAppend[Any]], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def add(self, begin: Callable[[], PendingAppend[T]]) -> asyncio.Future[T]:
        """Run the append `begin()` after the earlier ones; the future has its result or error.

        It runs to the end even if nobody waits for the future any more.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_mark_retrieved)
        self._waiting.append((begin, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def drain(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                begin, future = self._waiting.pop(0)
                try:
                    result = await self._complete(begin())
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                else:
                    if not future.done():
                        future.set_result(result)
        finally:
            self._task = None

    async def _complete(self, append: PendingAppend[T]) -> T:
        """Do a pending append, with its blocking step in a thread."""
        loop = asyncio.get_running_loop()
        try:
            step = next(append)
            while True:
                try:
                    await loop.run_in_executor(self._threads, step)
                except Exception as error:
                    step = append.throw(error)
                else:
                    step = next(append)
        except StopIteration as end:
            result: T = end.value
            return result


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from logging an error that nobody waits for."""
    if not future.cancelled():
        future.exception()
