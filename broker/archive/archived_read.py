"""The archived part of one partition's log: the records that its manifest names, read through the chunk cache.

`ArchivedPartition` is what a Log has as `archived`. The owner of the partition gives it each new manifest. It belongs
to the event loop, like the log, and never waits (A9). Where the store must be asked first it raises StoreRead, which
has begun to ask. A segment is read in chunks that are cut where its marks stand. Of a segment that a truncation has
cut, what lies behind its end does not count.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Final, TypeVar

from broker.archive.aux_sections import AuxSections
from broker.archive.chunk_cache import CachedChunk, ChunkCache, ChunkFile, RangeStore, StoreRead
from broker.archive.chunk_index import Chunk
from broker.archive.layout import PartitionPlace
from broker.archive.manifest import SNAPSHOT_MARK_BYTES, ArchivedSegment, Manifest
from broker.clock import Clock
from broker.errors import BrokerError, CorruptBatch
from broker.log.aborted_index import AbortedTransaction
from broker.log.segment_file import ColdRead, FileSlice, SegmentFile, boundary_before, find_batch, scan_headers
from broker.log.timestamps import record_times
from broker.metrics import TopicMetrics

T = TypeVar("T")

CHUNK_BYTES: Final = 4 << 20
"""Marks closer than that are joined to one chunk."""
MOST_CHUNK: Final = 256 << 20
"""Bytes that marks may ask for at once. They are a MiB and a batch apart, and no broker takes a batch of half of it."""
MOST_BYTES: Final = 2 * SNAPSHOT_MARK_BYTES
"""No chunk is larger. The next mark may be far away where a truncation has cut off the segment."""
READ_AHEAD: Final = 2
"""Chunks that are fetched behind the one in which a reader is past the middle."""
_KNOWN_SEGMENTS = 8


class ArchiveReader:
    def __init__(self, storage: RangeStore, directory: Path, *, max_bytes: int, threads: int, clock: Clock) -> None:
        """`directory` is archive.cache.dir, which is emptied. `storage` is the archive's root. Raises ConfigError."""
        self.cache = ChunkCache(directory, storage, max_bytes=max_bytes, threads=threads, clock=clock)
        self._sections = AuxSections(self.cache, storage, clock)

    def partition(
        self, place: PartitionPlace, manifest: Manifest, metrics: TopicMetrics | None = None
    ) -> ArchivedPartition:
        """For `Log.archived`; give it each new manifest. `metrics` are those of its topic."""
        return ArchivedPartition(place, manifest, self.cache, self._sections, metrics or TopicMetrics())

    def close(self) -> None:
        self.cache.close()


