"""One segment: a file of record batches and its two indexes.

Used by log.py, recovery.py, timestamps.py and compaction.py. Offsets in a segment only grow. Reads never see bytes
past `size`, and bytes of a failed write are truncated at once. Files and indexes are opened on first use and
released when `OpenSegments` holds too many. Not thread-safe, except `sync`. Idea: Kafka's `LogSegment`.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from broker.errors import CorruptBatch
from broker.log.index import OffsetIndex, SegmentIndexes, TimeIndex
from broker.log.segment_file import FileSlice, SegmentFile, boundary_before, find_batch, glance, scan_headers, waiting
from broker.records.batch import BatchHeader

logger = logging.getLogger(__name__)

DELETED_SUFFIX = ".deleted"
ABORTED_SUFFIX = ".txnindex"
MAX_RELATIVE_OFFSET = 2**31 - 1

_SUFFIXES = (".log", ".index", ".timeindex", ABORTED_SUFFIX)


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """`00000000000000000042.log`: padded with zeros so that names sort like offsets."""
    return directory / f"{base_offset:020d}{suffix}"


class Segment:
    """The batches from `base_offset` on. `size` is the end of the last whole batch, in bytes."""

    __slots__ = (
        "_directory",
        "_file",
        "_first_timestamp",
        "_indexes",
        "_opened",
        "_preallocated",
        "_tail",
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
        """`created_ms` is when the segment was created or, after a restart, opened."""
        self.base_offset = base_offset
        self.size = size
        self.created_ms = created_ms
        self._directory = directory
        self._opened = opened
        self._file: SegmentFile | None = None
        self._indexes = SegmentIndexes(str(self.path("")), base_offset, index_interval, empty=not size)
        self._first_timestamp: int | None = None
        self._preallocated = False
        self._tail = 0, 0
        """(first offset, position) of the last append: most reads begin there."""

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
        """Create an empty segment on disk, with `reserve` bytes allocated when positive. Raises OSError."""
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
        segment._indexes.clear()
        segment._adopt(file)
        return segment

    def path(self, suffix: str = ".log") -> Path:
        return segment_path(self._directory, self.base_offset, suffix)

    # --- writing

    def begin_append(self) -> SegmentFile:
        """The file, for the caller to write to at position `size`. Raises OSError."""
        file = self._file or self._open()
        if not self._indexes.has_times:
            self._times()
        return file

    def append(self, placed: Sequence[tuple[int, BatchHeader]]) -> None:
        """Add batches, (last offset, header) of each, that were written at `size`. Raises OSError."""
        if self._file is None:
            self.begin_append()  # the segment was released during the write
        last_offset, header = placed[0]
        self._tail = last_offset - header.last_offset_delta, self.size
        for last_offset, header in placed:
            self.note(header, last_offset)
        self._opened.touch(self)

    def note(self, header: BatchHeader, last_offset: int) -> None:
        """Add the batch at position `size` to the indexes and to `size`. Appends, rebuilds and recovery call this."""
        size = header.size
        self._indexes.note(self.size, size, last_offset, header.max_timestamp)
        self.size += size

    def cut(self, size: int) -> None:
        """Truncate the file to `size`, the end of a batch, and the indexes with it. Raises OSError, CorruptBatch.

        Only what follows the last index entry is read again: the event loop waits for it.
        """
        file = self.file()
        self._times()  # it is checked against its last batch, which may be cut off
        os.ftruncate(file.fileno(), size)
        self._preallocated = False
        self.size = size
        entry = self._checked(lambda offsets: offsets.at_or_before(size - 1))
        if entry is None or not self._has_times_up_to(entry[0]):
            self.rebuild()
            return
        self._indexes.cut(entry[0])
        self._note_from(entry[1])

    def _has_times_up_to(self, relative_offset: int) -> bool:
        """Whether the time entry from which `cut` goes on fits its batch."""
        entry = self._times().up_to(relative_offset)
        return entry is None or self._has_time(entry)

    def rebuild(self) -> None:
        """Rebuild the indexes from the log file. Raises CorruptBatch."""
        self.begin_rebuild()
        self._note_from(0)

    def _note_from(self, position: int) -> None:
        """Add the batches from `position` on to the indexes, and save these. Raises CorruptBatch."""
        file, size, self.size = self.file(), self.size, position
        try:
            with waiting():
                for _, header in scan_headers(file, position, size):
                    self.note(header, header.last_offset)
        finally:
            self.size = size
        self._indexes.seal()

    def begin_rebuild(self) -> SegmentFile:
        """Empty the indexes and return the file. The caller then resets `size` and calls `note` for every batch."""
        self._indexes.clear()
        self._first_timestamp = None
        return self._file or self._adopt(SegmentFile(self.path()))

    def seal(self) -> None:
        """Write complete indexes, because the segment is rolled or the log is closed."""
        if self.size:
            self.file()
            self._times()
        if self._preallocated:
            os.ftruncate(self.file().fileno(), self.size)
            self._preallocated = False
        self._indexes.seal()

    def sync(self, *, closed: bool) -> None:
        """fsync the log file, and the indexes of a `closed` segment; from any thread. Skips deleted files.

        Raises OSError.
        """
        for suffix in _SUFFIXES if closed else (".log",):
            try:
                file = SegmentFile(self.path(suffix))
            except FileNotFoundError:
                continue
            os.fsync(file.fileno())

    def mark_deleted(self) -> list[Path]:
        """Rename the files to `*.deleted`; returns them, for the caller to unlink later. Raises OSError."""
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
        """Whole batches from the one that holds `offset` up to, not including, the one that holds `up_to`."""
        found = self.locate(offset)
        if found is None:
            return None
        start, first_size = found
        file, end = self.file(), self.size
        if start + max_bytes < end:
            entry = self._checked(lambda offsets: offsets.at_or_before(start + max_bytes))
            known = entry[1] if entry is not None else 0
            end = max(start + first_size, boundary_before(file, known, end, start + max_bytes))
        if up_to is not None:
            limit = self.locate(up_to)
            if limit is not None and limit[0] < end:
                end = limit[0]
        return FileSlice(file, start, end - start) if end > start else None

    def locate(self, offset: int) -> tuple[int, int] | None:
        """(position, size) of the first batch whose last offset is at least `offset`; None after the end."""
        file = self.file()
        self._opened.touch(self)
        if 0 < self._tail[1] < self.size and offset >= self._tail[0]:
            return find_batch(file, self._tail[1], self.size, offset)
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
        """Whether a slice that was just read belongs to this segment."""
        return found.file is self._file

    def offset_after(self, found: FileSlice) -> int | None:
        """An offset after all of `found`, from the sparse index; None when the index has none."""
        entry = self._checked(lambda offsets: offsets.at_or_after(found.position + found.length))
        return None if entry is None else self.base_offset + entry[0]

    def _checked(self, find: Callable[[OffsetIndex], tuple[int, int] | None]) -> tuple[int, int] | None:
        """An entry of the offset index that fits its batch. If it does not fit, the index is rebuilt first."""
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
        """(position, header) of every batch from the one at `position` on. Raises CorruptBatch, ColdRead."""
        return scan_headers(self.file(), position, self.size)

    def next_offset(self) -> int:
        """The offset after the last record, read from the file. Raises CorruptBatch when its tail is cut."""
        file, offsets, end = self.file(), self._offsets(), self.base_offset
        for _, header in scan_headers(file, offsets.last_position, self.size):
            end = header.next_offset
        return end

    @property
    def newest(self) -> tuple[int, int]:
        """(newest timestamp, last offset of the batch that has it); the timestamp is -1 without timestamps."""
        if self._indexes.newest is None:
            was_open = self._file is not None
            self.file()
            self._times()
            if not was_open:
                self.close()  # retention asks every segment once
        return self._indexes.newest or (-1, self.base_offset)

    def newest_ms(self) -> int:
        """The newest timestamp or, when records have none, the time of the last write to the file; ms."""
        newest = self.newest[0]
        return newest if newest >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """The time of the last write to the file; ms."""
        return self.path().stat().st_mtime_ns // 1_000_000

    @property
    def is_timed(self) -> bool:
        """Whether `newest` is in memory, so that reading it needs no disk access."""
        return self._indexes.newest is not None

    def reader(self) -> SegmentReader:
        """A second view of the files as they are now, for another thread."""
        return SegmentReader(self._directory, self.base_offset, OpenSegments(1), size=self.size)

    def learn_newest(self, reader: SegmentReader, newest: tuple[int, int]) -> None:
        """Store `newest` as a reader found it, unless the segment changed since."""
        if not self.is_timed and reader.size == self.size:
            self._indexes.newest = newest

    def _times(self) -> TimeIndex:
        """The time index, rebuilt when it is missing or its last entry does not fit its batch."""
        is_known = self._indexes.newest is not None
        times = self._indexes.load_times()
        if times is None or not (is_known or self._has_time(times.last)):
            self.rebuild()
            times = self._indexes.load_times()
        assert times is not None
        return times

    def _has_time(self, entry: tuple[int, int]) -> bool:
        """Whether the batch that holds an entry's offset has the entry's timestamp."""
        found = self.locate(self.base_offset + entry[1])
        return found is not None and next(self.batches(found[0]))[1].max_timestamp == entry[0]

    @property
    def first_timestamp(self) -> int:
        """Newest timestamp (ms) of the first batch, from which segment.ms counts; -1 without records."""
        if self._first_timestamp is None and self.size:
            _, header = next(self.batches())
            self._first_timestamp = header.max_timestamp
        return -1 if self._first_timestamp is None else self._first_timestamp

    def position_for_timestamp(self, timestamp: int) -> int:
        """The start of a batch before which every record is older than `timestamp`."""
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
        """Whether another entry would make an index file larger than `limit` bytes."""
        return self._indexes.is_full(limit)

    def release(self) -> None:
        """Save the indexes, then close file and indexes; the next use opens them again."""
        self._indexes.save()
        self._indexes.drop()
        self._file = None

    def close(self) -> None:
        """Release the segment and remove it from the open segments."""
        self.release()
        self._opened.discard(self)

    def _offsets(self) -> OffsetIndex:
        """The offset index; the file must be open."""
        offsets = self._indexes.offsets
        assert offsets is not None
        return offsets

    def _open(self) -> SegmentFile:
        file = self._adopt(SegmentFile(self.path()))
        if self._indexes.offsets is None and self._indexes.load_offsets(self.size) is None:
            self.rebuild()
        return file

    def _adopt(self, file: SegmentFile) -> SegmentFile:
        self._file = file
        self._opened.add(self)
        return file


class SegmentReader(Segment):
    """A read-only view of a segment's files as they were when it was made. For one thread at a time."""

    __slots__ = ()

    def rebuild(self) -> None:
        raise CorruptBatch("an index must be rebuilt, which only the segment's owner may do")


DESCRIPTORS_PER_SEGMENT = 3
"""One for the log file and one for each mapped index: Python keeps a descriptor with a mapping."""


class OpenSegments:
    """The open segments of all logs, least recently used first. Not thread-safe.

    Above `limit` the oldest one is released: it closes its files and indexes, and opens them again (50 µs) when it is
    used. So the number of partitions, or the length of a backlog, does not decide how many files are open.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, segment: Segment) -> None:
        """Mark an open segment as just used."""
        self._open.move_to_end(segment)

    def add(self, segment: Segment) -> None:
        """Add a segment that was just opened; releases others when there are too many."""
        self._open[segment] = None
        self._open.move_to_end(segment)
        while len(self._open) > max(self._limit, 1):
            self._open.popitem(last=False)[0].release()

    def discard(self, segment: Segment) -> None:
        """Remove a segment that closed its file itself."""
        self._open.pop(segment, None)
