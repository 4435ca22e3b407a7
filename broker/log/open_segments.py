"""A bound on what a broker keeps open: descriptors and loaded indexes of all segments together.

One instance per LogManager, shared by its logs. The least recently used segment is told to release its
file and indexes; it opens them again when it is next used. So thousands of partitions, or a backlog of
any length, cost neither descriptors nor memory beyond the limits.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

__all__ = ["OpenSegments"]


class Releasable(Protocol):
    """A segment, as seen from here."""

    def release(self) -> None:
        """Write what is unsaved and drop file and indexes."""
        ...

    def index_bytes(self) -> int:
        """Memory the loaded indexes take, bytes."""
        ...


class OpenSegments:
    """Segments that hold a descriptor, least recently used first. Not thread-safe."""

    def __init__(self, limit: int = 256, index_bytes_limit: int = 32 << 20) -> None:
        """At most `limit` descriptors and about `index_bytes_limit` bytes of indexes."""
        self._limit = limit
        self._index_bytes_limit = index_bytes_limit
        self._open: OrderedDict[Releasable, int] = OrderedDict()  # with the index bytes counted for each
        self._index_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: Releasable) -> None:
        """Note that an open segment was used."""
        self._open.move_to_end(segment)

    def add(self, segment: Releasable) -> None:
        """Note that a segment was opened, or that its indexes have grown; releases others when there are too many."""
        size = segment.index_bytes()
        self._index_bytes += size - self._open.get(segment, 0)
        self._open[segment] = size
        self._open.move_to_end(segment)
        while len(self._open) > 1 and (len(self._open) > self._limit or self._index_bytes > self._index_bytes_limit):
            oldest, counted = self._open.popitem(last=False)
            self._index_bytes -= counted
            oldest.release()

    def discard(self, segment: Releasable) -> None:
        """Note that a segment let go of its file by itself."""
        self._index_bytes -= self._open.pop(segment, 0)
