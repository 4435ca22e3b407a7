"""Sections of `.aux` objects for readers: aborted transactions, and the marks that a manifest no longer has.

One instance serves all partitions of a broker. A section is read when somebody needs it, in the cache's threads, and
the sections used last are kept. Belongs to the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from broker.archive.aux_file import ABORTED, FOOTER_SIZE, MARKS, decode_footer, parse_aborted, parse_marks
from broker.archive.chunk_cache import ChunkCache, RangeStore, StoreRead
from broker.archive.manifest import Mark
from broker.records.aborted_entries import AbortedEntry

MOST_ROWS: Final = 100_000
"""Kept in memory; those of one section are kept however many there are."""

Key = tuple[str, int]
"""The path of the object, and the number of the section."""


class AuxSections:
    """Rows of sections, found in memory. The methods raise StoreRead where they are not, and BrokerError
    `kafka_storage_error` where they could not be read a moment ago. `size` is that of the object."""

    def __init__(self, cache: ChunkCache, store: RangeStore) -> None:
        self._cache = cache
        self._store = store
        self._known: OrderedDict[Key, Sequence[Any]] = OrderedDict()
        self._rows = 0

    def aborted_since(self, path: str, size: int, offset: int) -> Iterator[AbortedEntry]:
        """The aborted transactions whose markers are in the segment, at `offset` or later; in the order of markers."""
        entries: Sequence[AbortedEntry] = self._section(path, size, ABORTED, parse_aborted)
        first = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
        return iter(entries[first:])

    def marks(self, path: str, size: int) -> Sequence[Mark]:
        """All marks of the segment; none in an object that was made without them."""
        return self._section(path, size, MARKS, parse_marks)

    def _section(self, path: str, size: int, number: int, parse: Callable[[bytes], Sequence[Any]]) -> Sequence[Any]:
        key = path, number
        rows = self._known.get(key)
        if rows is None:
            raise StoreRead(self._cache.run(key, lambda: self._keep(key, parse(self._read(path, size, number)))))
        self._known.move_to_end(key)
        return rows

    def _read(self, path: str, size: int, number: int) -> bytes:
        footer = decode_footer(self._store.read_range(path, max(size - FOOTER_SIZE, 0), size))
        start, end = footer.range_of(number)
        return footer.checked(number, self._store.read_range(path, start, end) if end > start else b"")

    def _keep(self, key: Key, rows: Sequence[Any]) -> None:
        self._known[key] = rows
        self._rows += len(rows)
        while self._rows > MOST_ROWS and len(self._known) > 1:
            self._rows -= len(self._known.popitem(last=False)[1])
