"""A delayed answer: who gets it, when, and what a connection does with it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from broker.net.delayed_answer import DelayedAnswer
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_response
from tests.support.listening import answer_with, closed_by_peer, read_frame, request, serving


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


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


async def test_a_connection_answers_in_order_when_a_request_has_to_wait() -> None:
    delayed: list[DelayedAnswer[Any]] = []

    def handle(request: Request, client: Client) -> Any:
        if request.correlation_id % 5:
            return answer_with("at once")
        delayed.append(DelayedAnswer())
        asyncio.get_running_loop().call_soon(delayed[-1].complete, answer_with("later"))
        return delayed[-1]

    async with serving(handle) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"".join(request(number) for number in range(1, 40)))
        frames = [await read_frame(reader) for _ in range(39)]
        assert [decode_response(ApiKey.METADATA, 4, frame)[0] for frame in frames] == list(range(1, 40))
        assert listeners.memory.used == 0
        writer.close()


async def test_a_client_that_leaves_cancels_it_and_its_memory_is_released() -> None:
    delayed: list[DelayedAnswer[Any]] = []
    cancelled: list[bool] = []

    def handle(request: Request, client: Client) -> Any:
        delayed.append(DelayedAnswer(lambda: cancelled.append(True)))
        return delayed[-1]

    async with serving(handle) as (host, port, listeners):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(request(1) + request(2))
        await until(lambda: bool(delayed) and listeners.memory.used > 0)
        writer.close()
        await until(lambda: bool(cancelled))
        await until(lambda: listeners.memory.used == 0)
        delayed[0].complete(answer_with("nobody"))
    assert len(delayed) == 1


async def test_an_answer_that_fails_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    delayed: list[DelayedAnswer[Any]] = []

    def handle(request: Request, client: Client) -> Any:
        delayed.append(DelayedAnswer())
        return delayed[-1]

    async with serving(handle) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1) + request(2))
        await until(lambda: bool(delayed))
        delayed[0].fail(ZeroDivisionError("why"))  # does not raise here: another request may have ended the wait
        assert await closed_by_peer(reader)
        await until(lambda: listeners.memory.used == 0)
        writer.close()
    assert "why" in caplog.text
    assert len(delayed) == 1, "what was queued behind it is not handled"
