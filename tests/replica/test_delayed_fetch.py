"""A fetch that waits: what ends it, and that nothing is missed or left behind."""

from __future__ import annotations

import asyncio

from broker.replica.delayed_fetch import DelayedFetch, Waiter


class Place:
    """Something to wait for."""

    def __init__(self) -> None:
        self.waiters: set[Waiter] = set()


def test_bytes_gained_before_the_first_step_of_the_waiting_task_count() -> None:
    async def main() -> None:
        delayed = DelayedFetch([Place()], 10, 60)
        waiting = asyncio.ensure_future(delayed.wait())
        delayed.gained(10)  # the task has not run yet
        await asyncio.wait_for(waiting, 5)

    asyncio.run(main())


def test_bytes_of_several_appends_add_up() -> None:
    async def main() -> list[bool]:
        delayed = DelayedFetch([Place()], 10, 60)
        waiting = asyncio.ensure_future(delayed.wait())
        done = []
        for size in (4, 5, 1):
            delayed.gained(size)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            done.append(waiting.done())
        return done

    assert asyncio.run(main()) == [False, False, True]


def test_it_is_known_to_its_partitions_only_while_it_waits() -> None:
    async def main() -> list[int]:
        first, second = Place(), Place()
        delayed = DelayedFetch([first, second], 10, 60)
        counts = [len(first.waiters) + len(second.waiters)]
        delayed.end()
        delayed.end()
        counts.append(len(first.waiters) + len(second.waiters))
        DelayedFetch([first], 10, 0.01)  # nobody ever awaits this one
        counts.append(len(first.waiters))
        await asyncio.sleep(0.05)
        return [*counts, len(first.waiters)]

    assert asyncio.run(main()) == [2, 0, 1, 0]


def test_cancelling_the_wait_leaves_nothing_behind() -> None:
    async def main() -> int:
        place = Place()
        waiting = asyncio.ensure_future(DelayedFetch([place], 10, 60).wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        return len(place.waiters)

    assert asyncio.run(main()) == 0
