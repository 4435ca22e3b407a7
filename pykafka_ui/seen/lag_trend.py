"""Whether a group falls behind, and how fast it reads, from the points of its last minutes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pykafka_ui.seen.history import STEP_S, Point

RECENT_S = 300.0
"""What is said of now is of these last seconds."""
RECENT_POINTS = int(RECENT_S / STEP_S) + 1
"""That many at most."""
_FEWEST = 6
"""Points. With fewer a group that commits seldom would seem to fall behind between two commits, as each load does."""


def is_growing(lags: Sequence[Point]) -> bool | None:
    """Whether a lag grows: all of its later half lies above all of its earlier half. None while too little is known.

    So one that commits once a minute, whose lag is a saw, does not grow.
    """
    known = [value for _, value in recent(lags) if value is not None]
    if len(known) < _FEWEST or lags[-1][1] is None:
        return None
    half = len(known) // 2
    return min(known[-half:]) > max(known[:half])


def per_second(positions: Sequence[Point]) -> float | None:
    """How fast a position moves on. None while two points are not known, or if it was set back meanwhile."""
    known = [(at, value) for at, value in recent(positions) if value is not None]
    if len(known) < 2 or any(after[1] < before[1] for before, after in pairwise(known)):
        return None
    return (known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])


def recent(points: Sequence[Point]) -> list[Point]:
    """Those of the last minutes before the newest."""
    return [point for point in points if points[-1][0] - point[0] <= RECENT_S]
