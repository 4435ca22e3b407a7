"""Spark's queries as they report themselves (`spark_connector.progress.console_reports`): the newest report of each.

They are kept in memory only, and only so many. A query that is silent may wait for data, or be dead: nobody knows.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Annotated

from pydantic import BaseModel, Field

MOST_QUERIES, _POINTS = 200, 120
SILENT_S, _FORGOTTEN_S = 300.0, 86_400.0

_Name = Annotated[str, Field(max_length=200)]
_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Rate = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class StreamReport(BaseModel):
    """What a query tells after a batch, or with `ended` when a run has ended. null is what it does not know."""

    id: _Name
    """It survives restarts; `run_id` does not."""
    run_id: _Name
    name: _Name | None = None
    batch_id: _Count | None = None
    duration_ms: _Count | None = None
    input_rows_per_second: _Rate | None = None
    processed_rows_per_second: _Rate | None = None
    lag: _Count | None = None
    ended: bool = False


@dataclasses.dataclass(frozen=True)
class Stream:
    """A query. `at_s`: when it reported last (monotonic). `restarts`: since the console began."""

    report: StreamReport
    at_s: float
    restarts: int
    lags: tuple[int | None, ...]

    @property
    def label(self) -> str:
        return self.report.name or self.report.id

    def state(self, now_s: float) -> tuple[str, str]:
        """(ok, warn or unknown; in words)."""
        if self.report.ended:
            return "warn", "ended"
        return ("ok", "reports") if now_s - self.at_s <= SILENT_S else ("unknown", "silent")


class Streams:
    """Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, Stream] = {}
        """By the id of the query, the one that reported last at the end."""

    def reported(self, report: StreamReport) -> None:
        with self._lock:
            before = self._known.get(report.id)
            if report.ended and before is not None:
                if before.report.run_id != report.run_id:
                    return  # the query runs again already
                report = before.report.model_copy(update={"ended": True})
            self._known.pop(report.id, None)
            restarts = before.restarts + (before.report.run_id != report.run_id) if before else 0
            lags = deque(before.lags if before else (), maxlen=_POINTS)
            if not report.ended:
                lags.append(report.lag)
            self._known[report.id] = Stream(report, self._clock(), restarts, tuple(lags))
            while len(self._known) > MOST_QUERIES:
                self._known.pop(next(iter(self._known)))

    def seen(self) -> list[tuple[Stream, tuple[str, str], float]]:
        """(query, its state, seconds since its report) of each that reported within a day, by name."""
        with self._lock:
            now = self._clock()
            found = [one for one in self._known.values() if now - one.at_s <= _FORGOTTEN_S]
        return [(one, one.state(now), now - one.at_s) for one in sorted(found, key=lambda one: one.label)]
