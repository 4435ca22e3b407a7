"""The clock that the broker's parts are given, so that tests of retention and timeouts advance a `ManualClock`.

Wall time is in milliseconds since the epoch, as in records. Monotonic time, for waits, is in seconds.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Monotonic time, seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only by `advance` and `set_wall`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, ms: int) -> None:
        """Move both clocks forward by `ms` milliseconds."""
        self._now_ms += ms
        self._monotonic += ms / 1000

    def set_wall(self, now_ms: int) -> None:
        """Set the wall clock alone, as an administrator or a time service does."""
        self._now_ms = now_ms
