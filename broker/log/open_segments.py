"""A bound on what a broker keeps open: the files and mapped indexes of all segments together.

One instance per LogManager, shared by its logs. The least recently used segment is told to release its
file and indexes; it opens them again when it is next used, which costs some 50 µs. So thousands of partitions, or a
backlog of any length, cost neither descriptors nor mappings beyond the limit.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["DESCRIPTORS_PER_SEGMENT", "OpenSegments"]

DESCRIPTORS_PER_SEGMENT = 3
"""The log, and one for each mapped index: Python keeps a descriptor with a mapping."""


class Releasable(Protocol):
    """A segment, as seen from here."""

    def release(self) -> None:
        """Write what is unsaved and drop file and indexes."""
        ...


class OpenSegments:
    """Segments that hold descriptors, least recently used first. Not thread-safe."""

    def __init__(self, limit: int = 256) -> None:
        """At most `limit` segments."""
        self._limit = limit
        self._open: OrderedDict[Releasable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: Releasable) -> None:
        """Note that an open segment was used."""
        self._open.move_to_end(segment)

    def add(self, segment: Releasable) -> None:
        """Note that a segment was opened; releases others when there are too many."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        while len(self._open) > max(self._limit, 1):
            self._open.popitem(last=False)[0].release()

    def discard(self, segment: Releasable) -> None:
        """Note that a segment let go of its file by itself."""
        self._open.pop(segment, None)