class ArchivedPartition:
    """Implements `ArchivedLog`."""

    def __init__(
        self,
        place: PartitionPlace,
        manifest: Manifest,
        cache: ChunkCache,
        sections: AuxSections,
        metrics: TopicMetrics,
    ) -> None:
        """Made by `ArchiveReader.partition`."""
        self._place = place
        self._metrics = metrics
        self._cache = cache
        self._sections = sections
        self.manifest = manifest
        """As it was last read; the owner replaces it."""
        self._chunks: OrderedDict[tuple[str, int], Sequence[Chunk]] = OrderedDict()
        """Of the segments that were read last."""

    @property
    def start(self) -> int | None:
        return self.manifest.start if self.manifest.segments else None

    @property
    def end(self) -> int:
        return self.manifest.end if self.manifest.segments else 0

    @property
    def last(self) -> int:
        return self.manifest.last

    @property
    def size(self) -> int:
        return self.manifest.size

    @property
    def segments(self) -> Sequence[ArchivedSegment]:
        return self.manifest.segments

    # --- records

    def read(self, offset: int, max_bytes: int, up_to: int) -> FileSlice | None:
        for chunk in self._chunks_from(offset, up_to):
            cached, found = self._in(chunk, lambda cached, file: _slice(cached, file, offset, max_bytes, up_to))
            if found is not None:
                self._note_progress(cached, found)
                return found
        return None

    def _in(self, chunk: Chunk, look: Callable[[CachedChunk, SegmentFile], T]) -> tuple[CachedChunk, T]:
        """What `look` finds in a chunk. What was checked, and is not on this disk as it was, is downloaded again."""
        cached, error = self._cache.find(chunk), None
        if cached is not None:
            try:
                file = cached.open()
                if file is not None:
                    return cached, look(cached, file)
            except (OSError, CorruptBatch) as damage:
                error = OSError(f"a file of archive.cache.dir cannot be read: {damage}")
            self._cache.drop(cached, error)
            self._cache.find(chunk)  # which raises the error, if there was one
        raise StoreRead(self._cache.fetch(chunk, self._metrics))

    def _note_progress(self, cached: CachedChunk, found: FileSlice) -> None:
        end = found.position + found.length
        if end >= cached.index.end:
            self._cache.finish(cached)
        if 2 * end > cached.index.end:
            ahead = self._chunks_from(cached.chunk.end_offset, self.manifest.end)
            with suppress(ColdRead, BrokerError):  # marks of the next segment that are not known yet
                for chunk in islice(ahead, READ_AHEAD):
                    self._cache.fetch_ahead(chunk, self._metrics)

    # --- transactions

    def aborted_in(self, offset: int, found: FileSlice, up_to: int) -> list[AbortedTransaction]:
        if isinstance(found.file, ChunkFile):
            cached = found.file.cached
            past = cached.index.offset_after(found.position + found.length)
            up_to = min(up_to, cached.chunk.end_offset if past is None else past)
        segments = self.manifest.segments_between(offset, up_to)
        if not any(segment.transactional for segment in segments):
            return []
        aborted: list[AbortedTransaction] = []
        for segment in self.manifest.segments_between(offset, self.manifest.end):
            if not segment.aborted:
                continue
            aux = self._place.aux(segment.name)
            for entry in self._sections.aborted_since(aux, segment.aux_size, offset, self._metrics):
                if entry.last_offset >= segment.end:
                    break  # a truncation has cut off the marker
                if entry.first_offset < up_to:
                    aborted.append(AbortedTransaction(*entry[:2]))
                if entry.last_stable_offset >= up_to:
                    return aborted  # later ones began at or after `up_to`
        return aborted

    # --- times

    def offset_for_timestamp(self, ms: int, start: int, up_to: int) -> tuple[int, int] | None:
        for segment in self.manifest.segments_between(start, up_to):
            if segment.max_timestamp < ms:
                continue
            for chunk in self._chunks_from(max(start, self._first_since(segment, ms)), min(up_to, segment.end)):
                _, found = self._in(chunk, partial(_first_since, ms=ms, start=start, up_to=up_to))
                if found is not None:
                    return found
        return None

    def _first_since(self, segment: ArchivedSegment, ms: int) -> int:
        """An offset of the segment before which every record is older than `ms`."""
        following = bisect_right(segment.marks, ms - 1, key=lambda mark: mark.max_timestamp)
        return segment.marks[max(following - 1, 0)].offset

    def max_timestamp(self, start: int, up_to: int) -> tuple[int, int] | None:
        latest = max((segment.max_timestamp for segment in self.manifest.segments_between(start, up_to)), default=-1)
        while latest >= 0:
            found = self.offset_for_timestamp(latest, start, up_to)
            if found is not None:
                return found
            latest = self._newest_below(latest, start, up_to)  # its record lies outside the range
        return None

    def _newest_below(self, ms: int, start: int, up_to: int) -> int:
        """At least the newest timestamp below `ms` in [start, up_to), and below `ms`; -1 for none."""
        newest = -1
        for segment in self.manifest.segments_between(start, up_to):
            if newest < segment.max_timestamp < ms:
                newest = segment.max_timestamp
            elif segment.max_timestamp >= ms:
                for chunk in self._chunks_from(max(start, segment.base), min(up_to, segment.end)):
                    newest = max(newest, self._in(chunk, partial(_newest_below, ms=ms, start=start))[1])
        return newest

    # --- chunks

    def _chunks_from(self, offset: int, up_to: int) -> Iterator[Chunk]:
        """The chunks with records in [offset, up_to), in order."""
        for segment in self.manifest.segments_between(offset, up_to):
            chunks = self._chunks_of(segment)
            first = bisect_right(chunks, offset, key=lambda chunk: chunk.first_offset) - 1
            for chunk in chunks[max(first, 0) :]:
                if chunk.first_offset >= up_to:
                    return
                yield chunk

    def _chunks_of(self, segment: ArchivedSegment) -> Sequence[Chunk]:
        key = segment.name, segment.end
        chunks = self._chunks.get(key)
        if chunks is None:
            chunks = cut_chunks(self._place.segment(segment.name), self._with_all_marks(segment))
            self._chunks[key] = chunks
            if len(self._chunks) > _KNOWN_SEGMENTS:
                self._chunks.popitem(last=False)
        return chunks

    def _with_all_marks(self, segment: ArchivedSegment) -> ArchivedSegment:
        """A snapshot of the manifest has only some of the marks, and the `.aux` all."""
        bounds = [*(mark.position for mark in segment.marks), segment.size]
        if max(after - position for position, after in pairwise(bounds)) <= CHUNK_BYTES:
            return segment
        marks = self._sections.marks(self._place.aux(segment.name), segment.aux_size, self._metrics)
        kept = tuple(mark for mark in marks if mark.offset < segment.end)
        fits = kept and kept[0][:2] == (segment.base, 0) and kept[-1].position < segment.size
        return replace(segment, marks=kept) if fits else segment


