"""A segment file: reading, writing, finding and verifying the record batches in it.

Used by segment.py, recovery.py and the offline tools. A `FileSlice` is what a fetch hands to `sendfile`. A file has no
`close`: its descriptor is closed with the last reference to it, so a roll, a delete or an eviction never closes a file
that a fetch is still sending. The scans yield (position, header) and raise CorruptBatch at the first byte that cannot
be a batch; everything yielded before is sound. `find_batch` and `boundary_before` serve fetches: a few small reads, no
objects.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from broker.errors import CorruptBatch
from broker.log.download import Download
from broker.records.batch import HEADER_SIZE, LENGTH_END, BatchHeader, parse_header, verify_batch
from broker.records.crc32c import crc32c

T = TypeVar("T")

READ_AHEAD_BYTES: Final = 128 * 1024
"""How much a cold read brings into the page cache: what follows the missing bytes is read next."""

_reads = threading.local()


class ColdRead(Exception):
    """A read would wait for the disk. Call `warm` in a thread, then `keep` in the owner's, then repeat the read."""

    download: Download | None = None
    """Ends when an archive's store has answered, if the read would wait for that: no thread need wait for it."""

    def __init__(self, file: SegmentFile, position: int, length: int) -> None:
        self._file = file
        self._position = position
        self._length = length

    def warm(self) -> None:
        """Bring the bytes into the page cache. Raises OSError."""
        os.pread(self._file.fileno(), max(self._length, READ_AHEAD_BYTES), self._position)

    def keep(self) -> None:
        """Use what `warm` found; subclasses may have something to do."""


def unless_cold(attempt: Callable[[], T]) -> T:
    """`attempt()`, which must be repeatable: a `glance` in it raises ColdRead instead of waiting for the disk."""
    _reads.refused = True
    try:
        return attempt()
    finally:
        _reads.refused = False


def may_wait() -> bool:
    """Whether reads may wait for the disk, which they may not inside `unless_cold`."""
    return not getattr(_reads, "refused", False)


@contextmanager
def waiting() -> Iterator[None]:
    """Let reads wait for the disk even inside `unless_cold`: a repair cannot be repeated when it is half done."""
    refused, _reads.refused = not may_wait(), False
    try:
        yield
    finally:
        _reads.refused = refused


class SegmentFile:
    """A file whose descriptor is closed when the object is deleted."""

    __slots__ = ("_fd", "_unreadable")

    def __init__(self, path: Path | str, *, create: bool = False, writable: bool = True) -> None:
        self._fd = -1
        self._unreadable: tuple[int, OSError] | None = None
        """The last byte that could not be sent, and why."""
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        self._fd = os.open(path, flags, 0o644)

    def fileno(self) -> int:
        return self._fd

    def failed(self, position: int, error: OSError) -> None:
        """The disk did not give the byte at `position`, which was to be sent."""
        self._unreadable = position, error

    def check(self, position: int, length: int) -> None:
        """Raises OSError if the range has a byte that could not be sent before."""
        if self._unreadable is not None and position <= self._unreadable[0] < position + length:
            raise OSError(*self._unreadable[1].args)

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
        """Write all of `data`; from any thread. Raises OSError, after truncating the file to `position`."""
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
        """Like `pread`, for bytes before the end. Inside `unless_cold` raises ColdRead instead of waiting."""
        if may_wait():
            return self.pread(length, position)
        found = bytearray(length)
        try:
            if os.preadv(self._fd, [found], position, os.RWF_NOWAIT) == length:
                return found
        except BlockingIOError:
            pass
        except OSError:
            return self.pread(
                length, position
            )  # a file system without RWF_NOWAIT (tmpfs), or an error, which this raises
        raise ColdRead(self, position, length)

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        if self._fd >= 0:
            _close(self._fd)


class FileSlice(NamedTuple):
    """Whole record batches: `length` bytes of `file` from `position` on."""

    file: SegmentFile
    position: int
    length: int

    def read(self) -> bytes:
        """The bytes, for callers without `sendfile`."""
        return self.file.pread(self.length, self.position)


HEADER_CHUNK = 8 * 1024
VERIFY_CHUNK = 1024 * 1024
CRC_SPAN_START = 21

# The fields that `find_batch` needs: base offset, length, magic, last offset delta.
_GLANCE = struct.Struct(">qi4xb6xi")
_GLANCE_CHUNK = 4096
_LENGTH = struct.Struct(">i")
_LENGTH_POSITION = 8
_MIN_LENGTH = HEADER_SIZE - LENGTH_END


