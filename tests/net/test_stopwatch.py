"""What counts as work on a request, and what as waiting: by a clock that only the test moves."""

from __future__ import annotations

import asyncio
import threading

import pytest

from broker.net import stopwatch
from broker.net.stopwatch import Stopwatch, shielded, stop_measuring, work_in_thread


class HandClock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def pass_s(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    made = HandClock()
    monkeypatch.setattr(stopwatch, "time", made)
    return made


async def wait(clock: HandClock, seconds: float) -> None:
    """Time passes while others have the event loop."""
    asyncio.get_running_loop().call_soon(clock.pass_s, seconds)
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def work_elsewhere(clock: HandClock, seconds: float) -> None:
    """A thread works once the event loop has gone on: one clock cannot show two at work."""
    went_on = threading.Event()
    asyncio.get_running_loop().call_soon(went_on.set)

    def work() -> None:
        assert went_on.wait(60)
        clock.pass_s(seconds)

    await work_in_thread(work)


async def test_it_counts_work_and_no_waits(clock: HandClock) -> None:
    async def handler() -> str:
        clock.pass_s(1)
        await wait(clock, 100)
        clock.pass_s(2)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        except TimeoutError:
            return "done"
        return "never"

    watch = Stopwatch(handler())
    assert await watch == "done"
    assert (watch.seconds, clock.now) == (3, 103)


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


async def test_work_in_threads_and_tasks_counts_for_the_request_that_waits_for_it(clock: HandClock) -> None:
    async def elsewhere() -> None:
        await wait(clock, 100)
        await work_elsewhere(clock, 10)
        clock.pass_s(1)

    async def handler(tasks: int) -> None:
        for _ in range(tasks):
            watch = Stopwatch(elsewhere())
            await shielded(asyncio.ensure_future(watch), watch)

    first, second = Stopwatch(handler(1)), Stopwatch(handler(3))
    await asyncio.ensure_future(first)
    await work_elsewhere(clock, 1000)  # for no request
    await asyncio.ensure_future(second)
    assert (first.seconds, second.seconds) == (11, 33)


async def test_work_that_fails_counts(clock: HandClock) -> None:
    went_on = threading.Event()

    def fail() -> None:
        assert went_on.wait(60)
        clock.pass_s(10)
        raise ValueError("wrong")

    watch = Stopwatch(work_in_thread(fail))
    asyncio.get_running_loop().call_soon(went_on.set)
    with pytest.raises(ValueError, match="wrong"):
        await watch
    assert watch.seconds == 10


async def test_another_request_that_begins_in_a_measured_step_does_not_count(clock: HandClock) -> None:
    """As one that waited on its connection until the measured one completed the answer before it."""

    async def other() -> None:
        stop_measuring()
        await work_elsewhere(clock, 10)

    async def handler() -> None:
        await asyncio.wait([asyncio.ensure_future(other())])

    watch = Stopwatch(handler())
    await watch
    assert (watch.seconds, clock.now) == (0, 10)
