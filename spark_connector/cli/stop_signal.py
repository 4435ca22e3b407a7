"""SIGTERM and SIGINT as an event that threads can wait for.

Used by the service `pykafka load --watch`. The first signal asks for a graceful end; the second one ends the process at
once, which is safe because a load can be killed at any moment. The handlers do nothing: a handler that takes a lock
could find it held by the thread that it interrupts. Python writes the number of each signal to a socket instead, and a
thread reads it there.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignal:
    """`event` is set by the first signal. A context manager, for the main thread.

    `overdue` is called, in another thread, every `grace` seconds from then on until the block is left.
    """

    def __init__(self, overdue: Callable[[], None] = lambda: None, grace: float = 20.0) -> None:
        self.event = threading.Event()
        self._overdue = overdue
        self._grace = grace
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._fd_before = -1
        self._thread = threading.Thread(target=self._listen, name="pykafka-signals", daemon=True)

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in _SIGNALS}
        self._fd_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self.install()
        self._thread.start()
        return self

    def install(self) -> None:
        """Install the handlers again after a library has replaced them, as PySpark does for SIGINT."""
        for number in _SIGNALS:
            signal.signal(number, _ignore)

    def __exit__(self, *_error: object) -> None:
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _listen(self) -> None:
        while True:
            self._reader.settimeout(self._grace if self.event.is_set() else None)
            try:
                numbers = self._reader.recv(16)
            except TimeoutError:
                self._overdue()
                continue
            if not numbers:
                return
            for number in numbers:
                if number in _SIGNALS:
                    if self.event.is_set():
                        os._exit(128 + number)
                    self.event.set()


def _ignore(number: int, frame: FrameType | None) -> None:
    """Without a handler the signal would end the process."""
