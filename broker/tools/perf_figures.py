"""Latencies and rates of a measured run. Called by perf.py; counted in the sender's thread, read when all is done."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import Any, Final

from broker.client.producer import RecordFuture

__all__ = ["Deliveries", "megabytes", "rounded"]

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)
_MOST_SAMPLES: Final = 500_000
"""As in Kafka's tool: of more records every n-th is measured."""


class Deliveries:
    """How long records took from `send` to their acknowledgement, in ms, and why one was not delivered."""

    def __init__(self, records: int) -> None:
        self.sampling = max(1, math.ceil(records / _MOST_SAMPLES))
        self.failure: Exception | None = None
        self._latencies: list[float] = []
        self._lock = threading.Lock()

    def callback(self) -> partial[None]:
        """For the `on_delivery` of a record that is sent now."""
        return partial(self._delivered, time.perf_counter())

    def figures(self) -> dict[str, float]:
        """Average, greatest and percentiles; empty when nothing was delivered."""
        with self._lock:
            ordered = sorted(self._latencies)
        if not ordered:
            return {}
        named = {f"p{percentile:g}": percentile for percentile in PERCENTILES}
        return {
            "average": sum(ordered) / len(ordered),
            **{name: ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)] for name, p in named.items()},
            "max": ordered[-1],
        }

    def _delivered(self, sent: float, future: RecordFuture) -> None:
        took_ms = (time.perf_counter() - sent) * 1000
        error = future.exception()
        with self._lock:
            if error is None:
                self._latencies.append(took_ms)
            elif self.failure is None:
                self.failure = error


def megabytes(size: float) -> float:
    """Kafka's tools mean 2^20 bytes."""
    return size / (1 << 20)


def rounded(figures: dict[str, Any]) -> dict[str, Any]:
    """For JSON: no more digits than mean something."""
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
