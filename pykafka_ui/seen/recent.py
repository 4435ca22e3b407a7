"""Answers that are kept for some seconds, so that many pages that show the same ask for it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")

A_MOMENT_S = 0.3
_MOST_KEPT = 100


class Recent(Generic[T]):
    """Values by key, made anew when older than `fresh_s`, each by one thread at a time.

    Whoever asks meanwhile gets what that thread gets, also its error. Errors are not kept. Thread-safe.
    """

    def __init__(self, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[Hashable, Future[T]] = {}
        self._made: dict[Hashable, tuple[float, Future[T]]] = {}
        self._before: dict[Hashable, T] = {}
        """The last values of `soon`, however old."""

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Raises what `make` raises."""
        asking, is_first = self._asked(key)
        if is_first:
            self._make(key, asking, make)
        return asking.result()

    def soon(self, key: Hashable, make: Callable[[], T], moment_s: float = A_MOMENT_S) -> T:
        """The same; but where that takes longer than a moment, and there is an older value, it is that one. `make` goes
        on, in a thread, and its value comes next time."""
        asking, is_first = self._asked(key)
        if is_first:
            threading.Thread(target=self._make, args=(key, asking, make), name="ui-recent", daemon=True).start()
        with self._lock:
            is_known = key in self._before
        done, _ = wait([asking], moment_s if is_known else None)
        with self._lock:
            if not done and key in self._before:
                return self._before[key]
        found = asking.result()
        with self._lock:
            if key in self._made and self._made[key][1] is asking:  # else something was changed
                self._before.pop(key, None)
                self._before[key] = found
                while len(self._before) > _MOST_KEPT:
                    self._before.pop(next(iter(self._before)))
        return found

    def forget(self) -> None:
        """Make all anew: something was changed. What is being made now is given to those who wait, and not kept."""
        with self._lock:
            self._made, self._asking, self._before = {}, {}, {}

    def _asked(self, key: Hashable) -> tuple[Future[T], bool]:
        """What is made, or is to be, and whether it is the caller who has to make it."""
        with self._lock:
            now = self._clock()
            self._made = {one: made for one, made in self._made.items() if now - made[0] < self._fresh_s}
            if key in self._made:
                return self._made[key][1], False
            is_first = key not in self._asking
            return self._asking.setdefault(key, Future()), is_first

    def _make(self, key: Hashable, asking: Future[T], make: Callable[[], T]) -> None:
        """Those who wait get it when it is kept: who asks then gets the same."""
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                if self._asking.get(key) is asking:
                    del self._asking[key]
            asking.set_exception(error)
            return
        with self._lock:
            if self._asking.get(key) is asking:
                del self._asking[key]
                self._made[key] = self._clock(), asking
        asking.set_result(value)
