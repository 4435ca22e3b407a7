"""What a log consists of, and how segments come and go: rolling, retention, truncation, closing, deleting.

The half of `Log` that is not about single records; log.py adds appending and reading to it and is what everybody
uses. Whatever raises leaves the log as it was. One thread, the event loop's, owns it.
Idea: the part of Kafka's `UnifiedLog` that became `LocalLog`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from pathlib import Path

from broker.clock import Clock
from broker.errors import BrokerError, ConfigError, ErrorCode
from broker.log import retention
from broker.log.aborted_index import AbortedEntry, BrokenIndex
from broker.log.checkpoints import PARTITION_METADATA, read_topic_id, write_topic_id
from broker.log.deleted_files import DeletedFiles
from broker.log.disk import Disk
from broker.log.flushing import Flusher
from broker.log.log_config import LogConfig
from broker.log.open_segments import OpenSegments
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, TakenSnapshots, drop_snapshots, save_snapshot
from broker.log.producer_state import ProducerStates
from broker.log.recovery import LoadedLog, new_segment, rebuild_aborted, rebuild_producers
from broker.log.rolling import is_aged
from broker.log.segment import Segment, segment_path
from broker.log.segment_file import waiting
from broker.log.segment_list import SegmentList
from broker.log.segment_swap import swap_in
from broker.log.storage_errors import storage_error, storage_errors

__all__ = ["DELETED_DIRECTORY_SUFFIX", "StoredLog"]

logger = logging.getLogger(__name__)

DELETED_DIRECTORY_SUFFIX = "-delete"


class StoredLog:
    """The segments of one partition, its producers and leader epochs, and where it starts and ends."""

    def __init__(
        self, directory: Path, config: LogConfig, clock: Clock, opened: OpenSegments, loaded: LoadedLog, disk: Disk
    ) -> None:
        self.directory = directory
        self._disk = disk
        self._config = config
        self._clock = clock
        self._opened = opened
        self._segments = SegmentList(loaded.segments)
        self._producers = loaded.producers
        self._aborted = loaded.aborted
        self.epochs = loaded.epochs
        self._start = loaded.log_start_offset
        self._end = loaded.log_end_offset
        self._topic_id = _known_topic_id(directory)
        self._deleted = DeletedFiles()
        self._failure = ""
        self._is_writing = False
        """The active segment is being appended to, perhaps by another thread: its end is not known."""
        self._is_sealed = loaded.is_sealed
        synced_base = self._segments.active.base_offset if loaded.is_sealed and self._end else -1
        self._snapshots = TakenSnapshots(directory)
        self._flusher = Flusher(
            directory, loaded.recovery_point, clock, self.epochs, self._snapshots, synced_base=synced_base
        )

    # --- what it holds

    @property
    def config(self) -> LogConfig:
        return self._config

    @property
    def failure(self) -> str:
        """Why it takes no appends any more; empty while it does."""
        return self._failure

    @property
    def is_slow(self) -> bool:
        """Whether a write to its disk took long a moment ago, so that the next one may, too."""
        until = self._disk.slow_until
        return until > 0 and self._clock.monotonic() < until

    @property
    def log_start_offset(self) -> int:
        return self._start

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._end

    @property
    def recovery_point(self) -> int:
        """Records before this offset have been fsynced."""
        return self._flusher.recovery_point

    @property
    def segments(self) -> Sequence[Segment]:
        """Oldest first; the last is the active one."""
        return tuple(self._segments)

    @property
    def active_base_offset(self) -> int:
        """Where the segment begins that is appended to."""
        return self._segments.active.base_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def producers(self) -> ProducerStates:
        return self._producers

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest open transaction begins; None without one. Records of it may be deleted already."""
        first = self._producers.first_unstable_offset
        return first if first is None or first > self._start else self._start

    def aborted_entries(self, start: int, end: int) -> list[AbortedEntry]:
        """The aborted transactions with records in [start, end), with all their offsets.

        Raises BrokerError `kafka_storage_error`.
        """
        with storage_errors("read the aborted transactions of", self.directory):
            while True:
                try:
                    return self._aborted.between(start, end)
                except BrokenIndex as broken:
                    self._rebuild_aborted(broken)

    def _rebuild_aborted(self, broken: BrokenIndex) -> None:
        logger.warning("%s; finding the aborted transactions anew", broken)
        now = self._clock.now_ms()
        with waiting():
            rebuild_aborted(self.directory, tuple(self._segments), broken.base_offset, self._aborted, now)

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._topic_id

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write the topic's id beside the segments. Raises BrokerError `kafka_storage_error`."""
        if topic_id == self._topic_id:
            return
        with storage_errors("write the topic id of", self.directory):
            write_topic_id(self.directory / PARTITION_METADATA, topic_id)
        self._topic_id = topic_id

    # --- flushing

    def flush_due(self) -> bool:
        """Whether flush.messages or flush.ms ask for a `flush`: whoever appended waits for it."""
        return self._flusher.due(self._config, self._end)

    def flush_wanted(self) -> bool:
        """Whether one is due, or a segment was rolled and not yet synced, which nobody has to wait for."""
        return self.recovery_point < self._segments.active.base_offset or self.flush_due()

    def save_epochs(self) -> None:
        """Write the leader epochs down, if they changed; from any thread. Raises BrokerError `kafka_storage_error`."""
        if not self.epochs.is_saved:
            with storage_errors("write the leader epochs of", self.directory):
                self.epochs.save()

    def flush(self) -> None:
        """fsync all that was appended so far. The only method another thread may call while the owner goes on.

        Raises BrokerError `kafka_storage_error`; after that the log takes no more appends, for the kernel may
        have dropped what it could not write.
        """
        end = self._end
        try:
            self._flusher.flush(tuple(self._segments), end)
        except OSError as error:
            if self._flusher.has_failed:
                self._failure = f"{self.directory}: fsync failed ({error.strerror}); restart the broker to recover"
            raise storage_error("flush", self.directory, error) from error

    # --- rolling, retention, truncation

    def roll(self) -> None:
        """Close the active segment and begin a new one, unless it is empty or being appended to."""
        with storage_errors("roll", self.directory):
            self._roll()

    def roll_if_aged(self) -> None:
        """Roll a segment that has waited segment.ms without an append to do it."""
        if is_aged(self._segments.active, self._config, self._clock.now_ms()):
            self.roll()

    def _roll(self) -> None:
        active = self._segments.active
        if not active.size or self._is_writing:
            return
        active.seal()
        segment = new_segment(self.directory, self._end, self._config, self._clock, self._opened)
        self._snapshots.take(self._end, self._producers)  # not before: an append that is refused comes again and again
        self._segments.append(segment)

    def apply_retention(self) -> int:
        """Delete the segments that retention.ms and retention.bytes no longer want; returns how many.

        Their files stay, renamed, for file.delete.delay.ms: see `take_deleted`.
        """
        with storage_errors("apply retention to", self.directory):
            now_ms = self._clock.now_ms()
            count, why = retention.expired_segments(tuple(self._segments), self._config, now_ms, self._start)
            if count == len(self._segments):
                self._roll()
                count = len(self._segments) - 1
            self._delete_oldest(count, why)
        return count

    def delete_records(self, before: int) -> int:
        """Let the log start at offset `before`; returns the new start. Raises BrokerError `offset_out_of_range`."""
        if before > self._end:
            raise BrokerError(
                ErrorCode.offset_out_of_range, f"cannot delete before {before}: the log ends at {self._end}"
            )
        self._start = max(self._start, before)
        with storage_errors("delete records of", self.directory):
            self.epochs.truncate_from_start(self._start)
            self._delete_oldest(self._segments.older_than(self._start), f"the log starts at offset {self._start}")
        return self._start

    def _delete_oldest(self, count: int, why: str) -> None:
        if not count:
            return
        segments = tuple(self._segments)
        first, after = segments[0].base_offset, segments[count].base_offset
        size = sum(segment.size for segment in segments[:count])
        said = "%s: deleting offsets %d to %d (segments: %d, bytes: %d): %s"
        logger.info(said, self.directory, first, after - 1, count, size, why)
        if self._snapshots.has_any_up_to(after):
            self._snapshots.save()  # the records that would tell the same go now
        due = self._clock.now_ms() + self._config.file_delete_delay_ms
        doomed = self._segments.remove_oldest(count)
        self._start = max(self._start, self._segments.oldest.base_offset)  # first: nothing lies before it any more
        for segment in doomed:
            self._deleted.add(due, segment.mark_deleted())
        self.epochs.truncate_from_start(self._start)
        self._aborted.forget(0, self._segments.oldest.base_offset)
        drop_snapshots(self.directory, low=self._segments.oldest.base_offset)

    def replace_segments(self, old: Sequence[Segment], cleaned: Path, size: int) -> bool:
        """Put the compacted segment of `size` bytes in the directory `cleaned` in the place of `old`, which it was made
        from. False, and nothing is done, when those are no longer all here: retention or a truncation was faster.

        Raises BrokerError `kafka_storage_error`; the log then takes no more appends until a start has recovered it.
        """
        segments = tuple(self._segments)
        first = segments.index(old[0]) if old[0] in segments[:-1] else -1
        if first < 0 or self._failure or segments[first : first + len(old)] != tuple(old) or old[-1] is segments[-1]:
            return False
        base_offset = old[0].base_offset
        with storage_errors("compact", self.directory):
            try:
                doomed = swap_in(cleaned, self.directory, base_offset, old)
            except OSError:
                self._failure = f"{self.directory}: a swap of segments was cut short; restart the broker to finish it"
                raise
        compacted = Segment(
            self.directory,
            base_offset,
            self._opened,
            size=size,
            created_ms=old[-1].created_ms,
            index_interval=self._config.index_interval_bytes,
        )
        self._segments.replace(old, compacted)
        self._aborted.forget(base_offset, old[-1].base_offset + 1)
        doomed += [segment_path(self.directory, segment.base_offset, SNAPSHOT_SUFFIX) for segment in old[1:]]
        self._deleted.add(self._clock.now_ms() + self._config.file_delete_delay_ms, doomed)
        return True

    def truncate_to(self, offset: int) -> None:
        """Drop the batch that holds `offset` and all after it, as a follower does that went astray.

        Raises BrokerError `offset_out_of_range` below the log's start, `kafka_storage_error`.
        """
        if offset >= self._end:
            return
        if self._is_writing:
            raise BrokerError(ErrorCode.kafka_storage_error, f"{self.directory}: an append is under way")
        if offset < self._start:
            raise BrokerError(ErrorCode.offset_out_of_range, f"cannot cut at {offset}: the log starts at {self._start}")
        self._flusher.truncate(offset)
        with storage_errors("truncate", self.directory):
            for segment in self._segments.remove_after(offset):
                for path in segment.mark_deleted():
                    path.unlink()
            active = self._segments.active
            found = active.locate(offset)
            if found is not None:
                active.cut(found[0])
            self._end = active.next_offset()
            self._start = min(self._start, self._end)  # the batch may have held the start as well
            self._is_sealed = False
            self._snapshots.truncate(self._end)
            drop_snapshots(self.directory, high=self._end)
            self.epochs.truncate_from_end(self._end)
            self._flusher.truncate(self._end)
            try:
                self._aborted.truncate(self._end)
            except BrokenIndex as broken:
                self._rebuild_aborted(broken)
            self._producers = rebuild_producers(self.directory, tuple(self._segments), self._end, self._clock.now_ms())

    def expire_producers(self, expiration_ms: int) -> int:
        """Forget producers that appended nothing for so long; returns how many."""
        return self._producers.expire(self._clock.now_ms(), expiration_ms)

    def update_config(self, config: LogConfig) -> None:
        """Take new settings; they hold from the next append, roll or retention on."""
        self._config = config
        self._segments.active.set_index_interval(config.index_interval_bytes)

    # --- ending

    def close(self) -> None:
        """Leave the log as a clean start wants it: synced, indexes whole, producer state written down."""
        if self._is_writing:
            raise BrokerError(ErrorCode.kafka_storage_error, f"{self.directory}: an append is under way")
        with storage_errors("close", self.directory):
            if not self._is_sealed:
                self._segments.active.seal()
                save_snapshot(self.directory, self._end, self._producers)
                if self.recovery_point < self._end:
                    self.flush()
                self._is_sealed = True
            self.save_epochs()
            self.release()
        self._failure = self._failure or f"{self.directory} is closed"

    def release(self) -> None:
        """Let go of every descriptor and loaded index; they come back when needed."""
        for segment in self._segments:
            segment.close()

    def delete(self) -> Path:
        """Rename the directory out of sight, to `<name>.<unique>-delete`; returns it, for the caller to remove.

        Slices that are being sent keep their files. Raises BrokerError `kafka_storage_error`.
        """
        self._failure = f"{self.directory} is deleted"
        doomed = self.directory.with_name(f"{self.directory.name[:200]}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")
        with storage_errors("delete", self.directory):
            self.release()
            self.epochs.abandon()
            self._snapshots.abandon()
            return self.directory.rename(doomed)

    def take_deleted(self) -> list[Path]:
        """Files of deleted segments whose file.delete.delay.ms is over, for the caller to unlink."""
        return self._deleted.take(self._clock.now_ms())


def _known_topic_id(directory: Path) -> uuid.UUID | None:
    """What partition.metadata says; one that cannot be read is written anew when the topic's id is assigned."""
    try:
        return read_topic_id(directory / PARTITION_METADATA)
    except ConfigError as error:
        logger.warning("%s; it is written anew with the id that ZooKeeper has for the topic", error)
        return None
