"""The aborted transactions of a partition, whose records a read_committed fetch must leave out.

Owned by log.py, written by log.py and recovery.py. One `.txnindex` file per segment that holds an abort
marker; a segment without one costs no file and no memory. The file goes with its segment (segment.py
renames it). Kafka's `TransactionIndex`; records/aborted_entries.py has its entries.

Entries are searched in the file and not kept in memory, because a log with many aborted transactions would fill it.
Not thread-safe.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from broker.log.disk import wrap_disk_errors
from broker.log.segment import ABORTED_SUFFIX, segment_path
from broker.log.segment_file import SegmentFile
from broker.records.aborted_entries import ENTRY_SIZE, AbortedEntry, decode_aborted, encode_aborted

_READ_AT_ONCE = 128
"""Entries; most fetches find theirs among these."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction as a fetch reports it: records of this producer from here to its marker do not count."""

    producer_id: int
    first_offset: int


class BrokenIndex(ValueError):
    """The file of the segment at `base_offset` is damaged and must be rebuilt from the log."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.base_offset = int(path.stem)


def _refuse(broken: BrokenIndex) -> None:
    raise broken


class AbortedIndex:
    __slots__ = ("_bases", "_directory", "rebuild")

    def __init__(self, directory: Path, bases: Iterable[int] = ()) -> None:
        """`bases` are the base offsets of the segments that have a file."""
        self.rebuild: Callable[[BrokenIndex], None] = _refuse
        """Called to rebuild a damaged file; the owner sets it."""
        self._directory = directory
        self._bases = sorted(bases)

    def __bool__(self) -> bool:
        return bool(self._bases)

    def note(self, base_offset: int, entry: AbortedEntry) -> None:
        """Add an aborted transaction whose marker is in the segment at `base_offset`.

        Raises OSError, and leaves no part of the entry in the file.
        """
        path = self._path(base_offset)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.write(fd, encode_aborted((entry,))) != ENTRY_SIZE:
                size = os.fstat(fd).st_size
                os.ftruncate(fd, size - size % ENTRY_SIZE)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        finally:
            os.close(fd)
        if base_offset not in self._bases:
            insort(self._bases, base_offset)

    def between(self, start: int, end: int) -> list[AbortedEntry]:
        """The transactions with records in [start, end), in the order of their markers, with all their offsets.

        Raises BrokerError `kafka_storage_error`, BrokenIndex.
        """
        with wrap_disk_errors("read the aborted transactions of", self._directory):
            while self._bases:
                try:
                    return list(self._walk(start, end))
                except BrokenIndex as broken:
                    self.rebuild(broken)
        return []

    def transactions_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """The same as a fetch reports them, so that a reader of committed records can skip their records."""
        return [AbortedTransaction(*entry[:2]) for entry in self.between(start, end)] if self._bases else []

    def _walk(self, start: int, end: int) -> Iterator[AbortedEntry]:
        first = max(bisect_right(self._bases, start) - 1, 0)
        for base_offset in self._bases[first:]:
            for entry in self._entries(base_offset, start):
                if entry.first_offset < end:
                    yield entry
                if entry.last_stable_offset >= end:
                    return  # later entries began at or after `end`

    def forget(self, low: int, high: int) -> None:
        """Forget the segments with base offsets in [low, high), whose files were deleted."""
        for base_offset in self._bases[bisect_left(self._bases, low) : bisect_left(self._bases, high)]:
            self._bases.remove(base_offset)

    def truncate(self, end: int) -> None:
        """Drop the entries at or after offset `end`, which the log ends with already. Raises OSError, BrokenIndex."""
        for base_offset in self._bases[bisect_left(self._bases, end) :]:
            self.drop(base_offset)
        if not self._bases:
            return
        base_offset = self._bases[-1]
        try:
            file = _Reader(self._path(base_offset))
            kept = file.first_from(end)
        except BrokenIndex as broken:
            self.rebuild(broken)
            return
        if kept == file.count:
            return
        if kept:
            os.truncate(self._path(base_offset), kept * ENTRY_SIZE)
        else:
            self.drop(base_offset)

    def drop(self, base_offset: int) -> None:
        """Delete a segment's entries and their file. Raises OSError."""
        if base_offset in self._bases:
            self._bases.remove(base_offset)
            self._path(base_offset).unlink(missing_ok=True)

    def _entries(self, base_offset: int, start: int) -> Iterator[AbortedEntry]:
        """A segment's entries from the first that ends at `start` or later."""
        file = _Reader(self._path(base_offset))
        position = file.first_from(start)
        while entries := file.read(position, _READ_AT_ONCE):
            yield from entries
            position += len(entries)

    def _path(self, base_offset: int) -> Path:
        return segment_path(self._directory, base_offset, ABORTED_SUFFIX)


class _Reader:
    """Reads one file. Raises BrokenIndex for invalid or misplaced entries, and ColdRead."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = SegmentFile(path, writable=False)
        except FileNotFoundError:
            raise BrokenIndex(path, "it is missing") from None
        self.count, rest = divmod(os.fstat(self._file.fileno()).st_size, ENTRY_SIZE)
        if rest or not self.count:
            raise BrokenIndex(path, f"{rest} bytes after the last whole entry" if rest else "it is empty")

    def first_from(self, offset: int) -> int:
        """The number of the first entry whose marker is at `offset` or later."""
        return bisect_left(range(self.count), offset, key=lambda number: self.read(number, 1)[0].last_offset)

    def read(self, number: int, count: int) -> list[AbortedEntry]:
        """At most `count` entries from `number` on, checked to follow the entry before them."""
        first, end = max(number - 1, 0), min(number + count, self.count)
        if number >= end:
            return []
        data = bytes(self._file.glance((end - first) * ENTRY_SIZE, first * ENTRY_SIZE))
        try:
            return decode_aborted(data)[number - first :]
        except ValueError as error:
            raise BrokenIndex(self._path, str(error)) from None
