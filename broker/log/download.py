"""Something that an archive's store is asked for, and those who wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

Waiter = Callable[[], object]


class Download:
    """Ends once, whether or not it succeeds: who repeats the read finds what there is, or gets the error.

    Unlike a future it lets a waiter go again: one that waits for many downloads leaves when the first has ended. Safe
    to use from any thread.
    """

    __slots__ = ("_ended", "_lock", "_waiters")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._waiters: set[Waiter] = set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def end(self) -> None:
        """Call all waiters, in this thread."""
        with self._lock:
            self._ended.set()
            waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            waiter()

    def watch(self, waiter: Waiter) -> None:
        """Call `waiter` at the end, in the thread that ends it; at once if it has ended."""
        with self._lock:
            if not self._ended.is_set():
                self._waiters.add(waiter)
                return
        waiter()

    def unwatch(self, waiter: Waiter) -> None:
        with self._lock:
            self._waiters.discard(waiter)

    def wait(self, seconds: float | None = None) -> bool:
        """Block until it has ended; whether it has."""
        return self._ended.wait(seconds)