def find_batch(file: SegmentFile, position: int, end: int, offset: int) -> tuple[int, int] | None:
    """(position, size) of the first batch in [position, end) whose last offset is at least `offset`, or None.

    Raises CorruptBatch when no batch starts at `position` or the wanted batch lies before it, and ColdRead.
    """
    started = position
    while position < end:
        chunk = file.glance(min(_GLANCE_CHUNK, end - position), position)
        at, last = 0, len(chunk) - _GLANCE.size
        while at <= last:
            base, length, magic, delta = _GLANCE.unpack_from(chunk, at)
            if magic != 2 or length < _MIN_LENGTH or delta < 0:
                raise CorruptBatch(f"no batch at byte {position + at}")
            if base + delta >= offset:
                if started and base > offset and position + at == started:
                    raise CorruptBatch(f"offset {offset} lies before byte {started}")
                return position + at, length + LENGTH_END
            at += length + LENGTH_END
        if not at:
            raise CorruptBatch(f"a cut batch at byte {position}")
        position += at
    return None


def glance(file: SegmentFile, position: int) -> tuple[int, int] | None:
    """(first offset, last offset) of the batch at `position`, or None. Raises ColdRead."""
    chunk = file.glance(_GLANCE.size, position)
    if len(chunk) < _GLANCE.size:
        return None
    base, length, magic, delta = _GLANCE.unpack(chunk)
    return None if magic != 2 or length < _MIN_LENGTH or delta < 0 else (base, base + delta)


def boundary_before(file: SegmentFile, boundary: int, end: int, limit: int) -> int:
    """The last batch start, or `end`, at or before byte `limit`. `boundary` is a known batch start before it."""
    while boundary < end:
        chunk = file.glance(min(_GLANCE_CHUNK, end - boundary), boundary)
        at, last = 0, len(chunk) - _LENGTH_POSITION - _LENGTH.size
        while at <= last:
            step = _LENGTH.unpack_from(chunk, at + _LENGTH_POSITION)[0] + LENGTH_END
            if boundary + at + step > limit or step < HEADER_SIZE:
                return boundary + at
            at += step
        if not at:
            break
        boundary += at
    return boundary


def scan_headers(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches in [start, end), headers only; one read covers many small batches. Raises ColdRead."""
    position = start
    while position < end:
        chunk = file.glance(min(HEADER_CHUNK, end - position), position)
        at = 0
        while at == 0 or len(chunk) - at >= HEADER_SIZE:
            header = parse_header(chunk, at)
            _check_frame(header, position + at, end)
            yield position + at, header
            at += header.size
        position += at


def scan_verified(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches in [start, end), each after a check of magic, length, CRC and counts."""
    buffer = bytearray(min(VERIFY_CHUNK, max(end - start, HEADER_SIZE)))
    view = memoryview(buffer)
    position = start
    while position < end:
        filled = os.preadv(file.fileno(), [view[: end - position]], position)
        chunk = view[:filled]
        at = 0
        while filled - at >= HEADER_SIZE:
            header = parse_header(chunk, at)
            _check_frame(header, position + at, end)
            if header.size > filled - at:
                break
            verify_batch(chunk, at, header)
            yield position + at, header
            at += header.size
        if at == 0:  # a batch larger than the buffer, or a torn one
            header = parse_header(chunk)
            _verify_in_pieces(file, position, header, view)
            yield position, header
            at = header.size
        position += at


def _check_frame(header: BatchHeader, position: int, end: int) -> None:
    if header.magic != 2 or header.length < _MIN_LENGTH or position + header.size > end:
        raise CorruptBatch(f"no whole batch at byte {position} (magic {header.magic}, length {header.length})")


def _verify_in_pieces(file: SegmentFile, position: int, header: BatchHeader, view: memoryview) -> None:
    """Verify a batch without reading it into memory: its length may be garbage as large as the file."""
    at, end, crc = position + CRC_SPAN_START, position + header.size, 0
    while at < end:
        filled = os.preadv(file.fileno(), [view[: end - at]], at)
        if not filled:
            break
        crc = crc32c(view[:filled], crc)
        at += filled
    if at < end or crc != header.crc:
        raise CorruptBatch(f"CRC of the batch at offset {header.base_offset} does not match")
