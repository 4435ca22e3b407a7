"""The segments of a log, ordered by base offset: which one holds an offset, and reading across them.

Owned by log.py, which adds and removes; never empty, the last is the active one. Idea: Kafka's `LogSegments`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from broker.log.segment import Segment
from broker.log.segment_file import FileSlice

__all__ = ["SegmentList"]


class SegmentList:
    """Not thread-safe; `tuple(segments)` is a snapshot that another thread may walk."""

    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in self._segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def oldest(self) -> Segment:
        return self._segments[0]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    def append(self, segment: Segment) -> None:
        """`segment` is the active one from now on."""
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def older_than(self, offset: int) -> int:
        """How many segments lie wholly before `offset`."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def remove_oldest(self, count: int) -> list[Segment]:
        gone = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        return gone

    def remove_after(self, offset: int) -> list[Segment]:
        """Take away the segments that begin after `offset`."""
        keep = max(bisect_right(self._bases, offset), 1)
        gone = self._segments[keep:]
        del self._segments[keep:], self._bases[keep:]
        return gone

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Put `new` in the place of `old`, a run of segments that begins at the same offset."""
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def offset_after(self, offset: int, found: FileSlice) -> int | None:
        """An offset past all of `found`, which was just read from `offset` on; None when only the log's end is."""
        number = max(bisect_right(self._bases, offset) - 1, 0)
        if not self._segments[number].holds(found):
            return None
        past = self._segments[number].offset_after(found)
        return self._bases[number + 1] if past is None and number + 1 < len(self._bases) else past

    def read(self, offset: int, max_bytes: int, up_to: int, end: int) -> FileSlice | None:
        """Whole batches of one segment, from the one that holds `offset`, all below `up_to`; `end` is the log's.

        Raises OSError.
        """
        bases = self._bases
        number = len(bases) - 1
        if offset < bases[number]:
            number = bisect_right(bases, offset) - 1
        while number < len(bases):
            segment_end = bases[number + 1] if number + 1 < len(bases) else end
            found = self._segments[number].read(offset, max_bytes, up_to if up_to < segment_end else None)
            if found is not None or up_to <= segment_end:
                return found
            number += 1  # compaction took the last records of the segment
        return None
