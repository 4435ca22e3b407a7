"""Appends to the log of a slow disk: one after another, each writing in a thread while the event loop goes on.

Owned by partition.py, which puts an append here when its disk was slow a moment ago, or when others are here still.
Lives on the event loop; only the write itself is elsewhere, and the log shows nothing of it before its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

from broker.log.pending_append import PendingAppend

__all__ = ["AppendQueue"]

T = TypeVar("T")


class AppendQueue:
    """What waits to be appended to one log, in order."""

    def __init__(self, threads: Executor | None) -> None:
        self._threads = threads
        self._waiting: list[tuple[Callable[[], PendingAppend[Any]], asyncio.Future[Any]]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether what is to be appended now has to wait for its turn."""
        return self._task is not None

    def add(self, begin: Callable[[], PendingAppend[T]]) -> asyncio.Future[T]:
        """Do the steps that `begin` gives when it is their turn, to their end although nobody may wait for it any more.

        The future has what they give, or raises what they raise.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_heard)
        self._waiting.append((begin, future))
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    async def settled(self) -> None:
        """Wait until nothing is under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                begin, future = self._waiting.pop(0)
                try:
                    result = await self._through(begin())
                except Exception as error:
                    if not future.done():
                        future.set_exception(error)
                else:
                    if not future.done():
                        future.set_result(result)
        finally:
            self._task = None

    async def _through(self, steps: PendingAppend[T]) -> T:
        """As `complete`, with each step in a thread."""
        loop = asyncio.get_running_loop()
        try:
            step = next(steps)
            while True:
                try:
                    await loop.run_in_executor(self._threads, step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _heard(future: asyncio.Future[Any]) -> None:
    """Nobody may be left to take the error."""
    if not future.cancelled():
        future.exception()
