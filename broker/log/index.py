"""The two sparse indexes of a segment, in memory and in Kafka's files.

Used by segment.py only. An entry is made about every `index.interval.bytes` of log; offsets are
relative to the segment's base offset, so they fit in 32 bits. Kafka's `OffsetIndex`, `TimeIndex`:

    .index      relative offset (int32), position (int32): the last offset of a batch, the byte it begins at
    .timeindex  timestamp (int64), relative offset (int32): no record up to this offset is newer

Both only grow, in both columns; a file that does not is refused (`load` gives None) and rebuilt from
the log. `save` writes what was added since the last save: an index may lag behind its log, never lie.
"""

from __future__ import annotations

import operator
import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import islice
from pathlib import Path

__all__ = ["OffsetIndex", "TimeIndex"]

_TIME_ENTRY = struct.Struct(">qi")
OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = _TIME_ENTRY.size


class OffsetIndex:
    """Relative last offset of a batch → its position."""

    __slots__ = ("_changed", "_saved", "offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("I")
        self.positions = array("I")
        self._changed = True
        self._saved = 0

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def size(self) -> int:
        """Bytes of the file when all is saved."""
        return len(self.offsets) * OFFSET_ENTRY_SIZE

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)
        self._changed = True

    def position_of(self, relative_offset: int) -> int:
        """Where to begin looking for the batch that holds this offset; 0 before the first entry."""
        entry = bisect_right(self.offsets, relative_offset)
        return self.positions[entry - 1] if entry else 0

    def boundary_before(self, position: int) -> int:
        """The last known start of a batch at or before `position`."""
        entry = bisect_right(self.positions, position)
        return self.positions[entry - 1] if entry else 0

    def offset_since(self, position: int) -> int | None:
        """Relative last offset of the first known batch that begins at `position` or after; None without one."""
        entry = bisect_left(self.positions, position)
        return self.offsets[entry] if entry < len(self) else None

    def truncate(self, position: int) -> None:
        """Forget batches that begin at `position` or after."""
        keep = bisect_right(self.positions, position - 1) if position else 0
        del self.offsets[keep:], self.positions[keep:]
        self._changed = True
        self._saved = min(self._saved, keep)

    def save(self, path: Path) -> None:
        """Bring the file up to date. Raises OSError."""
        if not self._changed:
            return
        interleaved = array("I", bytes((len(self) - self._saved) * OFFSET_ENTRY_SIZE))
        interleaved[0::2] = self.offsets[self._saved :]
        interleaved[1::2] = self.positions[self._saved :]
        _to_big_endian(interleaved)
        _write_tail(path, interleaved.tobytes(), self._saved * OFFSET_ENTRY_SIZE)
        self._saved = len(self)
        self._changed = False

    @classmethod
    def load(cls, path: Path, log_size: int) -> OffsetIndex | None:
        """The index in a file; None when it is missing, cut or cannot belong to a log of `log_size` bytes."""
        data = _read(path)
        if data is None or len(data) % OFFSET_ENTRY_SIZE:
            return None
        entries = array("I")
        entries.frombytes(data)
        _to_big_endian(entries)
        index = cls()
        index.offsets, index.positions = entries[0::2], entries[1::2]
        index._saved = len(index)
        index._changed = False
        sound = _grows(index.offsets) and _grows(index.positions)
        return index if sound and (not entries or index.positions[-1] < log_size) else None


class TimeIndex:
    """Newest timestamp so far → relative offset of the batch that brought it; kept as the file's bytes."""

    __slots__ = ("_changed", "_entries", "_saved")

    def __init__(self) -> None:
        self._entries = bytearray()
        self._changed = True
        self._saved = 0

    def __len__(self) -> int:
        return len(self._entries) // TIME_ENTRY_SIZE

    @property
    def size(self) -> int:
        return len(self._entries)

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, relative offset) of an entry."""
        timestamp, offset = _TIME_ENTRY.unpack_from(self._entries, number * TIME_ENTRY_SIZE)
        return timestamp, offset

    @property
    def last(self) -> tuple[int, int]:
        """The newest timestamp and its offset; (-1, 0) without entries."""
        return self.entry(len(self) - 1) if self._entries else (-1, 0)

    def append_newer(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry if it is newer than the last; others add nothing to a lookup."""
        last_timestamp, last_offset = self.last
        if timestamp > last_timestamp and (relative_offset > last_offset or not self._entries):
            self._entries += _TIME_ENTRY.pack(timestamp, relative_offset)
            self._changed = True

    def offset_before(self, timestamp: int) -> int:
        """No record up to this relative offset has `timestamp` or newer; -1 before the first entry."""
        entry = bisect_right(range(len(self)), timestamp - 1, key=lambda number: self.entry(number)[0])
        return self.entry(entry - 1)[1] if entry else -1

    def truncate(self, relative_offset: int) -> None:
        """Forget entries at `relative_offset` or after."""
        keep = bisect_right(range(len(self)), relative_offset - 1, key=lambda number: self.entry(number)[1])
        del self._entries[keep * TIME_ENTRY_SIZE :]
        self._changed = True
        self._saved = min(self._saved, len(self._entries))

    def save(self, path: Path) -> None:
        """Bring the file up to date. Raises OSError."""
        if self._changed:
            _write_tail(path, bytes(self._entries[self._saved :]), self._saved)
            self._saved = len(self._entries)
            self._changed = False

    @classmethod
    def load(cls, path: Path) -> TimeIndex | None:
        """The index in a file; None when it is missing, cut or out of order."""
        data = _read(path)
        if data is None or len(data) % TIME_ENTRY_SIZE:
            return None
        index = cls()
        index._entries = bytearray(data)
        index._saved = len(data)
        index._changed = False
        columns = list(zip(*_TIME_ENTRY.iter_unpack(data), strict=True)) if data else [(), ()]
        return index if _grows(columns[0]) and _grows(columns[1]) else None


def _grows(column: array[int] | tuple[int, ...]) -> bool:
    return all(map(operator.lt, column, islice(column, 1, None)))


def _to_big_endian(numbers: array[int]) -> None:
    if sys.byteorder == "little":
        numbers.byteswap()


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _write_tail(path: Path, tail: bytes, position: int) -> None:
    """Make the file its first `position` bytes followed by `tail`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.pwrite(fd, tail, position)
        os.ftruncate(fd, position + len(tail))
    finally:
        os.close(fd)
