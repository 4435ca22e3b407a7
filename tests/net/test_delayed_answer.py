"""A delayed answer: who gets it, when, and what a connection does with it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from broker.net.delayed_answer import DelayedAnswer


def outcome(answer: DelayedAnswer[Any]) -> list[tuple[Any, Exception | None]]:
    seen: list[tuple[Any, Exception | None]] = []
    answer.receive(lambda value, error: seen.append((value, error)))
    return seen


def test_the_receiver_has_it_in_the_same_step_and_once() -> None:
    answer: DelayedAnswer[int] = DelayedAnswer()
    seen = outcome(answer)
    answer.complete(1)
    assert seen == [(1, None)]
    answer.complete(2)
    answer.fail(ValueError())
    answer.cancel()
    assert seen == [(1, None)]


def test_a_receiver_that_comes_later_has_it_too() -> None:
    answer: DelayedAnswer[int] = DelayedAnswer()
    error = ValueError()
    answer.fail(error)
    assert outcome(answer) == [(None, error)]


def test_nobody_has_it_after_a_cancel() -> None:
    cancelled: list[bool] = []
    answer: DelayedAnswer[int] = DelayedAnswer(lambda: cancelled.append(True))
    seen = outcome(answer.then(str).then(str))
    answer.cancel()
    answer.cancel()
    answer.complete(1)
    assert (seen, cancelled, answer.is_over) == ([], [True], True)


def test_a_conversion_passes_errors_on_and_cancels_what_it_converts() -> None:
    answer: DelayedAnswer[int] = DelayedAnswer()
    seen = outcome(answer.then(lambda value: value + 1).then(str))
    answer.complete(1)
    assert seen == [("2", None)]
    divided: DelayedAnswer[int] = DelayedAnswer()
    seen = outcome(divided.then(lambda value: 1 // value).then(str))
    divided.complete(0)
    assert isinstance(seen[0][1], ZeroDivisionError)
    cancelled: list[bool] = []
    DelayedAnswer[int](lambda: cancelled.append(True)).then(str).then(str).cancel()
    assert cancelled == [True]


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_it_is_freed_at_its_end_without_the_garbage_collector(end: str) -> None:
    class Owner:
        def __init__(self) -> None:
            self.answer: DelayedAnswer[int] = DelayedAnswer(self.cancel)

        def cancel(self) -> None:
            pass

    owner = Owner()
    answer, freed = owner.answer, weakref.ref(owner)
    converted = answer.then(str)
    converted.receive(lambda value, error: None)
    gc.disable()
    try:
        answer.complete(1) if end == "complete" else converted.cancel()
        del owner, answer, converted
        assert freed() is None
    finally:
        gc.enable()


async def test_it_can_be_awaited() -> None:
    answer: DelayedAnswer[int] = DelayedAnswer()
    asyncio.get_running_loop().call_soon(answer.complete, 5)
    assert await answer == 5
    failing: DelayedAnswer[int] = DelayedAnswer()
    failing.fail(ValueError("why"))
    with pytest.raises(ValueError, match="why"):
        await failing
    cancelled = asyncio.Event()
    waiting: DelayedAnswer[int] = DelayedAnswer(cancelled.set)
    task = asyncio.ensure_future(_value(waiting))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert cancelled.is_set()


async def _value(answer: DelayedAnswer[int]) -> int:
    return await answer
