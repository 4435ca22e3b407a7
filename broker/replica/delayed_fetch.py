"""A fetch that waits until enough bytes can be read or its time is up (Kafka's DelayedFetch in the purgatory).

Made by api/fetch. Nothing polls: the partition notifies its waiting fetches, and a timer ends the wait. A consumer's
fetch counts bytes below the high watermark, a follower's all that are appended.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Protocol

from broker.net.steps import after_step


class Waiter(Protocol):
    """Waits for changes of a partition: a delayed fetch, or a partition of a fetch session."""

    @property
    def committed(self) -> bool:
        """Whether only bytes below the last stable offset count."""
        ...

    @property
    def replica(self) -> bool:
        """Whether all bytes of the log count, as for a follower."""
        ...

    def gained(self, size: int) -> None:
        """The partition has changed; `size` more bytes can be read, perhaps none."""
        ...

    def end(self) -> None:
        """This broker stops leading the partition."""
        ...


class Watched(Protocol):
    """A partition, which notifies `waiters` of every change."""

    waiters: set[Waiter]


class WaitTimer:
    """A timer for waits that follow each other and mostly end early, as those of a follower.

    It stays set when a wait ends. When it goes off too early for the next wait, it is set again.
    """

    def __init__(self) -> None:
        self._deadline = math.inf
        self._expire: Callable[[], None] | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, expire: Callable[[], None]) -> None:
        """Call `expire` after so many seconds, unless `stop` is called."""
        loop = asyncio.get_running_loop()
        self._deadline = loop.time() + seconds
        if self._handle is not None and self._handle.when() > self._deadline:
            self.close()
        self._expire = expire
        if self._handle is None:
            self._handle = loop.call_at(self._deadline, self._go_off)

    def stop(self) -> None:
        self._expire = None

    def close(self) -> None:
        """Stop, and do not stay set."""
        self._expire = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _go_off(self) -> None:
        self._handle = None
        if self._expire is not None:
            loop, expire = asyncio.get_running_loop(), self._expire
            if loop.time() < self._deadline:
                self._handle = loop.call_at(self._deadline, self._go_off)
            else:
                self._expire = None
                expire()


class DelayedFetch:
    """Waits until its partitions gained `missing_bytes`, one of them changed its leader, or `seconds` are over.

    Counts from its creation, so that no append is missed. Then it calls `on_end` once, at the end of the step: a
    request may append to several of the partitions.
    """

    def __init__(
        self,
        partitions: Iterable[Watched],
        missing_bytes: int,
        seconds: float,
        on_end: Callable[[], None],
        timer: WaitTimer | None = None,
        *,
        committed: bool = False,
        replica: bool = False,
        eager: bool = False,
    ) -> None:
        """`timer`: of earlier waits. `eager`: any change of a partition ends the wait, also one that adds no bytes."""
        self.committed = committed
        self.replica = replica
        self._eager = eager
        self._partitions = tuple(partitions)
        self._missing = missing_bytes
        self._on_end: Callable[[], None] | None = on_end
        self._loop = asyncio.get_running_loop()
        self._timer = timer or WaitTimer()
        self._end_timer = self._timer.close if timer is None else self._timer.stop
        self._timer.start(seconds, self.end)
        for partition in self._partitions:
            partition.waiters.add(self)

    def gained(self, size: int) -> None:
        """Count `size` more bytes that can be read."""
        self._missing -= size
        if self._missing <= 0 or self._eager:
            self.end()

    def end(self) -> None:
        """End the wait. Idempotent."""
        if self._on_end is not None:
            after_step(self._on_end, self._loop)
            self.cancel()

    def cancel(self) -> None:
        """End the wait without calling `on_end`. Idempotent."""
        if self._on_end is None:
            return  # the timer may be that of a later wait by now
        self._on_end = None
        self._end_timer()
        for partition in self._partitions:
            partition.waiters.discard(self)
