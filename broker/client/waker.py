"""Ends a selector's wait from another thread.

Made by producer.py: the sender thread waits with it in its selector, the accumulator and `Producer.close` call `wake`.
"""

from __future__ import annotations

import contextlib
import socket

__all__ = ["Waker"]


class Waker:
    """Ends the wait of a selector from another thread."""

    def __init__(self) -> None:
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._signalled = False

    def fileno(self) -> int:
        return self._inner.fileno()

    def wake(self) -> None:
        """Cheap when the wait is to end anyway."""
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(OSError):
                self._outer.send(b"\0")

    def clear(self) -> None:
        """Called by the thread that waited, before it looks for what there is to do.

        In this order: a signal that comes in between is left out, but what it was about is seen when looking. The
        other way round its byte would be swallowed, the mark stay, and no later signal would be sent.
        """
        with contextlib.suppress(OSError):
            self._inner.recv(64)
        self._signalled = False

    def close(self) -> None:
        self._inner.close()
        self._outer.close()
