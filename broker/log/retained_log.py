"""Which records a log keeps: retention, DeleteRecords, and what of both an archive has to take over first.

`Log` (log.py) derives from this. Without an archive a log starts with its first local record, and what leaves the disk
is gone. With one, segments leave the disk once they are archived (A1), and the log start stays. Whoever leads the
partition moves it in the archive first, so that no later leader brings deleted records back. When the archive is turned
off, the log starts where its disk does (A12). Idea: Kafka's `UnifiedLog`.
"""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable

from broker.clock import Clock
from broker.errors import BrokerError, ErrorCode
from broker.log.archived_log import ArchivedState
from broker.log.disk import wrap_disk_errors
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import ProducerSnapshots
from broker.log.readable_log import ReadableLog
from broker.log.retention import expired_segments, of_the_future, retained_from

logger = logging.getLogger(__name__)


class RetainedLog(ReadableLog, abc.ABC):
    """The start of a log, and how it moves. `Log` sets the fields."""

    config: LogConfig
    committed: int | None
    """The high watermark of a replicated partition, set by its owner. Retention, compaction and DeleteRecords stop
    there: above it records may still be replaced by those of another leader. None: no bound."""
    told_archived_end: int
    """Of a follower: so far the archive goes, as the leader says."""
    archived_state: Callable[[int], ArchivedState] | None
    """Of a follower, set by its owner: the state at the first end of an archived segment at or after an offset, where
    the log may begin. It asks the store, from any thread; raises BrokerError `kafka_storage_error`."""
    wanted_start_offset: int
    """Where the log shall start, by retention or DeleteRecords. If it is above the log start, whoever leads has the
    archive take it over, and then calls `follow_archive`."""
    start_wanted: Callable[[], None]
    """Called when `wanted_start_offset` has grown."""
    archive_moved: Callable[[], None]
    """Called when the archive has grown or starts later."""
    held: str = ""
    """Why retention by time does not go on, where a record of the future keeps it."""
    _clock: Clock
    _snapshots: ProducerSnapshots
    _is_start_known: bool

    @abc.abstractmethod
    def _roll(self, base_offset: int) -> None: ...

    def apply_retention(self) -> int:
        """Delete the segments that the retention lets go; returns how many. With an archive, those are archived.

        Their files are renamed and stay for file.delete.delay.ms: see `take_deleted`.
        """
        with wrap_disk_errors("apply retention to", self.directory):
            if self.config.remote_storage_enable:
                self._want_start(retained_from(self.archived, tuple(self._segments), self.config, self._clock.now_ms()))
            self._look_for_future()
            count, why = expired_segments(tuple(self._segments), self.config, self._clock.now_ms(), self._start)
            if count == len(self._segments) and self._end <= self._committed_end:
                self._roll(self._end)
            count = min(count, self._segments.older_than(self._deletable_end))
            self._delete_oldest(count, why)
        return count

    def _look_for_future(self) -> None:
        """Say once which segment retention.ms will not let go for a record that is stamped in the future."""
        segments, now_ms = tuple(self._segments), self._clock.now_ms()
        found = of_the_future(self.archived, segments, self.config, now_ms)
        told, self.held = self.held, ""
        if found is not None:
            offset, newest_ms = found
            days = (newest_ms - now_ms) / 86_400_000
            self.held = (
                f"the segment at offset {offset} has a record of the future (timestamp {newest_ms}, {days:,.1f} days "
                "ahead): no age lets it and the segments after it go before; message.timestamp.after.max.ms refuses "
                "such records"
            )
            if not told.startswith(f"the segment at offset {offset} "):
                logger.warning("%s: %s", self.directory.name, self.held)

    @property
    def is_start_known(self) -> bool:
        """False for an archived log without a checkpoint of its start, until `follow_archive`. It counts as 0 so far:
        a start that is too high would delete what is archived before it."""
        return self._is_start_known

    @property
    def archived_end(self) -> int:
        """Records before this offset are in the archive, as far as this broker knows."""
        return max(self.told_archived_end, self.archived.end if self.archived is not None else 0)

    @property
    def last_archived(self) -> int:
        """The last record that was ever archived, as far as this broker knows; -1 for none, or without an archive."""
        if not self.config.remote_storage_enable:
            return -1
        return max(self.told_archived_end - 1, self.archived.last if self.archived is not None else -1)

    @property
    def _committed_end(self) -> int:
        """Records before this offset may be deleted: a follower may lack those above the high watermark."""
        return self._end if self.committed is None else min(self.committed, self._end)

    @property
    def _deletable_end(self) -> int:
        """Records before this offset may leave the disk: what is not archived may not, unless the log starts later."""
        end = self._committed_end
        return min(end, max(self._start, self.archived_end)) if self.config.remote_storage_enable else end

    def delete_records(self, before: int) -> int:
        """Let the log start at offset `before`; returns the start, which may grow later: an archive with records before
        it has to take this over first (`wanted_start_offset`). Raises BrokerError `offset_out_of_range`."""
        end = self._committed_end
        if before > end:
            what = "the log ends" if end == self._end else "the high watermark is"
            raise BrokerError(ErrorCode.offset_out_of_range, f"cannot delete before {before}: {what} at {end}")
        if self.config.remote_storage_enable:
            self._want_start(before)
        else:
            self.advance_start(before)
        return self._start

    def _want_start(self, offset: int) -> None:
        if offset <= max(self._start, self.wanted_start_offset):
            return
        self.wanted_start_offset = offset
        if self.archived is not None and self.archived.start is None:
            self.advance_start(offset)
        self.start_wanted()

    def advance_start(self, offset: int) -> None:
        """Let the log start at `offset`, but not above the high watermark, as the leader or the archive says."""
        offset = min(offset, self._committed_end)
        if offset <= self._start:
            return
        self._start = offset
        with wrap_disk_errors("delete records of", self.directory):
            self.epochs.truncate_from_start(offset)
            self._delete_oldest(self._segments.older_than(offset), f"the log starts at offset {offset}")

    def follow_archive(self, start: int | None) -> None:
        """Take over where the archive starts, after `archived` was set or its manifest has changed; None where it has
        said nothing yet. What the archive says counts more than the checkpoint of a start, unless records were deleted
        that it still has to delete. Raises BrokerError `kafka_storage_error`.
        """
        if not self._is_start_known and (self.archived is None or self.archived.start is None):
            self._start = self.local_start_offset  # nothing is archived
        self._is_start_known = True
        if start is not None and start > self._start:
            self.advance_start(start)
        elif start is None or start < self._start:
            self.wanted_start_offset = max(self.wanted_start_offset, self._start)
        self.archive_moved()

    def _doubt_archive(self) -> None:
        """The log was cut: what was archived beyond its end may be of another leader, and let nothing be deleted for it
        until the manifest is read again."""
        self.told_archived_end = min(self.told_archived_end, self._end)
        if self.archived is not None and self.archived.end > self._end:
            self.archived = None

    def _leave_archive(self) -> None:
        """The archive is turned off, and its records go: the log starts where its local part does."""
        self._start, self._is_start_known, self.archived = self.local_start_offset, True, None
        self.told_archived_end = self.wanted_start_offset = 0
        self.epochs.truncate_from_start(self._start)

    def _delete_oldest(self, count: int, why: str) -> None:
        if not count:
            return
        segments = tuple(self._segments)
        first, after = segments[0].base_offset, segments[count].base_offset
        size = sum(segment.size for segment in segments[:count])
        text = "%s: deleting offsets %d to %d (segments: %d, bytes: %d): %s"
        logger.info(text, self.directory, first, after - 1, count, size, why)
        self._snapshots.keep_before_deletion(after)
        due = self._clock.now_ms() + self.config.file_delete_delay_ms
        deleted = self._segments.remove_oldest(count)
        if not self.config.remote_storage_enable:
            self._start = max(self._start, after)  # before anything below can fail: these records are gone
        for segment in deleted:
            self._segments.deleted.add(due, segment.mark_deleted())
        self.epochs.truncate_from_start(self._start)
        self.aborted.forget(0, after)
        self._snapshots.forget_before(after)
