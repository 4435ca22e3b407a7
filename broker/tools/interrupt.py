"""Lets a command run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import time


class Interrupt:
    """Takes SIGINT and SIGTERM from now on; they no longer end the process.

    The handler sets a plain attribute: a `threading.Event` has a lock, and the handler may interrupt who holds it.
    """

    def __init__(self) -> None:
        self._came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def came_within(self, seconds: float) -> bool:
        """Wait, unless a signal has come already; whether one has."""
        if not self._came:
            time.sleep(seconds)
        return self._came

    def _take(self, *_: object) -> None:
        self._came = True
