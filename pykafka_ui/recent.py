"""Answers that are kept for some seconds, so that many pages that show the same ask for it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Asking(Generic[T]):
    """A value that a thread is making, for all who want it."""

    def __init__(self, era: int) -> None:
        self.done = threading.Event()
        self.era = era
        self.value: T | None = None
        self.error: Exception | None = None


class Recent(Generic[T]):
    """Values by key, made anew when older than `fresh_s`, each by one thread at a time.

    Whoever asks meanwhile gets what that thread gets, also its error. Errors are not kept. Thread-safe.
    """

    def __init__(self, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asking: dict[Hashable, _Asking[T]] = {}
        self._made: dict[Hashable, tuple[float, T]] = {}
        self._era = 0

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Raises what `make` raises."""
        with self._lock:
            now = self._clock()
            self._made = {one: made for one, made in self._made.items() if now - made[0] < self._fresh_s}
            if key in self._made:
                return self._made[key][1]
            asking = self._asking.get(key)
            is_mine = asking is None or asking.era != self._era
            if asking is None or is_mine:
                asking = self._asking[key] = _Asking(self._era)
        if is_mine:
            return self._make(key, asking, make)
        asking.done.wait()
        if asking.error is not None:
            raise asking.error
        return asking.value  # type: ignore[return-value]

    def forget(self) -> None:
        """Make all anew: something was changed. What is being made now is given to those who wait, and not kept."""
        with self._lock:
            self._made = {}
            self._era += 1

    def _make(self, key: Hashable, asking: _Asking[T], make: Callable[[], T]) -> T:
        try:
            value = asking.value = make()
        except Exception as error:
            asking.error = error
            raise
        else:
            with self._lock:
                if asking.era == self._era:
                    self._made[key] = self._clock(), value
            return value
        finally:
            with self._lock:
                if self._asking.get(key) is asking:
                    del self._asking[key]
            asking.done.set()
