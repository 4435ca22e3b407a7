"""The two sparse indexes of a segment: Kafka's files, mapped into memory and searched there.

Used by segment.py. About every `index.interval.bytes` of log there is an entry. Offsets are relative to the segment's
base offset, so they fit in 32 bits. Kafka's `OffsetIndex` and `TimeIndex`:

    .index      relative offset (int32), position (int32): the last offset of a batch, the byte it begins at
    .timeindex  timestamp (int64), relative offset (int32): no record up to this offset is newer

Entries grow in both columns. Opening an index takes the same time whatever its size, because only the length and the
last entry are checked; segment.py checks every entry it uses against the log. Entries added since the last `save` are
in memory, so a file may lag behind its log but never contradicts it. A file is never shortened while it is mapped.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Self

logger = logging.getLogger(__name__)

OFFSET_ENTRY = struct.Struct(">II")
TIME_ENTRY = struct.Struct(">qi")

MOST_UNSAVED = 4096


class _Index:
    """Entries of two numbers: first the mapped ones of the file, then those that are not saved yet."""

    __slots__ = ("_changed", "_mapped", "_unsaved")
    _entry: struct.Struct

    def __init__(self) -> None:
        """An empty index, even if there is a file."""
        self._mapped: mmap.mmap | bytes = b""
        self._unsaved = bytearray()
        self._changed = True

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The index in a file; None when it is missing or ends within an entry."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            size = os.fstat(fd).st_size
            if size % cls._entry.size:
                return None
            index = cls()
            index._map(fd, size)
            return index
        finally:
            os.close(fd)

    def _map(self, fd: int, size: int) -> None:
        self._mapped = mmap.mmap(fd, size, access=mmap.ACCESS_READ) if size else b""
        self._unsaved.clear()
        self._changed = False

    def __len__(self) -> int:
        return self.size // self._entry.size

    @property
    def size(self) -> int:
        """Bytes of the file once everything is saved."""
        return len(self._mapped) + len(self._unsaved)

    def entry(self, number: int) -> tuple[int, int]:
        at = number * self._entry.size
        saved = len(self._mapped)
        first, second = self._entry.unpack_from(*((self._mapped, at) if at < saved else (self._unsaved, at - saved)))
        return first, second

    def append(self, first: int, second: int) -> None:
        """Add an entry; both numbers are larger than those of the last entry."""
        self._unsaved += self._entry.pack(first, second)
        self._changed = True

    def cut(self, count: int) -> None:
        """Keep the first `count` entries. The file follows with the next `save`."""
        entries = bytes(self._mapped[:]) + bytes(self._unsaved)
        self._mapped, self._unsaved = b"", bytearray(entries[: count * self._entry.size])
        self._changed = True

    @property
    def is_long_unsaved(self) -> bool:
        return len(self._unsaved) >= MOST_UNSAVED

    def count_up_to(self, value: int, column: int) -> int:
        """How many entries have at most `value` in a column."""
        count = len(self)
        if not count or self.entry(count - 1)[column] <= value:
            return count  # most reads are at the end
        saved = len(self._mapped) // self._entry.size
        if saved < count and (not saved or self.entry(saved - 1)[column] <= value):
            return bisect_right(range(count), value, lo=saved, key=lambda number: self.entry(number)[column])
        mapped, unpack, width = self._mapped, self._entry.unpack_from, self._entry.size
        return bisect_right(range(saved), value, key=lambda number: unpack(mapped, number * width)[column])

    def save(self, path: Path) -> None:
        """Write the new entries to the file. Raises OSError."""
        if not self._changed:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = self.size
            saved = 0
            while saved < len(self._unsaved):  # a full disk writes a part first, then fails
                saved += os.pwrite(fd, memoryview(self._unsaved)[saved:], len(self._mapped) + saved)
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            self._map(fd, size)
        finally:
            os.close(fd)

    def detach(self) -> None:
        """Forget the file, which is lost: the next `save` writes every entry."""
        self._unsaved[:0] = self._mapped[:]
        self._mapped = b""
        self._changed = True


class OffsetIndex(_Index):
    """Relative last offset of a batch → its position."""

    __slots__ = ()
    _entry = OFFSET_ENTRY

    @classmethod
    def load(cls, path: Path, log_size: int) -> OffsetIndex | None:
        """The index in a file; None when it is missing, cut or does not fit a log of `log_size` bytes."""
        index = cls.read(path)
        return index if index is not None and (not len(index) or index.last_position < log_size) else None

    @property
    def last_position(self) -> int:
        """The position in the last entry; 0 without entries."""
        return self.entry(len(self) - 1)[1] if len(self) else 0

    def position_of(self, relative_offset: int) -> int:
        """Where to start the search for the batch that holds this offset; 0 before the first entry."""
        number = self.count_up_to(relative_offset, 0)
        return self.entry(number - 1)[1] if number else 0

    def at_or_before(self, position: int) -> tuple[int, int] | None:
        """The last entry of a batch that begins at or before `position`."""
        number = self.count_up_to(position, 1)
        return self.entry(number - 1) if number else None

    def at_or_after(self, position: int) -> tuple[int, int] | None:
        """The first entry of a batch that begins at `position` or after."""
        number = self.count_up_to(position - 1, 1)
        return self.entry(number) if number < len(self) else None


class TimeIndex(_Index):
    """Newest timestamp so far → relative offset of the batch that brought it."""

    __slots__ = ()
    _entry = TIME_ENTRY

    @property
    def last(self) -> tuple[int, int]:
        """The newest timestamp and its offset; (-1, 0) without entries."""
        return self.entry(len(self) - 1) if len(self) else (-1, 0)

    def append_newer(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it is newer than the last one; others would not help a lookup."""
        last_timestamp, last_offset = self.last
        if timestamp > last_timestamp and (relative_offset > last_offset or not len(self)):
            self.append(timestamp, relative_offset)

    def up_to(self, relative_offset: int) -> tuple[int, int] | None:
        """The last entry with at most this offset."""
        number = self.count_up_to(relative_offset, 1)
        return self.entry(number - 1) if number else None

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry older than `timestamp`: all records up to its relative offset are older."""
        number = self.count_up_to(timestamp - 1, 0)
        return self.entry(number - 1) if number else None


MOST_UNINDEXED = 4 << 20
"""An index with more log bytes after its last entry was probably cut by a power failure."""


class SegmentIndexes:
    """Both indexes of one segment, mapped when they are needed.

    `newest` is (newest timestamp in ms or -1, last offset of the batch that has it), None until it is known. It stays
    in memory after `drop`, because retention asks for it again and again.
    """

    __slots__ = ("_base_offset", "_stem", "_times", "_unindexed", "interval", "newest", "offsets")

    def __init__(self, stem: str, base_offset: int, interval: int, *, empty: bool) -> None:
        """`stem` is the path of the files without their suffix; `interval` is the log bytes between two entries."""
        self.interval = interval
        self.offsets: OffsetIndex | None = None
        self.newest: tuple[int, int] | None = (-1, base_offset) if empty else None
        self._times: TimeIndex | None = None
        self._stem = stem
        self._base_offset = base_offset
        self._unindexed = 0

    def clear(self) -> None:
        """Start without entries, before every batch is noted again."""
        self.offsets, self._times = OffsetIndex(), TimeIndex()
        self.newest = (-1, self._base_offset)
        self._unindexed = 0

    def cut(self, relative_offset: int) -> None:
        """Keep the entries up to the batch with this last offset. The caller notes it and what follows it again."""
        assert self.offsets is not None
        assert self._times is not None
        self.offsets.cut(self.offsets.count_up_to(relative_offset, 0))
        self._times.cut(self._times.count_up_to(relative_offset, 1))
        timestamp, newest_offset = self._times.last
        self.newest = (timestamp, self._base_offset + newest_offset)
        self._unindexed = 0

    def load_offsets(self, log_size: int) -> OffsetIndex | None:
        """None when the file is missing, wrong, or lacks so many entries that reads would be slow."""
        offsets = OffsetIndex.load(self._path(".index"), log_size)
        if offsets is not None:
            self._unindexed = log_size - offsets.last_position
            if self._unindexed > self.interval + MOST_UNINDEXED:
                offsets = None
        self.offsets = offsets
        return offsets

    @property
    def has_times(self) -> bool:
        return self._times is not None

    def load_times(self) -> TimeIndex | None:
        """None when the file is missing or wrong."""
        if self._times is None:
            times = TimeIndex.read(self._path(".timeindex"))
            if times is None or (self.newest is None and not len(times)):
                return None
            self._times = times
            if self.newest is None:
                timestamp, relative_offset = times.last
                self.newest = (timestamp, self._base_offset + relative_offset)
        return self._times

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """Add a batch at `position`. The caller has loaded both indexes, or called `begin`."""
        newest = self.newest
        if newest is None or max_timestamp > newest[0]:
            self.newest = newest = (max_timestamp, last_offset)
        if self._unindexed > self.interval and self.offsets is not None and self._times is not None:
            self.offsets.append(last_offset - self._base_offset, position)
            self._times.append_newer(newest[0], newest[1] - self._base_offset)
            self._unindexed = 0
            if self.offsets.is_long_unsaved or self._times.is_long_unsaved:
                self.save()
        self._unindexed += size

    def seal(self) -> None:
        """Save both files, with a last time entry that covers the whole segment."""
        if self._times is not None and self.newest is not None and self.newest[0] >= 0:
            self._times.append_newer(self.newest[0], self.newest[1] - self._base_offset)
        self.save()

    def save(self) -> None:
        """Save both files. After a failure they are rebuilt later, and the caller goes on."""
        try:
            if self.offsets is not None:
                self.offsets.save(self._path(".index"))
            if self._times is not None:
                self._times.save(self._path(".timeindex"))
        except OSError as error:
            logger.warning("indexes of %s not saved, they will be rebuilt: %s", self._stem, error.strerror)
            for index, suffix in ((self.offsets, ".index"), (self._times, ".timeindex")):
                self._path(suffix).unlink(missing_ok=True)
                if index is not None:
                    index.detach()

    def drop(self) -> None:
        """Unmap both indexes; they can be loaded again."""
        self.offsets = self._times = None

    def is_full(self, limit: int) -> bool:
        """Whether another entry would make a file larger than `limit` bytes."""
        offsets, times = self.offsets, self._times
        return (offsets is not None and offsets.size + OFFSET_ENTRY.size > limit) or (
            times is not None and times.size + TIME_ENTRY.size > limit
        )

    def _path(self, suffix: str) -> Path:
        return Path(self._stem + suffix)
