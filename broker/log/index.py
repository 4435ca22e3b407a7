"""The two sparse indexes of a segment: Kafka's files, mapped into memory and searched there.

Used by segment_indexes.py only. An entry is made about every `index.interval.bytes` of log; offsets are
relative to the segment's base offset, so they fit in 32 bits. Kafka's `OffsetIndex`, `TimeIndex`:

    .index      relative offset (int32), position (int32): the last offset of a batch, the byte it begins at
    .timeindex  timestamp (int64), relative offset (int32): no record up to this offset is newer

Both only grow, in both columns. Opening one costs the same whatever its size: of what is in a file only its length and
last entry are looked at, whoever uses an entry checks it against the log (segment.py). What was added since the last
`save` is kept in memory: an index may lag behind its log, never lie. A file is never shortened while it is mapped.
"""

from __future__ import annotations

import mmap
import os
import struct
from bisect import bisect_right
from pathlib import Path
from typing import Self

__all__ = ["OFFSET_ENTRY_SIZE", "TIME_ENTRY_SIZE", "OffsetIndex", "TimeIndex"]

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qi")
OFFSET_ENTRY_SIZE = _OFFSET_ENTRY.size
TIME_ENTRY_SIZE = _TIME_ENTRY.size

MOST_UNSAVED = 4096


class _Index:
    """Entries of two numbers: those in the file, mapped, and behind them those that are not saved."""

    __slots__ = ("_changed", "_mapped", "_unsaved")
    _entry: struct.Struct

    def __init__(self) -> None:
        """Without entries, whatever the file says."""
        self._mapped: mmap.mmap | bytes = b""
        self._unsaved = bytearray()
        self._changed = True

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The index in a file; None when it is missing or has no whole number of entries."""
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
        """Bytes of the file when all is saved."""
        return len(self._mapped) + len(self._unsaved)

    def entry(self, number: int) -> tuple[int, int]:
        """Both numbers of an entry."""
        at = number * self._entry.size
        saved = len(self._mapped)
        first, second = self._entry.unpack_from(*((self._mapped, at) if at < saved else (self._unsaved, at - saved)))
        return first, second

    def append(self, first: int, second: int) -> None:
        """Both are larger than those of the last entry."""
        self._unsaved += self._entry.pack(first, second)
        self._changed = True

    @property
    def is_long_unsaved(self) -> bool:
        return len(self._unsaved) >= MOST_UNSAVED

    def count_up_to(self, value: int, column: int) -> int:
        """How many entries are not above `value` in a column."""
        count = len(self)
        if not count or self.entry(count - 1)[column] <= value:
            return count  # most reads are of the end
        saved = len(self._mapped) // self._entry.size
        if saved < count and (not saved or self.entry(saved - 1)[column] <= value):
            return bisect_right(range(count), value, lo=saved, key=lambda number: self.entry(number)[column])
        mapped, unpack, width = self._mapped, self._entry.unpack_from, self._entry.size
        return bisect_right(range(saved), value, key=lambda number: unpack(mapped, number * width)[column])

    def save(self, path: Path) -> None:
        """Bring the file up to date. Raises OSError."""
        if not self._changed:
            return
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = self.size
            saved = 0
            while saved < len(self._unsaved):  # a disk that is nearly full takes a part, and refuses the next
                saved += os.pwrite(fd, memoryview(self._unsaved)[saved:], len(self._mapped) + saved)
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            self._map(fd, size)
        finally:
            os.close(fd)

    def detach(self) -> None:
        """The file is lost: have the next `save` write all of it."""
        self._unsaved[:0] = self._mapped[:]
        self._mapped = b""
        self._changed = True


class OffsetIndex(_Index):
    """Relative last offset of a batch → its position."""

    __slots__ = ()
    _entry = _OFFSET_ENTRY

    @classmethod
    def load(cls, path: Path, log_size: int) -> OffsetIndex | None:
        """The index in a file; None when it is missing, cut or cannot belong to a log of `log_size` bytes."""
        index = cls.read(path)
        return index if index is not None and (not len(index) or index.last_position < log_size) else None

    @property
    def last_position(self) -> int:
        """Where the last batch that has an entry begins; 0 without entries."""
        return self.entry(len(self) - 1)[1] if len(self) else 0

    def position_of(self, relative_offset: int) -> int:
        """Where to begin looking for the batch that holds this offset; 0 before the first entry."""
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
    _entry = _TIME_ENTRY

    @classmethod
    def load(cls, path: Path) -> TimeIndex | None:
        """The index in a file; None when it is missing or cut."""
        return cls.read(path)

    @property
    def last(self) -> tuple[int, int]:
        """The newest timestamp and its offset; (-1, 0) without entries."""
        return self.entry(len(self) - 1) if len(self) else (-1, 0)

    def append_newer(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it is newer than the last; others add nothing to a lookup."""
        last_timestamp, last_offset = self.last
        if timestamp > last_timestamp and (relative_offset > last_offset or not len(self)):
            self.append(timestamp, relative_offset)

    def before(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry older than `timestamp`: no record up to its relative offset has `timestamp` or newer."""
        number = self.count_up_to(timestamp - 1, 0)
        return self.entry(number - 1) if number else None
