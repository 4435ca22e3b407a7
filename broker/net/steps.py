"""Work that waits until the request being handled is done, but not for another turn of the event loop.

A connection handles what it has received in one step. What others put off meanwhile is done at the end of the step: a
turn more would cost each replicated record some 40 µs, since it asks the kernel for events first.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class _Step(threading.local):
    due: list[Callable[[], None]] | None = None
    """What was put off; None while no step is under way."""


_step = _Step()


def after_step(call: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
    """Call it at the end of the step that is under way, otherwise in the next turn of the event loop."""
    if _step.due is None:
        loop.call_soon(call)
    else:
        _step.due.append(call)


def begin_step() -> None:
    """Begin a step, which `end_step` ends. Steps do not contain each other."""
    _step.due = []


def end_step(loop: asyncio.AbstractEventLoop) -> None:
    """Do what was put off. An error of it goes where `loop` reports errors."""
    due, _step.due = _step.due, None
    for call in due or ():
        try:
            call()
        except Exception as error:
            loop.call_exception_handler({"message": f"{call} failed at the end of a step", "exception": error})
