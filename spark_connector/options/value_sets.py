"""Sets of values that pass a filter: `Intervals` of numbers (partitions, offsets, timestamps), `KeySet` of keys.

read_filters.py and where.py make them of what users write, and put conditions together by `&`. An empty set lets
nothing pass. planning.py and offset_reader.py cut the ranges to read by them, row_filter.py makes masks of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from broker.errors import ConfigError

LOWEST, NO_END = -(2**63), 2**63
"""Stand for no bound: every number of a record is at least LOWEST and below NO_END."""

_PART = re.compile(r"(?P<only>\d{1,18})|(?P<first>\d{1,18})?\s*-\s*(?P<last>\d{1,18})?", re.ASCII)
_SQL_BYTES = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")


@dataclass(frozen=True)
class Intervals:
    """Sets of integers as users write them: `0,2-5`, both ends included; `100-` has no end, `-99` begins at 0.

    `parts`: half-open ranges (first, last + 1), sorted and disjoint.
    """

    parts: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[int, int]]) -> Intervals:
        """The numbers of any of these half-open ranges, which may overlap and be empty."""
        merged: list[tuple[int, int]] = []
        for first, end in sorted(parts):
            first, end = max(first, LOWEST), min(end, NO_END)
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif first < end:
                merged.append((first, end))
        return cls(tuple(merged))

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and any(first <= number < end for first, end in self.parts)

    def __and__(self, other: Intervals) -> Intervals:
        return Intervals.of(part for first, end in other.parts for part in self.cut(first, end))

    def cut(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are in the set, as non-empty half-open ranges in order."""
        cuts = ((max(start, first), min(end, until)) for first, until in self.parts)
        return [(first, until) for first, until in cuts if first < until]

    @property
    def bounds(self) -> tuple[int, int]:
        """The half-open range of which this is a part; (0, 0) of an empty set."""
        return (self.parts[0][0], self.parts[-1][1]) if self.parts else (0, 0)


@dataclass(frozen=True)
class KeySet:
    """Keys that are `any` of these (None: whichever), begin with `prefix`, and are not in `without`. Never null."""

    any: frozenset[bytes] | None = None
    prefix: bytes = b""
    without: frozenset[bytes] = frozenset()

    def __contains__(self, key: object) -> bool:
        return (
            isinstance(key, bytes)
            and (self.any is None or key in self.any)
            and key.startswith(self.prefix)
            and key not in self.without
        )

    def __and__(self, other: KeySet) -> KeySet:
        shorter, longer = sorted((self.prefix, other.prefix), key=len)
        if not longer.startswith(shorter):
            return KeySet(frozenset())
        both = KeySet(self.any, longer, self.without | other.without)
        if other.any is not None:
            both = replace(both, any=other.any if both.any is None else both.any & other.any)
        return both if both.any is None else KeySet(frozenset(key for key in both.any if key in both))


@dataclass(frozen=True)
class Where:
    """What passes; None where no term speaks of the column. Timestamps in ms.

    `partition_terms`: the terms about partitions, for a stream's checkpoint.
    """

    partitions: Intervals | None = None
    offsets: Intervals | None = None
    timestamps: Intervals | None = None
    keys: KeySet | None = None
    partition_terms: str = ""


def parse_intervals(option: str, text: object, example: str) -> Intervals:
    """Raises ConfigError, which names the option, the value given and an example."""
    parts: list[tuple[int, int]] = []
    for piece in text.split(",") if isinstance(text, str) else [None]:
        match = None if piece is None else _PART.fullmatch(piece.strip())
        if match is None or piece is None or not any(match.groups()):
            raise ConfigError(f"Option '{option}': Expected e.g. {example}, got {text}")
        first = int(match["only"] or match["first"] or 0)
        last = match["only"] or match["last"]
        if last is not None and first > int(last):
            raise ConfigError(f"Option '{option}': {piece.strip()} runs backwards, in {text}")
        parts.append((first, NO_END if last is None else int(last) + 1))
    return Intervals.of(parts)


def parse_bytes(text: str) -> bytes:
    """UTF-8, or bytes as SQL writes them: X'cafe'."""
    match = _SQL_BYTES.fullmatch(text)
    return bytes.fromhex(match[1]) if match else text.encode()
