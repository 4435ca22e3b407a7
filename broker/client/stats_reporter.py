"""Calls the application's `on_stats` every `statistics.interval.ms`.

Asked by the sender thread in each of its turns, and by the thread that polls a consumer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from broker.client.client_stats import ClientStats

__all__ = ["OnStats", "StatsReporter"]

logger = logging.getLogger(__name__)

OnStats = Callable[[ClientStats], object]


class StatsReporter:
    """`due_at` (monotonic seconds) is infinity when nobody wants to know."""

    def __init__(self, on_stats: OnStats | None, interval_ms: int, now: float) -> None:
        self._on_stats = on_stats
        self._interval_s = interval_ms / 1000
        self.due_at = now + self._interval_s if on_stats is not None and interval_ms else math.inf

    def report(self, now: float, stats: Callable[[], ClientStats]) -> None:
        """Call it if it is time. What it raises is logged: statistics must not stop the traffic."""
        if now < self.due_at or self._on_stats is None:
            return
        self.due_at = now + self._interval_s
        try:
            self._on_stats(stats())
        except Exception:
            logger.exception("the on_stats callback failed")
