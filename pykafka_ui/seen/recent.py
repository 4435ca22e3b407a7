"""Answers that are kept for some seconds, so that many pages that show the same ask for it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, made anew when older than `fresh_s`, each by one thread at a time.

    Whoever asks meanwhile gets what that thread gets, also its error. Errors are not kept. Thread-safe.
    """

    def __init__(self, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[Hashable, Future[T]] = {}
        self._made: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Raises what `make` raises."""
        with self._lock:
            now = self._clock()
            self._made = {one: made for one, made in self._made.items() if now - made[0] < self._fresh_s}
            if key in self._made:
                return self._made[key][1]
            asked = self._asking.get(key)
            asking: Future[T] = asked or self._asking.setdefault(key, Future())
        if asked is not None:
            return asked.result()
        try:
            asking.set_result(make())
        except BaseException as error:
            asking.set_exception(error)
        with self._lock:
            if self._asking.get(key) is asking:
                del self._asking[key]
                if asking.exception() is None:
                    self._made[key] = self._clock(), asking.result()
        return asking.result()

    def forget(self) -> None:
        """Make all anew: something was changed. What is being made now is given to those who wait, and not kept."""
        with self._lock:
            self._made = {}
            self._asking = {}
