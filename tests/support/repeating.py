"""Does something again and again while a test goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_S = 0.02


@contextmanager
def repeated(act: Callable[[], object]) -> Iterator[None]:
    """`act` every few milliseconds, from another thread. What it raises is raised at the end."""
    over = threading.Event()
    raised: list[BaseException] = []

    def go_on() -> None:
        try:
            while not over.wait(EVERY_S):
                act()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if raised:
        raise raised[0]
