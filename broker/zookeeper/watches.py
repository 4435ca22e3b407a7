"""Standing watches: ZooKeeper's own fire once and die with the connection, these go on until cancelled.

Used by client.py only. Everything happens on the client's event thread: a watch that has fired is read again, which
arms it again in the same step, so that no change falls between; after a reconnection every watch is. Without a
connection nothing is read: the reconnection will do it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from broker.zookeeper.event_thread import EventThread

__all__ = ["Watch", "Watches"]

_PAUSE_S = 0.05  # before a read that failed on a living connection is tried again


class Watch:
    """A standing watch on one path; `cancel()` ends it."""

    def __init__(self, path: str, read: Callable[[Watch], Callable[[], None]]) -> None:
        """`read` arms the watch, reads the node, and returns the call that tells what it has read."""
        self.path = path
        self.read = read
        self.cancelled = False
        self.fired: Callable[[Any], None]  # given to kazoo, which keeps each only once

    def cancel(self) -> None:
        """No callback begins after this; one may be under way if this is not the event thread."""
        self.cancelled = True


class Watches:
    """The watches of one client. `connected` tells whether a server answers; `lost` are the errors of a read whose
    connection broke."""

    def __init__(self, events: EventThread, connected: Callable[[], bool], lost: tuple[type[Exception], ...]) -> None:
        self._events = events
        self._connected = connected
        self._lost = lost
        self._watches: set[Watch] = set()

    def add(self, watch: Watch) -> Watch:
        """Begin to watch: the first callback comes soon."""

        def fired(event: Any) -> None:
            if event.type != "NONE":  # which only says that the connection broke
                self._events.post(partial(self._refresh, watch))

        watch.fired = fired
        self._watches.add(watch)
        self._events.post(partial(self._refresh, watch))
        return watch

    def refresh_all(self) -> None:
        """After a reconnection; each on its own, so that a callback that fails does not stop the others."""
        for watch in tuple(self._watches):
            self._events.post(partial(self._refresh, watch))

    def _refresh(self, watch: Watch) -> None:
        if watch.cancelled:
            self._watches.discard(watch)
            return
        if not self._connected():
            return
        try:
            notify = watch.read(watch)
        except self._lost:
            time.sleep(_PAUSE_S)
            self._events.post(partial(self._refresh, watch))
            return
        if not watch.cancelled:
            notify()
