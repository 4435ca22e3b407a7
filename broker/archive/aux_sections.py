"""Sections of `.aux` objects for readers: aborted transactions, and the marks that a manifest no longer has.

One instance serves all partitions of a broker. A section is read when somebody needs it, in the cache's threads, and
the sections used last are kept. One read may need several, and it finds all of them only if each stays until the last
one is there: so nothing goes that was asked for within `UNUSED_S`. Belongs to the event loop.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.archive.aux_file import ABORTED, FOOTER_SIZE, MARKS, decode_footer, parse_aborted, parse_marks
from broker.archive.chunk_cache import UNUSED_S, ChunkCache, RangeStore, StoreRead
from broker.archive.manifest import Mark
from broker.clock import Clock
from broker.metrics import TopicMetrics
from broker.records.aborted_entries import AbortedEntry

MOST_ROWS: Final = 100_000
"""Kept in memory, with those of the sections that are in use however many these are."""

Key = tuple[str, int]
"""The path of the object, and the number of the section."""


@dataclass(slots=True)
class _Section:
    rows: Sequence[Any]
    used_s: float


class AuxSections:
    """Rows of sections, found in memory. The methods raise StoreRead where they are not, and BrokerError
    `kafka_storage_error` where they could not be read a moment ago. `size` is that of the object, `metrics` are
    those of its topic."""

    def __init__(self, cache: ChunkCache, store: RangeStore, clock: Clock) -> None:
        self._cache = cache
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: OrderedDict[Key, _Section] = OrderedDict()
        self._rows = 0

    def aborted_since(self, path: str, size: int, offset: int, metrics: TopicMetrics) -> Iterator[AbortedEntry]:
        """The aborted transactions whose markers are in the segment, at `offset` or later; in the order of markers."""
        entries: Sequence[AbortedEntry] = self._section(path, size, ABORTED, parse_aborted, metrics)
        first = bisect_left(entries, offset, key=lambda entry: entry.last_offset)
        return iter(entries[first:])

    def marks(self, path: str, size: int, metrics: TopicMetrics) -> Sequence[Mark]:
        """All marks of the segment; none in an object that was made without them."""
        return self._section(path, size, MARKS, parse_marks, metrics)

    def _section(
        self, path: str, size: int, number: int, parse: Callable[[bytes], Sequence[Any]], metrics: TopicMetrics
    ) -> Sequence[Any]:
        key = path, number
        with self._lock:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                found.used_s = self._clock.monotonic()
                return found.rows
        raise StoreRead(self._cache.run(key, lambda: self._keep(key, parse(self._read(path, size, number))), metrics))

    def _read(self, path: str, size: int, number: int) -> bytes:
        footer = decode_footer(self._store.read_range(path, max(size - FOOTER_SIZE, 0), size))
        footer.check_size(size)
        start, end = footer.range_of(number)
        return footer.checked(number, self._store.read_range(path, start, end) if end > start else b"")

    def _keep(self, key: Key, rows: Sequence[Any]) -> None:
        now = self._clock.monotonic()
        with self._lock:
            self._known[key] = _Section(rows, now)
            self._rows += len(rows)
            while self._rows > MOST_ROWS and now - next(iter(self._known.values())).used_s > UNUSED_S:
                self._rows -= len(self._known.popitem(last=False)[1].rows)