def cut_chunks(path: str, segment: ArchivedSegment) -> Sequence[Chunk]:
    """The chunks of a segment, whose object is at `path`: cut at marks, about CHUNK_BYTES each."""
    bounds = [(mark.offset, mark.position) for mark in segment.marks]
    bounds.append((segment.end, segment.size))
    chunks: list[Chunk] = []
    first = 0
    for last in range(1, len(bounds)):
        is_end = last == len(bounds) - 1
        if is_end or bounds[last + 1][1] - bounds[first][1] > CHUNK_BYTES:
            (begin, position), (end, after) = bounds[first], bounds[last]
            length = min(after - position, MOST_BYTES) if is_end else after - position
            if length > MOST_CHUNK:
                raise CorruptBatch(f"{path}: its marks ask for {length} bytes at once, more than {MOST_CHUNK}")
            chunks.append(Chunk(path, position, length, begin, end, segment.epochs))
            first = last
    return chunks


def _slice(cached: CachedChunk, file: SegmentFile, offset: int, max_bytes: int, up_to: int) -> FileSlice | None:
    """Whole batches of a chunk, as `Log.read` gives them."""
    index = cached.index
    found = find_batch(file, index.position_of(offset), index.end, offset)
    if found is None:
        return None
    (start, first_size), end = found, index.end
    if start + max_bytes < end:
        limit = start + max_bytes
        end = max(start + first_size, boundary_before(file, index.batch_before(limit), end, limit))
    if up_to < cached.chunk.end_offset:
        beyond = find_batch(file, index.position_of(up_to), index.end, up_to)
        end = end if beyond is None else min(end, beyond[0])
    return FileSlice(file, start, end - start) if end > start else None


def _first_since(cached: CachedChunk, file: SegmentFile, *, ms: int, start: int, up_to: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record of a chunk in [start, up_to) that is at least as new as `ms`."""
    position = cached.index.position_for_timestamp(ms)
    if position is None:
        return None
    position = max(position, cached.index.position_of(start))
    for at, header in scan_headers(file, position, cached.index.end):
        if header.max_timestamp >= ms and header.last_offset >= start:
            for offset, time in record_times(file, at, header):
                if time >= ms and start <= offset < up_to:
                    return offset, time
    return None


def _newest_below(cached: CachedChunk, file: SegmentFile, *, ms: int, start: int) -> int:
    """At least the newest timestamp below `ms` of a chunk's records from `start` on; -1 for none."""
    newest = cached.index.newest[-1]
    if newest < ms:
        return newest
    headers = scan_headers(file, cached.index.position_of(start), cached.index.end)
    return max((one.max_timestamp for _, one in headers if one.max_timestamp < ms), default=-1)
