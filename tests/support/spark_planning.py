"""Spark's own rules for dividing offsets, written down anew from its reference: the other side of a differential test.

Plain and by the book: floats where Spark has doubles, dictionaries where it has maps. It knows none of our code, works
on tuples (partition, from, until), and says where its own answer hangs on the last bit of a double.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Span = tuple[int, int, int]
"""(partition, from, until)"""


@dataclass
class SplitBySpark:
    """What Spark's range calculator makes of spans with these two options.

    `doubtful`: a number of tasks was rounded from (nearly) a half, or cutting by records left pieces of one partition
    on both sides of the line between small and large, which Spark draws per partition.
    """

    min_partitions: int | None = None
    max_records: int | None = None
    doubtful: bool = False

    def split(self, spans: Sequence[Span]) -> list[Span]:
        pieces = [span for span in spans if span[2] > span[1]]
        if self.max_records is not None:
            pieces = [
                piece for span in pieces for piece in self._cut(span, math.ceil((span[2] - span[1]) / self.max_records))
            ]
        if self.min_partitions is None or len(pieces) >= self.min_partitions:
            return pieces
        return self._stretch(pieces, self.min_partitions)

    def _stretch(self, pieces: Sequence[Span], wanted: int) -> list[Span]:
        total = sum(until - start for _, start, until in pieces)
        small = [piece for piece in pieces if self._tasks(piece, total, wanted) == 1]
        names = {name for name, _, _ in small}
        self.doubtful |= any(piece[0] in names for piece in pieces if piece not in small)
        rest = total - sum(until - start for _, start, until in small)
        left = max(wanted - len(small), 1)
        result: list[Span] = []
        for piece in pieces:
            result += [piece] if piece[0] in names else self._cut(piece, self._tasks(piece, rest, left))
        return result

    def _tasks(self, piece: Span, total: int, wanted: int) -> int:
        """Java's Math.round, which takes halves up, and never less than one."""
        exact = (piece[2] - piece[1]) / total * wanted
        self.doubtful |= abs(exact - math.floor(exact) - 0.5) < 1e-6
        return max(math.floor(exact + 0.5), 1)

    @staticmethod
    def _cut(span: Span, tasks: int) -> list[Span]:
        """Each piece takes its even share of what is left, rounded down; the last ones get what rounding left over."""
        name, start, until = span
        pieces = []
        for done in range(tasks):
            end = min(start + (until - start) // (tasks - done), until)
            if end > start:
                pieces.append((name, start, end))
            start = end
        return pieces


def rate_limited(cap: int, start: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """Ends under maxOffsetsPerTrigger: shares in proportion to backlog, rounded down, but those below one up to one."""
    backlog = {name: end[name] - start[name] for name in end if end[name] > start[name]}
    total = float(sum(backlog.values()))
    limited = dict(end)
    for name, size in backlog.items():
        share = cap * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        limited[name] = min(end[name], start[name] + whole)
    return limited
