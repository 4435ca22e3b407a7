"""What counts as work on a request, and what as waiting."""

from __future__ import annotations

import asyncio
import time

import pytest

from broker.net.stopwatch import Stopwatch, shielded, stop_measuring, work_in_thread


def work(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def test_it_counts_work_and_no_waits() -> None:
    async def handler() -> str:
        work(0.02)
        await asyncio.sleep(1)
        work(0.02)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            return "done"
        return "never"

    watch = Stopwatch(handler())
    assert await watch == "done"
    assert 0.04 <= watch.seconds < 1


async def test_it_is_cancelled_with_its_work() -> None:
    ended = []

    async def handler() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def watched() -> None:
        await Stopwatch(handler())

    task = asyncio.ensure_future(watched())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), ended) == (True, [True])


async def test_work_in_threads_and_tasks_counts_for_the_request_that_waits_for_it() -> None:
    async def elsewhere() -> None:
        await asyncio.sleep(1)
        await work_in_thread(lambda: work(0.02))
        work(0.02)

    async def handler(tasks: int) -> None:
        for _ in range(tasks):
            watch = Stopwatch(elsewhere())
            await shielded(asyncio.ensure_future(watch), watch)

    first, second = Stopwatch(handler(1)), Stopwatch(handler(3))
    await asyncio.gather(*(asyncio.ensure_future(watch) for watch in (first, second)))
    await work_in_thread(lambda: work(0.02))  # for no request
    assert 0.04 <= first.seconds < 1
    assert 0.12 <= second.seconds < 3


async def test_work_that_fails_counts() -> None:
    def fail() -> None:
        work(0.02)
        raise ValueError("wrong")

    watch = Stopwatch(work_in_thread(fail))
    with pytest.raises(ValueError, match="wrong"):
        await watch
    assert watch.seconds >= 0.02


async def test_another_request_that_begins_in_a_measured_step_does_not_count() -> None:
    """As one that waited on its connection until the measured one completed the answer before it."""

    async def other() -> None:
        stop_measuring()
        await work_in_thread(lambda: work(0.5))

    async def handler() -> None:
        await asyncio.wait([asyncio.ensure_future(other())])

    watch = Stopwatch(handler())
    await watch
    assert watch.seconds < 0.5
