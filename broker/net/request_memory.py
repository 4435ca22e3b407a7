"""How much memory the requests of all connections may take together (`queued.max.request.bytes`).

One for all listeners. A frame that is received takes its memory piece by piece as its bytes come; what waits to be
handled, or is being handled by a handler that waits, is held, and so is an answer that its client does not take. When
the limit is reached, frames under way get no more until something is released, first come first served; one of them is
favoured and goes on, so that there is always an end to it. So the bound is the limit and one request. Idea: Kafka's
`SimpleMemoryPool`, which takes a whole request's size when its first four bytes are there; here eight bytes from a
stranger reserve next to nothing.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["RequestMemory", "Taker"]


class Taker(Protocol):
    """Who receives a frame."""

    def granted(self, size: int) -> None:
        """The memory that was asked for is there now."""


class RequestMemory:
    """Counts bytes; nothing is allocated here. A `limit` below 0 is none."""

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: dict[Taker, int] = {}
        self._favoured: Taker | None = None

    @property
    def waiting(self) -> int:
        """Frames that are not read on until there is memory."""
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return 0 <= self.limit <= self.used

    def take(self, taker: Taker, size: int) -> bool:
        """Take `size` bytes for a frame under way; if False, `taker.granted` is called once they are there."""
        if self._fits(size) or taker is self._favoured:
            self.used += size
            return True
        if self._favoured is None:
            self._favoured = taker
            self.used += size
            return True
        self._waiting[taker] = size
        return False

    def finished(self, taker: Taker, size: int) -> None:
        """The frame is whole, or will never be: give back the `size` bytes it had taken."""
        self._waiting.pop(taker, None)
        if taker is self._favoured:
            self._favoured = None
        self.release(size)

    def hold(self, size: int) -> None:
        """Count a request that waits; it has its memory already."""
        self.used += size

    def release(self, size: int) -> None:
        """Give back; who waits and now fits goes on."""
        self.used -= size
        while self._waiting:
            taker, wanted = next(iter(self._waiting.items()))
            if not self._fits(wanted):
                if self._favoured is not None:
                    return
                self._favoured = taker
            del self._waiting[taker]
            self.used += wanted
            taker.granted(wanted)

    def _fits(self, size: int) -> bool:
        return self.limit < 0 or self.used + size <= self.limit
