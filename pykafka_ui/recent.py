"""Answers that are kept for some seconds, so that many pages that show the same ask for it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

T = TypeVar("T")


class Recent(Generic[T]):
    """Values by key, made anew when older than `fresh_s`, each by one thread at a time. Errors are not kept."""

    def __init__(self, fresh_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fresh_s = fresh_s
        self._clock = clock
        self._lock = threading.Lock()
        self._making: dict[Hashable, threading.Lock] = {}
        self._made: dict[Hashable, tuple[float, T]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            kept = self._made.get(key)
            if kept is not None and self._clock() - kept[0] < self._fresh_s:
                return kept[1]
            value = make()
            with self._lock:
                now = self._clock()
                self._made = {one: made for one, made in self._made.items() if now - made[0] < self._fresh_s}
                self._made[key] = now, value
                self._making = {one: lock for one, lock in self._making.items() if one in self._made or lock.locked()}
            return value

    def forget(self) -> None:
        """Make all anew: something was changed."""
        with self._lock:
            self._made = {}
