"""A fetch that waits: what ends it, and that nothing is missed or left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref

from broker.net.steps import begin_step, end_step
from broker.replica.delayed_fetch import DelayedFetch, Waiter, WaitTimer
from tests.support.delayed import WaitingFetch


class Place:
    """Something to wait for."""

    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()


def test_bytes_of_several_appends_add_up() -> None:
    async def main() -> list[bool]:
        delayed = WaitingFetch([Place()], 10)
        done = []
        for size in (4, 5, 1):
            delayed.gained(size)
            await asyncio.sleep(0)
            done.append(delayed.ended.is_set())
        return done

    assert asyncio.run(main()) == [False, False, True]


def test_appends_of_one_step_are_answered_together() -> None:
    async def main() -> list[bool]:
        delayed = WaitingFetch([Place()], 10)
        delayed.gained(10)
        done = [delayed.ended.is_set()]  # the request may append more
        await asyncio.sleep(0)
        return [*done, delayed.ended.is_set()]

    assert asyncio.run(main()) == [False, True]


def test_a_fetch_that_a_request_ends_is_answered_in_the_step_of_that_request() -> None:
    async def main() -> list[bool]:
        delayed = WaitingFetch([Place()], 10)
        begin_step()
        delayed.gained(10)
        done = [delayed.ended.is_set()]
        end_step(asyncio.get_running_loop())
        return [*done, delayed.ended.is_set()]

    assert asyncio.run(main()) == [False, True]


def test_it_is_known_to_its_partitions_only_while_it_waits() -> None:
    async def main() -> list[int]:
        first, second = Place(), Place()
        delayed = WaitingFetch([first, second], 10)
        counts = [len(first.waiters) + len(second.waiters)]
        delayed.end()
        delayed.end()
        counts.append(len(first.waiters) + len(second.waiters))
        late = WaitingFetch([first], 10, 0.01)
        counts.append(len(first.waiters))
        await late.wait()
        return [*counts, len(first.waiters)]

    assert asyncio.run(main()) == [2, 0, 1, 0]


def test_cancelling_the_wait_leaves_nothing_behind() -> None:
    async def main() -> tuple[int, bool]:
        place = Place()
        delayed = WaitingFetch([place], 10, 0.01)
        delayed.cancel()
        delayed.gained(10)
        delayed.end()
        await asyncio.sleep(0.02)
        return len(place.waiters), delayed.ended.is_set()

    assert asyncio.run(main()) == (0, False)


async def test_a_timer_that_is_still_set_from_an_earlier_wait_goes_off_in_time() -> None:
    loop, timer = asyncio.get_running_loop(), WaitTimer()
    ends: list[str] = []
    second = asyncio.Event()
    timer.start(0.01, lambda: ends.append("of the wait that was stopped"))
    timer.stop()
    began = loop.time()
    timer.start(0.05, second.set)
    await asyncio.wait_for(second.wait(), 60)
    assert loop.time() - began >= 0.05
    timer.start(1000, lambda: ends.append("too late"))
    timer.stop()
    shorter = asyncio.Event()
    timer.start(0.01, shorter.set)
    await asyncio.wait_for(shorter.wait(), 60)
    assert not ends


async def test_a_wait_that_has_ended_leaves_the_timer_to_the_next_one() -> None:
    timer, place = WaitTimer(), Place()
    ends = [asyncio.Event(), asyncio.Event()]
    first = DelayedFetch([place], 10, 1000, ends[0].set, timer)
    first.end()
    DelayedFetch([place], 10, 0.01, ends[1].set, timer)
    first.cancel()
    first.end()
    await asyncio.wait_for(ends[1].wait(), 60)


async def test_a_fetch_with_a_timer_of_its_own_leaves_none_behind() -> None:
    delayed = WaitingFetch([Place()], 10, 1000)
    freed = weakref.ref(delayed)
    delayed.end()
    await delayed.wait()
    del delayed
    gc.collect()
    assert freed() is None
