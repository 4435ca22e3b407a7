"""Work on a log with a step in it that blocks on the disk: whoever goes through the work says where that step runs.

A generator that gives the step away, to be gone on with in the owner's thread when it has ended, with its error if it
failed. log.py writes appends so; `at_once` runs all of it here, replica/append_queue.py the step in another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

__all__ = ["Steps", "at_once"]

T = TypeVar("T")

Steps: TypeAlias = Generator[Callable[[], None], None, T]


def at_once(steps: Steps[T]) -> T:
    """Run work in this thread; gives, or raises, what it does."""
    try:
        step = next(steps)
        while True:
            try:
                step()
            except Exception as error:
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result
