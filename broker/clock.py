"""Time as a value that is handed in.

The broker takes a `Clock`, so that retention, time-outs and expiry are tested by turning a
`ManualClock` forward. Wall time is milliseconds since the epoch (what records carry), monotonic
time is seconds (what waits are measured in).
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """Where a component asks for the time."""

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is told to advance."""

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
