"""An open segment file and a range of it: what a fetch hands to `sendfile`.

Made by segment.py; carried up to the network layer inside a `FileSlice`. There is no `close`: the
descriptor goes when the last reference goes, so rolls, deletes and evictions never pull a file away
under a fetch that is being sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["FileSlice", "SegmentFile"]


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
