"""One file of record batches and its two indexes.

Called by log.py, recovery.py and timestamps.py. Offsets in a segment only grow; reads never see bytes
past `size`; what a failed write left behind is cut off at once. File and indexes are opened when first
used and released under the limits of `OpenSegments`. Not thread-safe, except `sync`.
Idea: Kafka's `LogSegment`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from broker.errors import CorruptBatch
from broker.log.index import OffsetIndex, TimeIndex
from broker.log.open_segments import OpenSegments
from broker.log.scan import boundary_before, find_batch, glance, scan_headers
from broker.log.segment_file import FileSlice, SegmentFile, waiting
from broker.log.segment_indexes import SegmentIndexes
from broker.records.batch import BatchHeader

__all__ = ["ABORTED_SUFFIX", "DELETED_SUFFIX", "MAX_RELATIVE_OFFSET", "Segment", "SegmentReader", "segment_path"]

logger = logging.getLogger(__name__)

DELETED_SUFFIX = ".deleted"
ABORTED_SUFFIX = ".txnindex"
MAX_RELATIVE_OFFSET = 2**31 - 1

_SUFFIXES = (".log", ".index", ".timeindex", ABORTED_SUFFIX)


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """`00000000000000000042.log`: padded so that names sort as offsets do."""
    return directory / f"{base_offset:020d}{suffix}"


class Segment:
    """Batches from `base_offset` on. `size` is the end of the last whole batch, in bytes."""

    __slots__ = (
        "_directory",
        "_file",
        "_first_timestamp",
        "_indexes",
        "_opened",
        "_preallocated",
        "base_offset",
        "created_ms",
        "size",
    )

    def __init__(
        self,
        directory: Path,
        base_offset: int,
        opened: OpenSegments,
        *,
        size: int = 0,
        created_ms: int = 0,
        index_interval: int = 4096,
    ) -> None:
        """`created_ms` is when it was begun or, after a restart, opened."""
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self._directory = directory
        self._opened = opened
        self._file: SegmentFile | None = None
        self._indexes = SegmentIndexes(str(self.path("")), base_offset, index_interval, empty=not size)
        self._first_timestamp: int | None = None
        self._preallocated = False

    @classmethod
    def create(
        cls,
        directory: Path,
        base_offset: int,
        opened: OpenSegments,
        *,
        created_ms: int,
        index_interval: int,
        reserve: int,
    ) -> Segment:
        """A new, empty segment on disk, with `reserve` bytes set aside when positive. Raises OSError."""
        segment = cls(directory, base_offset, opened, created_ms=created_ms, index_interval=index_interval)
        file = SegmentFile(segment.path(), create=True)
        os.ftruncate(file.fileno(), 0)
        if reserve > 0:
            try:
                os.posix_fallocate(file.fileno(), 0, reserve)
            except OSError:
                segment.path().unlink()
                raise
            segment._preallocated = True
        segment._indexes.begin()
        segment._adopt(file)
        return segment

    def path(self, suffix: str = ".log") -> Path:
        return segment_path(self._directory, self.base_offset, suffix)

    # --- writing

    def begin_append(self) -> SegmentFile:
        """The file, to be written to at `size`. Raises OSError."""
        file = self._file or self._open()
        if not self._indexes.has_times:
            self._times()
        return file

    def append(self, batches: Sequence[tuple[int, BatchHeader]], offset: int) -> None:
        """Take in `batches`, (position, header) of each, which were written at `size`; their first offset is `offset`.

        Raises OSError.
        """
        if self._file is None:
            self.begin_append()  # it was released meanwhile
        for _, header in batches:
            offset += header.last_offset_delta
            self.note(header, offset)
            offset += 1
        self._opened.touch(self)

    def note(self, header: BatchHeader, last_offset: int) -> None:
        """Take a batch that stands at `size` into account; appends, rebuilds and recovery all end here."""
        size = header.size
        self._indexes.note(self.size, size, last_offset, header.max_timestamp)
        self.size += size

    def cut(self, size: int) -> None:
        """Make `size`, the end of a batch, the end of the file. Raises OSError."""
        os.ftruncate(self.file().fileno(), size)
        self._preallocated = False
        self.size = size
        self.rebuild()

    def rebuild(self) -> None:
        """Make the indexes anew from the log. Raises CorruptBatch where its batches do not follow each other."""
        file = self.begin_rebuild()
        size, self.size = self.size, 0
        try:
            with waiting():
                for _, header in scan_headers(file, 0, size):
                    self.note(header, header.last_offset)
        finally:
            self.size = size
        self._indexes.seal()

    def begin_rebuild(self) -> SegmentFile:
        """Empty the indexes; the caller then sets `size` and notes every batch of the file returned."""
        self._indexes.begin()
        self._first_timestamp = None
        return self._file or self._adopt(SegmentFile(self.path()))

    def seal(self) -> None:
        """Write down all there is to know: the segment is rolled or the log is closed."""
        if self.size:
            self.file()
            self._times()
        if self._preallocated:
            os.ftruncate(self.file().fileno(), self.size)
            self._preallocated = False
        self._indexes.seal()

    def sync(self, *, closed: bool) -> None:
        """fsync the log file, and the indexes of a `closed` segment, from any thread. Raises OSError.

        What was deleted meanwhile needs none.
        """
        for suffix in _SUFFIXES if closed else (".log",):
            try:
                file = SegmentFile(self.path(suffix))
            except FileNotFoundError:
                continue
            os.fsync(file.fileno())

    def mark_deleted(self) -> list[Path]:
        """Rename the files out of the log's sight; returns what is to be unlinked later. Raises OSError."""
        self._indexes.drop()
        self.close()
        renamed = []
        for suffix in _SUFFIXES:
            old = self.path(suffix)
            new = old.with_name(old.name + DELETED_SUFFIX)
            try:
                old.rename(new)
            except FileNotFoundError:
                continue
            renamed.append(new)
        return renamed

    # --- reading

    def read(self, offset: int, max_bytes: int, up_to: int | None) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, none that reaches `up_to`; None when there is none."""
        found = self.locate(offset)
        if found is None:
            return None
        start, first_size = found
        file, end = self.file(), self.size
        if start + max_bytes < end:
            entry = self._sound(lambda offsets: offsets.at_or_before(start + max_bytes))
            known = entry[1] if entry is not None else 0
            end = max(start + first_size, boundary_before(file, known, end, start + max_bytes))
        if up_to is not None:
            limit = self.locate(up_to)
            if limit is not None and limit[0] < end:
                end = limit[0]
        return FileSlice(file, start, end - start) if end > start else None

    def locate(self, offset: int) -> tuple[int, int] | None:
        """(position, size) of the first batch whose last offset is `offset` or above; None past the end."""
        file = self.file()
        self._opened.touch(self)
        position = self._offsets().position_of(offset - self.base_offset) if offset > self.base_offset else 0
        try:
            return find_batch(file, position, self.size, offset)
        except CorruptBatch as error:
            if not position:
                raise
            logger.warning("%s: %s; rebuilding the index", self.path(), error.message)
            self.rebuild()
            return find_batch(file, 0, self.size, offset)

    def holds(self, found: FileSlice) -> bool:
        """Whether a slice that was just read is of this segment."""
        return found.file is self._file

    def offset_after(self, found: FileSlice) -> int | None:
        """An offset past all of `found`, which it holds: by the index, so not the nearest; None when it knows none."""
        entry = self._sound(lambda offsets: offsets.at_or_after(found.position + found.length))
        return None if entry is None else self.base_offset + entry[0]

    def _sound(self, find: Callable[[OffsetIndex], tuple[int, int] | None]) -> tuple[int, int] | None:
        """An entry of the offset index that a batch stands behind; if none does, the index is made anew."""
        entry = find(self._offsets())
        if entry is None:
            return None
        batch = glance(self.file(), entry[1])
        if batch is not None and self.base_offset <= batch[0] <= batch[1] <= self.base_offset + entry[0]:
            return entry
        logger.warning("%s: entry %s fits no batch; rebuilding the index", self.path(".index"), entry)
        self.rebuild()
        return find(self._offsets())

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of every batch from `position`, the start of one. Raises CorruptBatch, ColdRead."""
        return scan_headers(self.file(), position, self.size)

    def next_offset(self) -> int:
        """The offset after the last record, from the file. Raises CorruptBatch when its tail is not whole."""
        file, offsets, end = self.file(), self._offsets(), self.base_offset
        for _, header in scan_headers(file, offsets.last_position, self.size):
            end = header.next_offset
        return end

    @property
    def newest(self) -> tuple[int, int]:
        """The newest timestamp and the last offset of the batch that has it; -1 without timestamps."""
        if self._indexes.newest is None:
            was_open = self._file is not None
            self.file()
            self._times()
            if not was_open:
                self.close()  # retention asks all segments once
        return self._indexes.newest or (-1, self.base_offset)

    @property
    def is_timed(self) -> bool:
        """Whether `newest` is known, and asking for it reads nothing."""
        return self._indexes.newest is not None

    def reader(self) -> SegmentReader:
        """The same files once more, as they are now, for another thread."""
        return SegmentReader(self._directory, self.base_offset, OpenSegments(1), size=self.size)

    def learn_newest(self, reader: SegmentReader, newest: tuple[int, int]) -> None:
        """Take what a reader has found, if nothing has happened to the segment since."""
        if not self.is_timed and reader.size == self.size:
            self._indexes.newest = newest

    def _times(self) -> TimeIndex:
        """The time index; made anew when it is missing, or its last entry fits no batch."""
        is_known = self._indexes.newest is not None
        times = self._indexes.load_times()
        if times is None or not (is_known or self._has_time(times.last)):
            self.rebuild()
            times = self._indexes.load_times()
        assert times is not None
        return times

    def _has_time(self, entry: tuple[int, int]) -> bool:
        """Whether the batch that holds an entry's offset has its timestamp."""
        found = self.locate(self.base_offset + entry[1])
        return found is not None and next(self.batches(found[0]))[1].max_timestamp == entry[0]

    @property
    def first_timestamp(self) -> int:
        """Newest timestamp (ms) of the first batch, from which time to roll is counted; -1 without records."""
        if self._first_timestamp is None and self.size:
            _, header = next(self.batches())
            self._first_timestamp = header.max_timestamp
        return -1 if self._first_timestamp is None else self._first_timestamp

    def modified_ms(self) -> int:
        """When the log file was last written, ms since the epoch."""
        return self.path().stat().st_mtime_ns // 1_000_000

    def position_for_timestamp(self, timestamp: int) -> int:
        """A batch boundary before which no record is as new as `timestamp`."""
        self.file()
        entry = self._times().before(timestamp)
        if entry is not None and not self._has_time(entry):
            logger.warning("%s: entry %s fits no batch; rebuilding the index", self.path(".timeindex"), entry)
            self.rebuild()
            entry = self._times().before(timestamp)
        return 0 if entry is None else self._offsets().position_of(entry[1])

    # --- opening and releasing

    def file(self) -> SegmentFile:
        return self._file or self._open()

    def set_index_interval(self, interval: int) -> None:
        self._indexes.interval = interval

    def indexes_full(self, limit: int) -> bool:
        """Whether another entry would take an index file past `limit` bytes."""
        return self._indexes.is_full(limit)

    def release(self) -> None:
        """Save the indexes and forget file and indexes; the next use opens them again."""
        self._indexes.save()
        self._indexes.drop()
        self._file = None

    def close(self) -> None:
        """Release, and leave the set of open segments."""
        self.release()
        self._opened.discard(self)

    def _offsets(self) -> OffsetIndex:
        """The offset index of a segment whose file is open."""
        offsets = self._indexes.offsets
        assert offsets is not None
        return offsets

    def _open(self) -> SegmentFile:
        file = SegmentFile(self.path())
        if self._indexes.offsets is None and self._indexes.load_offsets(self.size) is None:
            self._file = file
            self.rebuild()
        return self._adopt(file)

    def _adopt(self, file: SegmentFile) -> SegmentFile:
        self._file = file
        self._opened.add(self)
        return file


class SegmentReader(Segment):
    """A segment's files as they stood when it was made; it changes none of them. One thread at a time."""

    __slots__ = ()

    def rebuild(self) -> None:
        raise CorruptBatch("an index is to be made anew, by the segment's owner")
