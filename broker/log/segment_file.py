"""An open segment file and a range of it: what a fetch hands to `sendfile`.

Made by segment.py; carried up to the network layer inside a `FileSlice`. There is no `close`: the
descriptor goes when the last reference goes, so rolls, deletes and evictions never pull a file away
under a fetch that is being sent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

__all__ = ["ColdRead", "FileSlice", "SegmentFile", "may_wait", "unless_cold", "waiting"]

T = TypeVar("T")

READ_AHEAD_BYTES: Final = 128 * 1024
"""Brought into the page cache with the few bytes that were missed: they are what is read next."""

_reads = threading.local()


class ColdRead(Exception):
    """What was to be looked at is not in the page cache. `warm` brings it there, and waits for the disk."""

    def __init__(self, file: SegmentFile, position: int, length: int) -> None:
        self._file = file
        self._position = position
        self._length = length

    def warm(self) -> None:
        """Called in a thread. Raises OSError."""
        os.pread(self._file.fileno(), max(self._length, READ_AHEAD_BYTES), self._position)

    def settle(self) -> None:
        """Called where the attempt was made, after `warm`: what is to be done before the next."""


def unless_cold(attempt: Callable[[], T]) -> T:
    """`attempt()`, in which a glance that would wait for the disk raises ColdRead; for reads that can be begun anew."""
    _reads.refused = True
    try:
        return attempt()
    finally:
        _reads.refused = False


def may_wait() -> bool:
    """Whether reads may wait for the disk: not inside `unless_cold`."""
    return not getattr(_reads, "refused", False)


@contextmanager
def waiting() -> Iterator[None]:
    """Inside, reads wait for the disk even in `unless_cold`: for repairs, which cannot be begun anew half-done."""
    refused, _reads.refused = not may_wait(), False
    try:
        yield
    finally:
        _reads.refused = refused


class SegmentFile:
    """A file descriptor that closes itself."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path | str, *, create: bool = False, writable: bool = True) -> None:
        self._fd = -1
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags, 0o644)

    def fileno(self) -> int:
        return self._fd

    def pread(self, length: int, position: int) -> bytes:
        """Up to `length` bytes; fewer only where the file ends."""
        data = os.pread(self._fd, length, position)
        while data and len(data) < length:
            more = os.pread(self._fd, length - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all of `data`, from any thread. Raises OSError; the file then ends at `position`."""
        try:
            written = os.pwrite(self._fd, data, position)
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], position + written)
        except OSError:
            self.truncate(position)
            raise

    def truncate(self, size: int) -> None:
        """Raises OSError."""
        os.ftruncate(self._fd, size)

    def glance(self, length: int, position: int) -> bytes | bytearray:
        """As `pread`, of bytes that are there. Inside `unless_cold` raises ColdRead rather than wait for the disk."""
        if may_wait():
            return self.pread(length, position)
        found = bytearray(length)
        try:
            if os.preadv(self._fd, [found], position, os.RWF_NOWAIT) == length:
                return found
        except BlockingIOError:
            pass
        except OSError:
            return self.pread(length, position)  # a file system that cannot tell (tmpfs), or an error to be raised
        raise ColdRead(self, position, length)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:
            _close(self._fd)


class FileSlice(NamedTuple):
    """Whole record batches: `length` bytes of `file` from `position`."""

    file: SegmentFile
    position: int
    length: int

    def read(self) -> bytes:
        """The bytes themselves, for callers without `sendfile`."""
        return self.file.pread(self.length, self.position)
