"""Measures how long the broker works for one request. The quota of request time is charged by it."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

_RUNNING: ContextVar[Stopwatch | None] = ContextVar("running stopwatch", default=None)


class Stopwatch:
    """Awaits `work` and adds up how long its steps run, without the time that it waits.

    Work that it waits for counts, too: in a thread by `work_in_thread`, in another task by `shielded`.
    """

    def __init__(self, work: Awaitable[Any]) -> None:
        self._work = work
        self.seconds = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._work.__await__()
        step = functools.partial(next, steps)
        while True:
            outer = _RUNNING.set(self)
            begun = time.monotonic()
            try:
                waited_for = step()
            except StopIteration as ended:
                return ended.value
            finally:
                self.seconds += time.monotonic() - begun
                _RUNNING.reset(outer)
            try:
                yield waited_for
                step = functools.partial(next, steps)
            except BaseException as error:
                step = functools.partial(steps.throw, error)


def stop_measuring() -> None:
    """Called in the task of a request that is not measured: it may have begun in a step of one that is."""
    _RUNNING.set(None)


def add_work(seconds: float) -> None:
    """Count work that was done elsewhere for the request that is being handled, if it is measured."""
    running = _RUNNING.get()
    if running is not None:
        running.seconds += seconds


async def shielded(task: asyncio.Future[T], watch: Stopwatch) -> T:
    """The result of a task that goes on if its caller is cancelled. What `watch` says of it counts for the caller."""
    try:
        return await asyncio.shield(task)
    finally:
        add_work(watch.seconds)


async def work_in_thread(work: Callable[[], T], threads: Executor | None = None) -> T:
    """Run `work` in one of `threads`, or of asyncio's, and count its time for the request that is being handled."""
    took: list[float] = []
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, _timed, work, took)
    finally:
        add_work(sum(took))


def _timed(work: Callable[[], T], took: list[float]) -> T:
    begun = time.monotonic()
    try:
        return work()
    finally:
        took.append(time.monotonic() - begun)
