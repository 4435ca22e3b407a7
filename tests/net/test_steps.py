"""What is put off to the end of a step: it is done there, whatever else fails."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.net.steps import after_step, begin_step, end_step


def test_it_is_done_at_the_end_of_the_step_and_without_one_in_the_next_turn() -> None:
    async def main() -> list[list[str]]:
        loop, done, seen = asyncio.get_running_loop(), list[str](), list[list[str]]()
        begin_step()
        after_step(lambda: done.append("first"), loop)
        after_step(lambda: after_step(lambda: done.append("put off at the end"), loop), loop)
        seen.append([*done])
        end_step(loop)
        after_step(lambda: done.append("without a step"), loop)
        seen.append([*done])
        await asyncio.sleep(0)
        return [*seen, done]

    assert asyncio.run(main()) == [[], ["first"], ["first", "put off at the end", "without a step"]]


def test_an_error_is_reported_and_the_others_are_done() -> None:
    async def main() -> tuple[list[str], list[Any]]:
        loop, done, errors = asyncio.get_running_loop(), list[str](), list[Any]()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        begin_step()
        after_step(lambda: done.remove("nothing"), loop)
        after_step(lambda: done.append("second"), loop)
        end_step(loop)
        return done, errors

    done, errors = asyncio.run(main())
    assert done == ["second"]
    assert [type(error) for error in errors] == [ValueError]


def test_a_step_within_a_step_loses_nothing() -> None:
    async def main() -> list[str]:
        loop, done = asyncio.get_running_loop(), list[str]()
        begin_step()
        after_step(lambda: done.append("outer"), loop)
        begin_step()
        after_step(lambda: done.append("inner"), loop)
        end_step(loop)
        after_step(lambda: done.append("late"), loop)
        end_step(loop)
        await asyncio.sleep(0)
        return done

    assert asyncio.run(main()) == ["outer", "inner", "late"]
