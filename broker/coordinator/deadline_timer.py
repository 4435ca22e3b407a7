"""Many deadlines on one event-loop timer.

Used by the shards of both coordinators. It sleeps until the earliest deadline and never polls. Belongs to the running
event loop.

A broker that did not run for a while (its machine or its disk stood still) finds deadlines that passed meanwhile, and
the heartbeats that would have moved them still in its sockets. So when the timer wakes late, these are read first.
Otherwise a stall of the broker would cost every member its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Final

from broker.clock import Clock

_LATE_S: Final = 0.1
_GRACE_S: Final = 0.5
_MOST_GRACES: Final = 10
"""In a row; a broker that is always late must end sessions, too."""


class DeadlineTimer:
    """Calls back at monotonic times of `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        # Breaks ties, so that callbacks are never compared.
        self._order = count()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_for = 0.0
        self._graces = 0
        self._closed = False

    def at(self, deadline: float, callback: Callable[[], None]) -> None:
        """Call `callback` once at `deadline` (s) or a little later. It cannot be cancelled."""
        if self._closed:
            return
        heappush(self._heap, (deadline, next(self._order), callback))
        self._arm()

    def run_due(self) -> None:
        """Call every callback whose deadline has passed."""
        now = self._clock.monotonic()
        try:
            while self._heap and self._heap[0][0] <= now:
                heappop(self._heap)[2]()
        finally:
            self._arm()  # a callback that fails must not stop the others

    def close(self) -> None:
        """Drop all callbacks, and any that come later."""
        self._closed = True
        self._heap.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        if not self._heap or (self._graces and self._handle is not None):
            return  # a heartbeat that is read in the grace must not end it
        earliest = self._heap[0][0]
        if self._handle is not None:
            if self._armed_for <= earliest:
                return
            self._handle.cancel()
        self._armed_for = earliest
        delay = max(earliest - self._clock.monotonic(), 0.0)
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock.monotonic()
        if now - self._armed_for <= _LATE_S or self._graces == _MOST_GRACES:
            self._graces = 0
            self.run_due()
        else:
            self._graces += 1
            self._armed_for = now + _GRACE_S
            self._handle = asyncio.get_running_loop().call_later(_GRACE_S, self._fire)
