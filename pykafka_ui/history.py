"""Numbers over the last hour: a ring of points per name, in eight bytes each."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Mapping

__all__ = ["History"]

POINTS = 121
STEP_S = 30
"""One point per half minute: an hour."""


class History:
    """Series of numbers that share their times. Names that are not recorded any more are forgotten after an hour."""

    def __init__(self) -> None:
        self._times = array("d")
        self._series: dict[tuple[str, str], array[float]] = {}

    def is_due(self, now_s: float) -> bool:
        return not self._times or now_s - self._times[-1] >= STEP_S

    def record(self, now_s: float, values: Mapping[tuple[str, str], float]) -> None:
        """Add a point to each series; one that has no value gets a gap."""
        self._times.append(now_s)
        for key in values.keys() - self._series.keys():
            self._series[key] = array("d", [math.nan] * (len(self._times) - 1))
        for key, series in self._series.items():
            series.append(values.get(key, math.nan))
        if len(self._times) > POINTS:
            del self._times[0]
            for series in self._series.values():
                del series[0]
        for key in [key for key, series in self._series.items() if all(map(math.isnan, series))]:
            del self._series[key]

    def values(self, kind: str, name: str = "") -> list[tuple[float, float | None]]:
        """(Unix seconds, value) by time; None is a gap."""
        series = self._series.get((kind, name), ())
        return [(at, None if math.isnan(value) else value) for at, value in zip(self._times, series, strict=False)]

    def rate(self, kind: str, name: str = "") -> list[tuple[float, float | None]]:
        """The growth of a counter per second. A gap where it fell: a topic was deleted and made again."""
        points = self.values(kind, name)
        steps = itertools.pairwise(points)
        return [(now, _per_second(before, earlier, now, value)) for (earlier, before), (now, value) in steps]

    def last_rate(self, kind: str, name: str = "") -> float:
        """The growth per second between the last two points; 0 if there is none."""
        found = self.rate(kind, name)
        return (found[-1][1] or 0.0) if found else 0.0


def _per_second(before: float | None, earlier: float, now: float, value: float | None) -> float | None:
    if before is None or value is None or value < before or now <= earlier:
        return None
    return (value - before) / (now - earlier)
