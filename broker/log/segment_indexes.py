"""Both indexes of one segment, mapped when they are needed, and what they are made from.

Owned by segment.py, which notes every batch here and drops the mappings when the segment is released.
The newest timestamp stays known after that: retention asks for it again and again.
"""

from __future__ import annotations

import logging
from pathlib import Path

from broker.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex

__all__ = ["SegmentIndexes"]

logger = logging.getLogger(__name__)

MOST_UNINDEXED = 4 << 20
"""Log bytes behind the last entry beyond which an index was cut short, in a power failure perhaps."""


class SegmentIndexes:
    """`newest` is (newest timestamp in ms or -1, last offset of the batch that has it), None until known."""

    __slots__ = ("_base_offset", "_stem", "_times", "_unindexed", "interval", "newest", "offsets")

    def __init__(self, stem: str, base_offset: int, interval: int, *, empty: bool) -> None:
        """`stem` is the path of the files without their suffix; `interval` log bytes lie between entries."""
        self.interval = interval
        self.offsets: OffsetIndex | None = None
        self.newest: tuple[int, int] | None = (-1, base_offset) if empty else None
        self._times: TimeIndex | None = None
        self._stem = stem
        self._base_offset = base_offset
        self._unindexed = 0

    def begin(self) -> None:
        """Start without entries; every batch is noted anew."""
        self.offsets, self._times = OffsetIndex(), TimeIndex()
        self.newest = (-1, self._base_offset)
        self._unindexed = 0

    def load_offsets(self, log_size: int) -> OffsetIndex | None:
        """None when the file is missing or wrong, or lacks so much that reads would crawl."""
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
            times = TimeIndex.load(self._path(".timeindex"))
            if times is None or (self.newest is None and not len(times)):
                return None
            self._times = times
            if self.newest is None:
                timestamp, relative_offset = times.last
                self.newest = (timestamp, self._base_offset + relative_offset)
        return self._times

    def note(self, position: int, size: int, last_offset: int, max_timestamp: int) -> None:
        """A batch stands at `position`. The caller has loaded, or begun, both indexes."""
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
        """Write both files so that the last time entry covers the whole segment."""
        if self._times is not None and self.newest is not None and self.newest[0] >= 0:
            self._times.append_newer(self.newest[0], self.newest[1] - self._base_offset)
        self.save()

    def save(self) -> None:
        """Bring the files up to date. A failure costs a rebuild later, not the caller's work."""
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
        """Forget what can be mapped again."""
        self.offsets = self._times = None

    def is_full(self, limit: int) -> bool:
        """Whether another entry would take a file past `limit` bytes."""
        offsets, times = self.offsets, self._times
        return (offsets is not None and offsets.size + OFFSET_ENTRY_SIZE > limit) or (
            times is not None and times.size + TIME_ENTRY_SIZE > limit
        )

    def _path(self, suffix: str) -> Path:
        return Path(self._stem + suffix)
