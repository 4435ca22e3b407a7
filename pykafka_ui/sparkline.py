"""The line of a sparkline, as the path of an SVG: made here, so that a list of a hundred of them needs no script.

Pure. templates/macros.html draws it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby

WIDTH, HEIGHT = 96, 20
"""Of the drawing, in its own units."""
_MARGIN = 2
MOST_POINTS = 48
"""More are too narrow to be seen: of those that share a place the highest is drawn."""


def known(points: Sequence[float | None]) -> list[float]:
    """Without gaps, in which a number that is none (NaN, infinite) counts."""
    return [one for one in points if one is not None and math.isfinite(one)]


def sparkline_path(points: Sequence[float | None]) -> str:
    """From 0 at the bottom to the highest point at the top; a gap stays one; "" where nothing is known.

    One point between two gaps is a dot: a line without length, which the round ends of its stroke make visible.
    """
    shown = list(_thinned(points))
    highest = max(known(shown), default=None)
    if highest is None:
        return ""
    step = WIDTH / max(len(shown) - 1, 1)
    scale = highest if highest > 0 else 1.0
    parts = []
    for is_known, run in groupby(enumerate(shown), lambda at: at[1] is not None):
        if is_known:
            line = [f"{at * step:.1f} {_height(max(value or 0.0, 0.0) / scale):.1f}" for at, value in run]
            parts.append("M" + "L".join(line if len(line) > 1 else line * 2))
    return "".join(parts)


def _height(share: float) -> float:
    return HEIGHT - _MARGIN - share * (HEIGHT - 2 * _MARGIN)


def _thinned(points: Sequence[float | None]) -> Iterator[float | None]:
    width = max(math.ceil(len(points) / MOST_POINTS), 1)
    for at in range(0, len(points), width):
        yield max(known(points[at : at + width]), default=None)
