"""The log of one partition: append-only segments, and how records are appended and deleted.

The partition's leader or follower appends and reads (readable_log.py); manager.py flushes, rolls, applies retention and
closes. Batches of a leader, checked by append_checks.py, get offsets and the leader epoch in their headers. Those of a
follower, checked by follower_append.py, stay as they are. A method that raises leaves the log unchanged. The event
loop's thread owns a log. Two things may run in another thread: `flush`, and the write of a `PendingAppend`. Readers see
that write when the owner resumes the append. Idea: Kafka's `UnifiedLog`.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from broker.clock import Clock
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.aborted_index import BrokenIndex
from broker.log.append_checks import (
    BatchCheck,
    Batches,
    PlacedBatches,
    assign_offsets,
    check_fits_segment,
    coordinator_batches,
    stamp_append_time,
    writable,
)
from broker.log.archived_log import ArchivedLog, ArchivedState
from broker.log.checkpoints import PARTITION_METADATA, known_topic_id, write_topic_id
from broker.log.disk import Disk, storage_error, thread_waits, wrap_disk_errors
from broker.log.flushing import Flusher
from broker.log.follower_append import FollowerAppend, FollowerRun, plan_follower_append
from broker.log.leader_epochs import NO_EPOCH
from broker.log.log_config import LogConfig
from broker.log.pending_append import AppendResult, PendingAppend
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, ProducerSnapshots
from broker.log.producer_state import ProducerStates
from broker.log.recovery import (
    LoadedLog,
    Replay,
    load_log,
    note_aborted,
    rebuild_aborted,
    rebuild_producers,
    try_rebuild_producers,
)
from broker.log.retained_log import RetainedLog
from broker.log.segment import OpenSegments, Segment, segment_path
from broker.log.segment_file import SegmentFile
from broker.log.segment_swap import mark_compacted
from broker.log.segments import Segments, is_aged, must_roll
from broker.records.batch import NO_TIMESTAMP, Buffer, parse_header
from broker.records.control import ControlType, EndMarker, end_transaction_marker

logger = logging.getLogger(__name__)

DELETED_DIRECTORY_SUFFIX = "-delete"

WritableBuffer = bytearray | memoryview


class Log(RetainedLog):
    """The log of one partition: its segments, producers and leader epochs. Made by `Log.open`."""

    def __init__(
        self, directory: Path, config: LogConfig, clock: Clock, opened: OpenSegments, loaded: LoadedLog, disk: Disk
    ) -> None:
        self.directory = directory
        self.config = config
        """The topic's settings; `update_config` replaces them."""
        self.producers: ProducerStates = loaded.producers
        self.epochs = loaded.epochs
        self.aborted = loaded.aborted
        self.aborted.rebuild = self._rebuild_aborted
        self.failure = ""
        """Why the log takes no more appends; empty while it does."""
        self.topic_id = known_topic_id(directory / PARTITION_METADATA)
        """As in partition.metadata; `assign_topic_id` sets it."""
        self.committed: int | None = None
        self.archived: ArchivedLog | None = None
        self.archived_state = None
        self.told_archived_end = 0
        self.wanted_start_offset = 0
        self.start_wanted = self.archive_moved = lambda: None
        self.before_truncation: Callable[[int], None] = lambda offset: None
        """Called with an offset before records from there on are dropped, to lower the checkpoints. Raises OSError."""
        self.disk = disk
        self._clock = clock
        self._segments = Segments(directory, loaded.segments, clock, opened)
        self._start = loaded.log_start_offset
        self._is_start_known = loaded.is_start_known
        self._end = loaded.log_end_offset
        self._is_writing = False
        """Whether a pending append is writing to the active segment, perhaps in another thread."""
        self._is_sealed = loaded.is_sealed
        synced_base = self._segments.active.base_offset if loaded.is_sealed and self._end else -1
        self._snapshots = ProducerSnapshots(directory)
        self._flusher = Flusher(
            directory, loaded.recovery_point, clock, self.epochs, self._snapshots, synced_base=synced_base
        )

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        opened: OpenSegments | None = None,
        disk: Disk | None = None,
    ) -> Log:
        """Open or create a partition directory. Unless `clean`, verifies everything after `recovery_point`.

        `log_start_offset` of None: where its first segment begins. `opened` bounds the open files of many logs. `disk`
        is the disk of the data directory.
        Raises BrokerError `kafka_storage_error`, CorruptBatch.
        """
        opened = OpenSegments() if opened is None else opened
        with wrap_disk_errors("open", directory):
            directory.mkdir(parents=True, exist_ok=True)
            loaded = load_log(
                directory,
                config,
                clock,
                opened,
                clean=clean,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
            )
            return cls(directory, config, clock, opened, loaded, disk or Disk(directory.parent))

    # --- state

    @property
    def is_slow(self) -> bool:
        """Whether a write to this disk took long a moment ago, so that the next one may take long too."""
        until = self.disk.slow_until
        return until > 0 and self._clock.monotonic() < until

    @property
    def recovery_point(self) -> int:
        """Records before this offset have been fsynced."""
        return self._flusher.recovery_point

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Write the topic's id beside the segments. Raises BrokerError `kafka_storage_error`."""
        if topic_id == self.topic_id:
            return
        with wrap_disk_errors("write the topic id of", self.directory):
            write_topic_id(self.directory / PARTITION_METADATA, topic_id)
        self.topic_id = topic_id

    # --- appending

    def prepare_append(self, check: BatchCheck, *, leader_epoch: int) -> PendingAppend[AppendResult]:
        """Append a client's batch whose check is done. Complete one pending append before you begin the next.

        Raises BrokerError: `record_list_too_large`, `out_of_order_sequence_number`, `invalid_producer_epoch`,
        `invalid_txn_state`, `kafka_storage_error`.
        """
        header = check.header
        if header.producer_id >= 0:
            known = self.producers.check(header)
            if known is not None:
                return AppendResult(known.base_offset, known.last_offset, known.timestamp, self._start, True)
        check_fits_segment(check.batch, self.config)
        return (yield from self._append(check.batch, [(0, header)], leader_epoch))

    def check_coordinator_batches(self, records: bytes | WritableBuffer) -> tuple[WritableBuffer, Batches]:
        """A coordinator's batches as `prepare_coordinator_append` takes them.

        Raises BrokerError: `message_too_large`, `record_list_too_large`, `corrupt_message`.
        """
        return (buffer := writable(records)), coordinator_batches(buffer, self.config)

    def prepare_coordinator_append(
        self, buffer: WritableBuffer, batches: Batches, *, leader_epoch: int
    ) -> PendingAppend[AppendResult]:
        """Append batches of a coordinator. They may have producer ids, but no sequences. Raises as `prepare_append`."""
        for _, header in batches:
            self.producers.check_epoch(header)
        return (yield from self._append(buffer, batches, leader_epoch))

    def _append(self, buffer: WritableBuffer, batches: Batches, leader_epoch: int) -> PendingAppend[AppendResult]:
        base_offset, now = self._end, self._clock.now_ms()
        append_time = now if self.config.stamps_append_time else NO_TIMESTAMP
        if append_time >= 0:
            batches = stamp_append_time(buffer, batches, now)
        placed = assign_offsets(buffer, batches, base_offset, leader_epoch)
        yield from self._write(buffer, placed, base_offset, leader_epoch, now)
        for last_offset, header in placed:
            if header.producer_id >= 0:
                self.producers.record(header, last_offset - header.last_offset_delta, now)
        return AppendResult(base_offset, self._end - 1, append_time, self._start, False)

    def prepare_marker(self, marker: EndMarker, *, leader_epoch: int) -> PendingAppend[AppendResult]:
        """Append a marker: it ends the producer's open transaction, if any, and sets its epoch to the marker's.

        Raises BrokerError: `invalid_producer_epoch` or `transaction_coordinator_fenced` for an epoch older than the
        known one, or for a marker that came so late that it would end another transaction; `kafka_storage_error`.
        """
        producer_id, producer_epoch, control_type, coordinator_epoch, version = marker
        self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, version)
        now = self._clock.now_ms()
        buffer = bytearray(end_transaction_marker(*marker[:-1], now))
        offset = self._end
        placed = assign_offsets(buffer, [(0, parse_header(buffer))], offset, leader_epoch)
        yield from self._write(buffer, placed, offset, leader_epoch, now)
        if control_type is ControlType.ABORT:
            with self._undo_on_error(offset):
                note_aborted(self.aborted, self.producers, self._segments.active.base_offset, producer_id, offset)
        self.producers.end_transaction(producer_id, producer_epoch, coordinator_epoch, now, offset)
        return AppendResult(offset, offset, NO_TIMESTAMP, self._start, False)

    def prepare_follower_append(self, records: Buffer, epoch: int = sys.maxsize) -> PendingAppend[FollowerAppend]:
        """Append the whole batches of the leader of `epoch` as they are, with their offsets and epochs.

        Raises as `plan_follower_append`, and BrokerError `kafka_storage_error`. If the batches need several segments
        and the disk refuses one, those before it stay in the log.
        """
        empty = len(self._segments) == 1 and not self.size
        plan = plan_follower_append(records, self._end, (self.epochs.latest, epoch), self.config.segment_bytes, empty)
        self._check_writable()
        if plan.has_gaps:
            with wrap_disk_errors("append to", self.directory):
                mark_compacted(self.directory)  # first, or recovery takes the gaps for damage
        for run in plan.runs:
            yield from self._append_run(run)
        return plan.result

    def _append_run(self, run: FollowerRun) -> PendingAppend[None]:
        epoch_start, base_offset, now = self._end, run.batches[0][1].base_offset, self._clock.now_ms()
        placed = [(header.last_offset, header) for _, header in run.batches]
        yield from self._write(run.buffer, placed, base_offset, NO_EPOCH, now)
        for last_offset, header in placed:
            self.epochs.assign(header.leader_epoch, epoch_start)
            epoch_start = last_offset + 1
        if not self.config.remote_storage_enable:
            self._start = max(self._start, self._segments.first.base_offset)
        if all(header.producer_id < 0 for _, header in run.batches):
            return
        active, replay = self._segments.active, Replay(self.producers, now, self.aborted)
        moved_by = active.size - len(run.buffer) - run.start
        with self._undo_on_error(base_offset):
            file = active.file()
            for position, header in run.batches:
                replay.take(file, position + moved_by, header, active.base_offset)

    @contextmanager
    def _undo_on_error(self, offset: int) -> Iterator[None]:
        """Remove the batches from `offset` on, which were just written, if aborted transactions cannot be noted."""
        try:
            yield
        except OSError as error:
            with wrap_disk_errors("cut", self.directory), self._truncation(offset):
                self._cut(offset)
            raise storage_error("note an aborted transaction in", self.directory, error) from error

    def _write(
        self, buffer: WritableBuffer, placed: PlacedBatches, base_offset: int, leader_epoch: int, now: int
    ) -> PendingAppend[None]:
        self._check_writable()
        try:
            active = self._segments.active
            if must_roll(active, self.config, len(buffer), placed, base_offset, now):
                self._roll(base_offset)
                active = self._segments.active
            file = active.begin_append()
            self._is_writing = True
            try:
                yield partial(self._write_bytes, file, buffer, active.size)
            finally:
                self._is_writing = False
            self._check_writable()
            try:
                active.append(placed)
            except (OSError, CorruptBatch):
                file.truncate(active.size)
                raise
        except OSError as error:
            raise self.disk.refused(self.directory, len(buffer), error) from error
        if self.disk.failure:
            self.disk.taken()
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        self._end = placed[-1][0] + 1
        self._is_sealed = False

    def _check_writable(self) -> None:
        reason = f"{self.directory}: an append is under way" if self._is_writing else self.failure
        if reason:
            raise BrokerError(ErrorCode.kafka_storage_error, reason)

    def _write_bytes(self, file: SegmentFile, buffer: WritableBuffer, position: int) -> None:
        """The blocking step of an append. It may run in any thread, so it touches no other state of the log."""
        waits, began = thread_waits(), self._clock.monotonic()
        file.pwrite(buffer, position)
        self.disk.wrote(began, self._clock.monotonic(), waits)

    # --- flushing

    def flush_due(self) -> bool:
        """Whether flush.messages or flush.ms ask for a `flush` before appends are acknowledged."""
        return self._flusher.due(self.config, self._end)

    def needs_background_flush(self) -> bool:
        """Whether a flush is due or a rolled segment is not synced yet."""
        return self.recovery_point < self._segments.active.base_offset or self.flush_due()

    def flush(self) -> None:
        """fsync everything appended so far. Any thread may call this.

        Raises BrokerError `kafka_storage_error`. The log then takes no more appends: the kernel may have dropped the
        pages that it could not write.
        """
        end = self._end
        try:
            self._flusher.flush(tuple(self._segments), end)
        except OSError as error:
            if self._flusher.has_failed:
                self.failure = f"{self.directory}: fsync failed ({error.strerror}); restart the broker to recover"
            raise storage_error("flush", self.directory, error) from error

    def save_epochs(self) -> None:
        """Write the leader epochs if they changed; from any thread. Raises BrokerError `kafka_storage_error`."""
        if not self.epochs.is_saved:
            with wrap_disk_errors("write the leader epochs of", self.directory):
                self.epochs.save()

    # --- rolling, retention, compaction, truncation

    def _rebuild_aborted(self, broken: BrokenIndex) -> None:
        rebuild_aborted(self.directory, tuple(self._segments), broken, self.aborted, self._clock.now_ms())

    def roll(self) -> None:
        """Close the active segment and begin a new one, unless it is empty or an append is writing to it."""
        with wrap_disk_errors("roll", self.directory):
            self._roll(self._end)

    def roll_if_aged(self) -> None:
        """Roll an active segment that is older than segment.ms, without waiting for an append."""
        if is_aged(self._segments.active, self.config, self._clock.now_ms()):
            self.roll()

    def _roll(self, base_offset: int) -> None:
        if not self._is_writing and self._segments.active.base_offset != base_offset:
            self._segments.roll(base_offset, self.config)
            self._snapshots.take(base_offset, self.producers)  # last, because a refused append is retried again

    def begin_after_archive(self, state: ArchivedState) -> None:
        """Drop everything and begin at `state.offset`: the archive has all records before it.

        Raises BrokerError `kafka_storage_error`.
        """
        producers = state.decode_producers(self._clock.now_ms())
        self._restart(state.offset, state.epochs, producers)
        self._start, self._is_start_known = min(state.start, state.offset), True
        self.epochs.truncate_from_start(self._start)

    def replace_segments(self, old: Sequence[Segment], cleaned: Path, size: int) -> bool:
        """Replace `old` by the segment of `size` bytes in the directory `cleaned`, which was compacted from them.

        Returns False and does nothing when retention or a truncation has removed some of them meanwhile.
        Raises BrokerError `kafka_storage_error`; the log then takes no more appends until the broker restarts.
        """
        if self.failure or self.config.remote_storage_enable or not self._segments.holds_closed(old):
            return False  # an archived segment never changes
        with wrap_disk_errors("compact", self.directory):
            try:
                deleted = self._segments.swap_in(old, cleaned, size, self.config)
            except OSError:
                self.failure = f"{self.directory}: a swap of segments was cut short; restart the broker to finish it"
                raise
        self.aborted.forget(old[0].base_offset, old[-1].base_offset + 1)
        deleted += [segment_path(self.directory, segment.base_offset, SNAPSHOT_SUFFIX) for segment in old[1:]]
        self._segments.deleted.add(self._clock.now_ms() + self.config.file_delete_delay_ms, deleted)
        return True

    def producers_before(self, offset: int) -> Callable[[], ProducerStates | None]:
        """A step that blocks, for any thread: it reads what `truncate_to` needs, or gives None when it cannot."""
        segments, now = tuple(self._segments), self._clock.now_ms()
        return partial(try_rebuild_producers, self.directory, segments, offset, now)

    def truncate_to(self, offset: int, producers: ProducerStates | None = None) -> None:
        """Drop the batch that holds `offset` and everything after it. A follower does this when it diverged.

        `producers`: what `producers_before(offset)` has read. Reading that may take seconds.
        Below its start the log becomes empty and starts at `offset`. Below its local start it becomes empty, too, and
        begins at the log start: what the archive alone has cannot be cut here.
        Raises BrokerError `kafka_storage_error`.
        """
        if offset < self.local_start_offset:
            self.truncate_fully_and_start_at(min(offset, self._start))
        elif offset < self._end:
            self._check_writable()
            with wrap_disk_errors("truncate", self.directory), self._truncation(offset):
                self._cut(offset, producers)
                self.epochs.save_truncation()  # the next records may be of an older epoch

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and start at `offset`, as the leader's log does. Raises BrokerError `kafka_storage_error`.

        With an archive this is where the local log starts.
        """
        start = min(self._start, offset) if self.config.remote_storage_enable else offset
        self._restart(offset, (), ProducerStates())
        self._start = start
        self._doubt_archive()

    def _restart(self, offset: int, epochs: Sequence[tuple[int, int]], producers: ProducerStates) -> None:
        """What was before `offset` is on disk before the new segment: a start without a segment forgets it."""
        self._check_writable()
        self._start = min(self._start, offset)
        with wrap_disk_errors("truncate", self.directory), self._truncation(offset):
            self._segments.unlink_all()
            self._forget_after(-1)
            self.epochs.save_truncation()
            self.aborted.forget(0, sys.maxsize)
            if epochs:
                self.epochs.begin_with(epochs)
                self.epochs.save()
            if len(producers):
                self._snapshots.write(offset, producers)
            self.producers = producers
            self._segments.start_at(offset, self.config)
            self._start = self._end = offset

    def _cut(self, offset: int, producers: ProducerStates | None = None) -> None:
        self._end = self._segments.cut(offset)
        if self._end < offset:
            self.before_truncation(self._end)  # the offset lay inside a batch
        self._start = min(self._start, self._end)  # the dropped batch may have held the start as well
        self._forget_after(self._end)
        self._flusher.truncate(self._end)
        self.aborted.truncate(self._end)
        self._doubt_archive()
        if producers is None:
            producers = rebuild_producers(self.directory, tuple(self._segments), self._end, self._clock.now_ms())
        self.producers = producers

    @contextmanager
    def _truncation(self, offset: int) -> Iterator[None]:
        """Lower the recovery point and the checkpoints to `offset` before the records are dropped."""
        self._flusher.truncate(offset)
        self.before_truncation(offset)
        self._is_sealed = False
        try:
            yield
        except (OSError, CorruptBatch):
            self.failure = f"{self.directory}: a truncation was cut short; restart the broker to finish it"
            raise

    def _forget_after(self, end: int) -> None:
        """Forget the producer snapshots and the leader epochs of records that are dropped."""
        self._snapshots.truncate(end)
        self.epochs.truncate_from_end(end)

    def update_config(self, config: LogConfig) -> None:
        """Use new settings from the next append, roll or retention check on."""
        if self.config.remote_storage_enable and not config.remote_storage_enable:
            self._leave_archive()
        self.config = config
        self._segments.active.set_index_interval(config.index_interval_bytes)

    def take_deleted(self) -> list[Path]:
        """Files of deleted segments whose file.delete.delay.ms is over, for the caller to unlink."""
        return self._segments.deleted.take(self._clock.now_ms())

    # --- closing

    def close(self) -> None:
        """Sync the log and write its indexes and producer state, so that the next start has nothing to recover."""
        self._check_writable()
        with wrap_disk_errors("close", self.directory):
            if not self._is_sealed:
                self._segments.active.seal()
                self._snapshots.write(self._end, self.producers)
                if self.recovery_point < self._end:
                    self.flush()
                self._is_sealed = True
            self.save_epochs()
            self.release()
        self.failure = self.failure or f"{self.directory} is closed"

    def release(self) -> None:
        """Close all files and mapped indexes; the next use opens them again."""
        for segment in self._segments:
            segment.close()

    def delete(self) -> Path:
        """Rename the directory to `<name>.<unique>-delete`; returns it, for the caller to remove.

        Slices that are being sent keep their files. Raises BrokerError `kafka_storage_error`.
        """
        self.failure = f"{self.directory} is deleted"
        renamed = self.directory.with_name(f"{self.directory.name[:200]}.{uuid.uuid4().hex}{DELETED_DIRECTORY_SUFFIX}")
        with wrap_disk_errors("delete", self.directory):
            self.release()
            self.epochs.abandon()
            self._snapshots.abandon()
            return self.directory.rename(renamed)
