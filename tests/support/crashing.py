"""A process that dies, or is held up, at a chosen step: every change it makes to the outside world is counted.

    crash = CrashPoint(at=3, before=False)
    with contextlib.suppress(Crash):
        run(crash.guard(storage), crash.guard(log))

The wrapped object's changing calls count; the chosen one is carried out or not (`before`), then `Crash` is raised, and
from then on every call raises: a dead process does nothing more, whatever its except and finally blocks would like.
With `meanwhile` nobody dies: that function runs at the chosen step, as another process would.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

_SLOW = pytest.mark.slow
A_KILL = pytest.mark.parametrize("before", [pytest.param(True, marks=_SLOW), False], ids=["before", "after"])
"""For a test that dies at every step: what lies there before a step is what lies there after the one before it."""
A_RIVAL = pytest.mark.parametrize("before", [True, pytest.param(False, marks=_SLOW)], ids=["before", "after"])
"""For one with a rival at every step: the worst moment is between what the slow one has read and what it writes."""


class Crash(BaseException):
    """Not an Exception: no `except Exception` may survive it."""


class CrashPoint:
    """Dies at the `at`-th change (from 1), before or after it is made; `at=0` never dies and counts."""

    def __init__(self, at: int = 0, *, before: bool = True, meanwhile: Callable[[], None] | None = None) -> None:
        self._at = at
        self._before = before
        self._meanwhile = meanwhile
        self.steps: list[str] = []
        self._dead = False

    def guard(self, wrapped: T, changing: Collection[str]) -> T:
        """A stand-in for `wrapped` of which the methods named in `changing` count as steps."""
        return _Guarded(self, wrapped, changing)  # type: ignore[return-value]

    def around(self, name: str, change: Callable[[], Any]) -> Any:
        """Make a change, as one step."""
        self.check_alive()
        self.steps.append(name)
        chosen = len(self.steps) == self._at
        if chosen and self._before:
            self._happen(name)
        result = change()
        if chosen and not self._before:
            self._happen(name)
        return result

    def _happen(self, name: str) -> None:
        if self._meanwhile is not None:
            self._meanwhile()
            return
        self._dead = True
        raise Crash(name)

    def check_alive(self) -> None:
        if self._dead:
            raise Crash("dead")


class _Guarded:
    def __init__(self, crash: CrashPoint, wrapped: Any, changing: Collection[str]) -> None:
        self._crash = crash
        self._wrapped = wrapped
        self._changing = changing

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        if not callable(value):
            return value
        crash, counts = self._crash, name in self._changing

        @functools.wraps(value)
        def call(*arguments: Any, **named: Any) -> Any:
            if not counts:
                crash.check_alive()
                return value(*arguments, **named)
            return crash.around(f"{name} {arguments[0] if arguments else ''}", lambda: value(*arguments, **named))

        return call
