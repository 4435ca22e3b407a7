"""The aborted transactions that archived segments name, read from their `.aux` objects and kept for a while.

One instance serves all partitions of a broker. Only segments that have an abort marker are asked for, and only by
readers of committed records. Belongs to the event loop; the objects are read in the cache's threads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from broker.archive.chunk_cache import ChunkCache, StoreRead
from broker.log.aborted_index import AbortedEntry

MOST_ENTRIES: Final = 100_000
"""Kept in memory, of all segments; those of one segment are kept however many there are."""

ReadEntries = Callable[[str], Sequence[AbortedEntry]]
"""The entries of an `.aux` object, in the order of their markers. Blocks. Raises as a store or its decoder does."""


class AbortedEntries:
    """The entries by the path of their object; those used last are kept."""

    def __init__(self, cache: ChunkCache, read: ReadEntries) -> None:
        self._cache = cache
        self._read = read
        self._known: OrderedDict[str, Sequence[AbortedEntry]] = OrderedDict()
        self._count = 0

    def since(self, path: str, offset: int) -> Iterator[AbortedEntry]:
        """The entries of an object whose markers are at `offset` or later. Raises StoreRead, BrokerError."""
        entries = self._known.get(path)
        if entries is None:
            raise StoreRead(self._cache.run((path, 0), lambda: self._keep(path, self._read(path))))
        self._known.move_to_end(path)
        first = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
        return iter(entries[first:])

    def _keep(self, path: str, entries: Sequence[AbortedEntry]) -> None:
        self._known[path] = entries
        self._count += len(entries)
        while self._count > MOST_ENTRIES and len(self._known) > 1:
            self._count -= len(self._known.popitem(last=False)[1])
