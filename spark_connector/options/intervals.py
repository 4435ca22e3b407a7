"""Whole numbers as people write sets of them: `0,2-5`, both ends included, `100-` from there on, `-99` up to there.

Used by the options `filterPartitions` and `filterOffsets`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from broker.errors import ConfigError

__all__ = ["Intervals", "parse_intervals"]

_PART = re.compile(r"(?P<only>\d{1,18})|(?P<first>\d{1,18})?\s*-\s*(?P<last>\d{1,18})?", re.ASCII)
_NO_END = 2**63 - 1


@dataclass(frozen=True)
class Intervals:
    """`parts`: (first, one behind the last), in order, not touching each other."""

    parts: tuple[tuple[int, int], ...]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number < end for first, end in self.parts)

    def cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """What lies in [start, end), in order, none of it empty."""
        cuts = ((max(start, first), min(end, behind)) for first, behind in self.parts)
        return [(first, behind) for first, behind in cuts if first < behind]


def parse_intervals(option: str, text: object, example: str) -> Intervals:
    """Raises ConfigError that names the option, what was given and an example."""
    parts: list[tuple[int, int]] = []
    for piece in text.split(",") if isinstance(text, str) else [None]:
        match = None if piece is None else _PART.fullmatch(piece.strip())
        if match is None or piece is None or not any(match.groups()):
            raise ConfigError(f"Option '{option}': Expected e.g. {example}, got {text}")
        first = int(match["only"] or match["first"] or 0)
        last = int(match["only"] or match["last"] or _NO_END - 1)
        if first > last:
            raise ConfigError(f"Option '{option}': {piece.strip()} runs backwards, in {text}")
        parts.append((first, last + 1))
    merged: list[tuple[int, int]] = []
    for first, end in sorted(parts):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return Intervals(tuple(merged))
