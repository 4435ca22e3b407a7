"""Waiting for a condition instead of for time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 60.0
"""How long to wait for what must come: much longer than it takes on a busy machine."""


def eventually(condition: Callable[[], bool], timeout: float = PATIENCE_S, interval: float = 0.02) -> None:
    """Return once `condition()` is true; fail with AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{condition} did not come true within {timeout} s")
        time.sleep(interval)
