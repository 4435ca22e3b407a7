"""Which records of a log are on disk, and when to flush: flush.messages, flush.ms, rolled segments.

Owned by log.py. Another thread may call `flush` while the owner appends, rolls, deletes and truncates, because it works
on a snapshot of the segments with descriptors of its own.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

from broker.clock import Clock
from broker.durable_files import sync_directory
from broker.log.leader_epochs import LeaderEpochs
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import ProducerSnapshots
from broker.log.segment import Segment


class Flusher:
    """Holds the recovery point: records before this offset have been fsynced."""

    def __init__(
        self,
        directory: Path,
        recovery_point: int,
        clock: Clock,
        epochs: LeaderEpochs,
        snapshots: ProducerSnapshots,
        *,
        synced_base: int,
    ) -> None:
        """The directory entries of the segment at `synced_base` and of all before it are synced already."""
        self.recovery_point = recovery_point
        self._directory = directory
        self._clock = clock
        self._epochs = epochs
        self._snapshots = snapshots
        self._flushed_at = clock.monotonic()  # someone may set the wall clock back
        self._synced_base = synced_base
        # `flush` raises the recovery point from any thread; a truncation lowers it, and a flush must not undo that.
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._truncations = 0
        self.has_failed = False

    def due(self, config: LogConfig, end: int) -> bool:
        """Whether flush.messages or flush.ms ask to fsync the records before `end` now."""
        waiting = end - self.recovery_point
        if waiting <= 0:
            return False
        if waiting >= config.flush_messages:
            return True
        return round((self._clock.monotonic() - self._flushed_at) * 1000) >= config.flush_ms

    def flush(self, segments: Sequence[Segment], end: int) -> None:
        """fsync `segments`, which hold all records before `end`; skips deleted files.

        One thread at a time. A thread that had to wait may find its records flushed already. Raises OSError; after
        that, `has_failed` is True and every call raises, because a second fsync succeeds although data is lost.
        """
        with self._turn:
            if self.has_failed:
                raise OSError(errno.EIO, "an earlier fsync failed")
            with self._lock:
                point, truncations = self.recovery_point, self._truncations
            if point >= end:
                return
            try:
                is_listed = self._sync(segments, point)
            except OSError:
                self.has_failed = True
                raise
            self._epochs.save()  # recovery reads epochs only from batches after the recovery point
            with self._lock:
                self._flushed_at = self._clock.monotonic()
                if truncations == self._truncations:
                    self.recovery_point = max(self.recovery_point, end)
                    if is_listed:
                        self._synced_base = segments[-1].base_offset
            self._snapshots.save()

    def _sync(self, segments: Sequence[Segment], point: int) -> bool:
        """Returns whether the directory entries of all segments are synced."""
        for number, segment in enumerate(segments):
            closed = number + 1 < len(segments)
            if not closed or segments[number + 1].base_offset > point:
                segment.sync(closed=closed)
        if segments[-1].base_offset != self._synced_base:
            try:
                sync_directory(self._directory)
                sync_directory(self._directory.parent)
            except FileNotFoundError:
                return False
        return True

    def truncate(self, end: int) -> None:
        """Lower the recovery point, because the log now ends at `end`."""
        with self._lock:
            self._truncations += 1
            self.recovery_point = min(self.recovery_point, end)
            self._synced_base = -1  # the next segments may have the names of those that are dropped
