"""Ends the wait of a selector from another thread: the accumulator and `Producer.close` wake the sender with it."""

from __future__ import annotations

import contextlib
import socket


class Waker:
    """A socket pair to register with the selector. `wake` makes it readable."""

    def __init__(self) -> None:
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._signalled = False

    def fileno(self) -> int:
        return self._inner.fileno()

    def wake(self) -> None:
        """Costs nothing if it was woken before and has not been cleared yet."""
        if not self._signalled:
            self._signalled = True
            with contextlib.suppress(OSError):
                self._outer.send(b"\0")

    def clear(self) -> None:
        """Called by the thread that waited, before it looks for work.

        The order matters. If `wake` is called between the two lines, it sends no byte, but the thread finds the work
        afterwards. In the other order the byte could be read while `_signalled` stays set: no later `wake` would work.
        """
        with contextlib.suppress(OSError):
            self._inner.recv(64)
        self._signalled = False

    def close(self) -> None:
        self._inner.close()
        self._outer.close()
