"""The thread on which all callbacks of one ZooKeeper client run, in the order the events came.

kazoo calls state listeners on its network thread, where a blocking call would dead-lock. So client.py only posts
here, and a callback may itself make ZooKeeper calls. A callback that raises is logged and does not stop others.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

__all__ = ["EventThread"]

log = logging.getLogger(__name__)


class EventThread:
    """One daemon thread that runs what is posted to it, one after the other."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def post(self, event: Callable[[], None]) -> None:
        """Run `event` after what was posted before it; dropped once the thread is stopped."""
        self._queue.put(event)

    def stop(self, timeout: float) -> None:
        """Drop what waits and let the running callback finish, for at most `timeout` seconds. Idempotent."""
        self._stopped.set()
        self._queue.put(None)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _run(self) -> None:
        while (event := self._queue.get()) is not None and not self._stopped.is_set():
            try:
                event()
            except Exception:
                if not self._stopped.is_set():
                    log.exception("a ZooKeeper callback failed")
