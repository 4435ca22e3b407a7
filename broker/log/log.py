"""One partition: an append-only run of segments, and the rules of appending to it and reading it.

Called by replica/partition.py and manager.py. What is to be appended is checked by append_checks.py; here offsets and
leader epoch are patched into the headers of batches and their bytes written. Whatever raises leaves the log as it was.
One thread, the event loop's, owns a log; only `flush` may run in another while it goes on, and the write of an append
made in steps: nobody sees that before its end. How segments come and go is in stored_log.py. Idea: Kafka's
`UnifiedLog`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from broker.clock import Clock
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log import timestamps
from broker.log.aborted_index import AbortedTransaction
from broker.log.append_checks import (
    BatchCheck,
    Batches,
    assign_offsets,
    begin_checks,
    coordinator_batches,
    joined,
    stamp_append_time,
    writable,
)
from broker.log.disk import Disk
from broker.log.log_config import LogConfig
from broker.log.open_segments import OpenSegments
from broker.log.recovery import load_log
from broker.log.replay import note_aborted
from broker.log.rolling import must_roll
from broker.log.segment_file import FileSlice, SegmentFile
from broker.log.steps import Steps, at_once
from broker.log.storage_errors import storage_error, storage_errors
from broker.log.stored_log import StoredLog
from broker.records.batch import parse_header
from broker.records.control import ControlType, end_transaction_marker

__all__ = ["AppendResult", "Log"]

NO_TIMESTAMP = -1


class AppendResult(NamedTuple):
    """Where an append landed. `log_append_time` (ms) is -1 unless the broker stamps batches; `duplicate` means that the
    batch was in the log already, at these offsets, and nothing was written: then the time is that of its newest
    record, as Kafka has it."""

    base_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool


class Log(StoredLog):
    """The log of one partition. Made by `Log.open`."""

    @classmethod
    def open(
        cls,
        directory: Path,
        config: LogConfig,
        clock: Clock,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        opened: OpenSegments | None = None,
        disk: Disk | None = None,
    ) -> Log:
        """Open a partition directory, or create it. Unless `clean`, what lies past `recovery_point` is verified.

        `opened` bounds descriptors over many logs; `disk` is that of the data directory, told of appends.
        Raises BrokerError `kafka_storage_error`, CorruptBatch.
        """
        opened = OpenSegments() if opened is None else opened
        with storage_errors("open", directory):
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

    def end_offset_for_epoch(self, epoch: int, leader_epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to `epoch`; (-1, -1) when unknown (KIP-101, KIP-320).

        `leader_epoch` is the one that appends are of now, whether there was one yet or not.
        """
        return self.epochs.end_offset(epoch, leader_epoch, self._end)

    # --- appending

    def append(
        self, records: bytes | bytearray | memoryview, *, leader_epoch: int, from_coordinator: bool = False
    ) -> AppendResult:
        """Check and append batches. A writable buffer is patched in place, another is copied.

        `from_coordinator` takes batches with a producer id and no sequence: offsets committed in a transaction.
        Raises BrokerError, as `BatchCheck` and `append_checked` do.
        """
        if from_coordinator:
            return at_once(self.appending_own(*self.check_own(records), leader_epoch=leader_epoch))
        checks = begin_checks(records, self._config, self._clock.now_ms())
        for check in checks:
            check.run()
        return self.append_checked(checks, leader_epoch=leader_epoch)

    def append_checked(self, checks: Sequence[BatchCheck], *, leader_epoch: int) -> AppendResult:
        """Append the batches of a client whose checks are done, all of it here; raises as `appending` does."""
        return at_once(self.appending(checks, leader_epoch=leader_epoch))

    def appending(self, checks: Sequence[BatchCheck], *, leader_epoch: int) -> Steps[AppendResult]:
        """The same in steps: the write may be done in another thread. The next append begins after the end of this one.

        Raises BrokerError: `message_too_large`, `record_list_too_large`, `out_of_order_sequence_number`,
        `invalid_producer_epoch`, `invalid_txn_state`, `kafka_storage_error`.
        """
        first = checks[0]
        buffer: bytearray | memoryview = first.batch
        batches: Batches = [(0, first.header)]
        if len(checks) > 1:
            buffer, batches = joined(checks)
        if first.header.producer_id >= 0:
            known = self._producers.check(first.header)
            if known is not None:
                return AppendResult(known.base_offset, known.last_offset, known.timestamp, self._start, True)
        self._check_size(buffer)
        return (yield from self._append(buffer, batches, leader_epoch))

    def check_own(self, records: bytes | bytearray | memoryview) -> tuple[bytearray | memoryview, Batches]:
        """Batches of a coordinator, for `appending_own`: raises now what nobody has to wait for, that they are
        too large (`message_too_large`, `record_list_too_large`)."""
        buffer = writable(records)
        batches = coordinator_batches(buffer, self._config)
        self._check_size(buffer)
        return buffer, batches

    def appending_own(
        self, buffer: bytearray | memoryview, batches: Batches, *, leader_epoch: int
    ) -> Steps[AppendResult]:
        """Append what `check_own` gave; as `appending`, but there are no sequences."""
        for _, header in batches:
            self._producers.check_epoch(header)
        return (yield from self._append(buffer, batches, leader_epoch))

    def _check_size(self, buffer: bytearray | memoryview) -> None:
        if len(buffer) > self._config.segment_bytes:
            raise BrokerError(
                ErrorCode.record_list_too_large,
                f"{len(buffer)} bytes of records; segment.bytes is {self._config.segment_bytes}",
            )

    def _append(self, buffer: bytearray | memoryview, batches: Batches, leader_epoch: int) -> Steps[AppendResult]:
        base_offset, now = self._end, self._clock.now_ms()
        append_time = now if self._config.stamps_append_time else NO_TIMESTAMP
        if append_time >= 0:
            batches = stamp_append_time(buffer, batches, now)
        end = assign_offsets(buffer, batches, base_offset, leader_epoch)
        yield from self._write(buffer, batches, base_offset, end, leader_epoch, now)
        offset = base_offset
        for _, header in batches:
            if header.producer_id >= 0:
                self._producers.record(header, offset, now)
            offset += header.last_offset_delta + 1
        return AppendResult(base_offset, end - 1, append_time, self._start, False)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        *,
        leader_epoch: int,
    ) -> AppendResult:
        """End a producer's transaction, all of it here; raises as `ending` does."""
        ending = self.ending(producer_id, producer_epoch, control_type, coordinator_epoch, leader_epoch=leader_epoch)
        return at_once(ending)

    def ending(
        self,
        producer_id: int,
        producer_epoch: int,
        control_type: ControlType,
        coordinator_epoch: int,
        *,
        leader_epoch: int,
    ) -> Steps[AppendResult]:
        """End a producer's open transaction, if it has one; its epoch is `producer_epoch` from then on. In steps, as
        `appending`.

        Raises BrokerError: `invalid_producer_epoch` and `transaction_coordinator_fenced` for older epochs than
        known, `kafka_storage_error`.
        """
        self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        now = self._clock.now_ms()
        marker = bytearray(end_transaction_marker(producer_id, producer_epoch, control_type, coordinator_epoch, now))
        batches = [(0, parse_header(marker))]
        offset = self._end
        assign_offsets(marker, batches, offset, leader_epoch)
        yield from self._write(marker, batches, offset, offset + 1, leader_epoch, now)
        if control_type is ControlType.ABORT:
            self._note_aborted(producer_id, offset, len(marker))
        self._producers.end_transaction(producer_id, producer_epoch, coordinator_epoch, now, offset)
        return AppendResult(offset, offset, NO_TIMESTAMP, self._start, False)

    def _note_aborted(self, producer_id: int, offset: int, size: int) -> None:
        """Note what the marker of `size` bytes, just written at `offset`, aborts; else the marker must go again."""
        active = self._segments.active
        try:
            note_aborted(self._aborted, self._producers, active.base_offset, producer_id, offset)
        except OSError as error:
            with storage_errors("cut", self.directory):
                active.cut(active.size - size)
            self._end = offset
            raise storage_error("note an aborted transaction in", self.directory, error) from error

    def _write(
        self,
        buffer: bytearray | memoryview,
        batches: Batches,
        base_offset: int,
        end: int,
        leader_epoch: int,
        now: int,
    ) -> Steps[None]:
        if self._is_writing:
            raise BrokerError(ErrorCode.kafka_storage_error, f"{self.directory}: an append is under way")
        self._check_usable()
        try:
            active = self._segments.active
            newest = (
                max(header.max_timestamp for _, header in batches) if len(batches) > 1 else batches[0][1].max_timestamp
            )
            if must_roll(active, self._config, len(buffer), newest, end - 1, now):
                self._roll()
                active = self._segments.active
            file = active.begin_append()
            self._is_writing = True
            try:
                yield partial(self._put, file, buffer, active.size)
            finally:
                self._is_writing = False
            self._check_usable()
            try:
                active.append(batches, base_offset)
            except (OSError, CorruptBatch):
                file.truncate(active.size)
                raise
        except OSError as error:
            raise self._disk.refused(self.directory, len(buffer), error) from error
        if self._disk.failure:
            self._disk.taken()
        if leader_epoch > self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        self._end = end
        self._is_sealed = False

    def _check_usable(self) -> None:
        if self._failure:
            raise BrokerError(ErrorCode.kafka_storage_error, self._failure)

    def _put(self, file: SegmentFile, buffer: bytearray | memoryview, position: int) -> None:
        """What blocks in an append; touches nothing of the log, for it may run in any thread."""
        began = self._clock.monotonic()
        file.pwrite(buffer, position)
        self._disk.wrote(began, self._clock.monotonic())

    # --- reading

    def read(self, offset: int, max_bytes: int, *, up_to: int | None = None) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below offset `up_to`; None when there is none.

        About `max_bytes`, but at least one batch; never past the end of a segment. Costs the same whatever
        the log's size. Raises BrokerError `offset_out_of_range`, `kafka_storage_error`.
        """
        end = self._end
        if not self._start <= offset <= end:
            raise BrokerError(
                ErrorCode.offset_out_of_range,
                f"offset {offset} is not in [{self._start}, {end}] of {self.directory.name}",
            )
        if up_to is None or up_to > end:
            up_to = end
        if offset >= up_to:
            return None
        try:
            return self._segments.read(offset, max_bytes, up_to, end)
        except OSError as error:
            raise storage_error("read", self.directory, error) from error

    def aborted_between(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions with records in [start, end): a reader of committed data leaves those out.

        Raises BrokerError `kafka_storage_error`.
        """
        if not self._aborted:
            return []
        return [AbortedTransaction(*entry[:2]) for entry in self.aborted_entries(start, end)]

    def aborted_in(self, offset: int, found: FileSlice, up_to: int) -> list[AbortedTransaction]:
        """Those of `found`, which `read` just gave for `offset` and `up_to`, and perhaps some after it."""
        if not self._aborted:
            return []
        past = self._segments.offset_after(offset, found)
        return self.aborted_between(offset, up_to if past is None else min(past, up_to))

    def offset_for_timestamp(self, ms: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record as new as `ms`; None when there is none."""
        try:
            return timestamps.first_since(tuple(self._segments), ms, self._start)
        except OSError as error:
            raise storage_error("read", self.directory, error) from error

    def max_timestamp(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the newest timestamp; None without timestamps."""
        try:
            return timestamps.newest(tuple(self._segments), self._start)
        except OSError as error:
            raise storage_error("read", self.directory, error) from error
