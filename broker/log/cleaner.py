"""Compaction of all logs with cleanup.policy=compact: choosing the next log, and swapping in compacted segments.

Owned by manager.py. `tick` runs in the owner's thread and is quick: it swaps finished segments in and chooses the next
log, one at a time, the one with the largest dirty ratio first. The compaction itself runs in another process; a job
given to `run` waits for it. `cleaner-offset-checkpoint` (Kafka's format) says how far each log is clean. It is written
after the swaps, so after a crash a compaction is repeated at worst. Idea: Kafka's `LogCleaner` and `LogCleanerManager`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from broker.clock import Clock
from broker.config.setting_groups import CleanerSettings
from broker.config.topic_settings import UNLIMITED
from broker.errors import BrokerError, CorruptBatch
from broker.log.checkpoints import CLEAN_OFFSETS
from broker.log.compaction_process import (
    Compacted,
    CompactionPlan,
    CompactionProcess,
    CompactionResult,
    LastOfProducer,
    PlannedSegment,
)
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.log_directory import LogDirectory
from broker.log.producer_state import NO_OFFSET, ProducerEntry
from broker.log.segment import Segment
from broker.metrics import CleanerMetrics
from broker.protocol.topic_partition import TopicPartition
from broker.records.aborted_entries import AbortedEntry

logger = logging.getLogger(__name__)

Run = Callable[[Callable[[], None]], object]
"""Runs a job, here or in another thread; what it returns is ignored."""


class SingleJob:
    """One job at a time, which may run in another thread."""

    def __init__(self) -> None:
        self.is_running = False

    def start(self, run: Run, work: Callable[[], None]) -> None:
        def job() -> None:
            try:
                work()
            finally:
                self.is_running = False

        self.is_running = True
        try:
            run(job)
        except BaseException:
            self.is_running = False
            raise


@dataclass
class _Cleaning:
    """A compaction under way. Not `valid` any more once the log changed meanwhile: its results are then dropped."""

    tp: TopicPartition
    log: Log
    plan: CompactionPlan
    segments: Sequence[Segment]
    valid: bool = True


class Cleaner:
    def __init__(
        self,
        directories: Sequence[LogDirectory],
        logs: Mapping[TopicPartition, Log],
        clock: Clock,
        settings: CleanerSettings,
        remove_later: Callable[[Iterable[Path], int], None],
        compactor: CompactionProcess | None = None,
    ) -> None:
        """`remove_later(paths, ms)` unlinks in a worker thread."""
        self.settings = settings
        self.metrics = CleanerMetrics()
        self._remove_later = remove_later
        self._directories = directories
        self._logs = logs
        self._clock = clock
        self._compactor = CompactionProcess() if compactor is None else compactor
        self._clean_offsets: dict[TopicPartition, int] = {}
        self._uncleanable: dict[TopicPartition, Log] = {}
        self._cleaning: _Cleaning | None = None
        self._answers: SimpleQueue[Compacted | CompactionResult | Exception] = SimpleQueue()
        self._job = SingleJob()
        self._checkpoint_due = False
        self._look_again = 0.0

    def load(self, directory: LogDirectory) -> None:
        """Read how far the logs of a directory are clean. Raises OSError."""
        self._clean_offsets |= directory.read(CLEAN_OFFSETS)

    def forget(self, tp: TopicPartition) -> None:
        """The partition was deleted; a new one of that name starts without a clean offset."""
        self._clean_offsets.pop(tp, None)

    def truncated(self, tp: TopicPartition, offset: int) -> None:
        """The log is cut at `offset`: records from there on are new, and a compaction under way is of no use."""
        clean = self._clean_offsets.get(tp)
        if clean is not None and clean > offset:
            self._clean_offsets[tp] = offset
        if self._cleaning is not None and self._cleaning.tp == tp:
            self._cleaning.valid = False

    def tick(self, run: Run) -> None:
        """Swap in the segments that are ready, and start the next compaction if one is due."""
        self._take_answers()
        if self._job.is_running or self._cleaning is not None:
            return
        if self._checkpoint_due:
            self._checkpoint_due = False
            self._job.start(run, self._write_checkpoints)
        elif self.settings.log_cleaner_enable and self._clock.monotonic() >= self._look_again:
            chosen = self._dirtiest()
            if chosen is None:
                self._look_again = self._clock.monotonic() + self.settings.log_cleaner_backoff_ms / 1000
                if self._compactor.is_running:
                    self._job.start(run, self._compactor.rest)
            else:
                self._start(run, *chosen)

    def close(self) -> None:
        """Stop a running compaction; the next start repeats what it did not finish."""
        self._compactor.close()
        self._take_answers()
        if self._checkpoint_due:
            self._write_checkpoints()

    # --- which log

    def _dirtiest(self) -> tuple[TopicPartition, Log, Cleanable] | None:
        now_ms = self._clock.now_ms()
        found: tuple[TopicPartition, Log, Cleanable] | None = None
        for tp, log in self._logs.items():
            if not log.config.is_compacted or log.failure or self._uncleanable.get(tp) is log:
                continue
            try:
                state = cleanable_part(log, self._clean_offsets.get(tp), now_ms)
            except (OSError, CorruptBatch) as error:
                logger.error("%s cannot be looked at for compaction: %s", tp, error)
                continue
            if state is not None and state.is_due and (found is None or state.ratio > found[2].ratio):
                found = tp, log, state
        return found

    def _start(self, run: Run, tp: TopicPartition, log: Log, state: Cleanable) -> None:
        try:
            plan = self._plan(log, state)
        except BrokerError as error:
            logger.error("%s is not compacted any more until the broker starts again: %s", tp, error)
            self._give_up(tp, log)
            return
        self._cleaning = _Cleaning(tp, log, plan, state.segments)
        try:
            self._job.start(run, lambda: self._compact(plan))
        except BaseException:
            self._cleaning = None
            raise

    def _plan(self, log: Log, state: Cleanable) -> CompactionPlan:
        segments, config = state.segments, log.config
        return CompactionPlan(
            directory=log.directory,
            segments=tuple(PlannedSegment(segment.base_offset, segment.size) for segment in segments),
            first_dirty_offset=state.first_dirty_offset,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            segment_bytes=config.segment_bytes,
            index_interval=config.index_interval_bytes,
            producers={entry.producer_id: _last_of(entry) for entry in log.producers},
            aborted=_aborted_in(log, segments),
            map_bytes=self.settings.log_cleaner_dedupe_buffer_size,
            bytes_per_second=self.settings.log_cleaner_io_max_bytes_per_second,
        )

    # --- the work, in a worker thread

    def _compact(self, plan: CompactionPlan) -> None:
        try:
            for answer in self._compactor.compact(plan):
                self._answers.put(answer)
        except Exception as error:
            self._answers.put(error)

    def _write_checkpoints(self) -> None:
        """Write the clean offsets, without those of deleted logs; from any thread."""
        for directory in self._directories:
            try:
                directory.write(CLEAN_OFFSETS, partial(self._clean_in, directory))
            except OSError as error:
                logger.error("no checkpoint of what is compacted in %s: %s", directory.path, error)

    def _clean_in(self, directory: LogDirectory) -> dict[TopicPartition, int]:
        return {
            tp: offset
            for tp, offset in list(self._clean_offsets.items())
            if (log := self._logs.get(tp)) is not None and log.directory.parent == directory.path
        }

    # --- the results

    def _take_answers(self) -> None:
        while True:
            try:
                answer = self._answers.get_nowait()
            except Empty:
                return
            cleaning = self._cleaning
            if cleaning is None:
                continue
            if isinstance(answer, Compacted):
                self._swap_in(cleaning, answer)
            else:
                self._finish(cleaning, answer)

    def _swap_in(self, cleaning: _Cleaning, compacted: Compacted) -> None:
        """After one failed swap drop all later ones: a marker must not go before the batches of its transaction."""
        if (
            not cleaning.valid
            or self._logs.get(cleaning.tp) is not cleaning.log
            or not cleaning.log.config.is_compacted
        ):
            cleaning.valid = False
            return
        old = cleaning.segments[compacted.first : compacted.end]
        try:
            cleaning.valid = cleaning.log.replace_segments(old, cleaning.plan.cleaned_directory, compacted.size)
        except BrokerError as error:
            logger.error("%s", error)
            cleaning.valid = False

    def _finish(self, cleaning: _Cleaning, answer: CompactionResult | Exception) -> None:
        self._cleaning = None
        tp = cleaning.tp
        if not cleaning.valid:
            pass  # the log was cut while it was read
        elif not cleaning.log.config.is_compacted:  # retention may have taken the files away
            logger.info("the compaction of %s ended: its cleanup.policy is not compact any more", tp)
        elif isinstance(answer, CorruptBatch):
            logger.error("%s is not compacted any more until the broker starts again: %s", tp, answer.message)
            self._give_up(tp, cleaning.log)
        elif isinstance(answer, Exception):
            logger.error("compacting %s failed: %s", tp, answer)
            self._look_again = self._clock.monotonic() + self.settings.log_cleaner_backoff_ms / 1000
        elif self._logs.get(tp) is cleaning.log:
            self._count(answer)
            before = sum(segment.size for segment in cleaning.plan.segments)
            logger.info(
                "compacted %s up to offset %d: %d of %d records stay, %d of %d bytes",
                tp,
                answer.clean_offset,
                answer.records_kept,
                answer.records_read,
                answer.bytes_written,
                before,
            )
            self._clean_offsets[tp] = answer.clean_offset
            self._checkpoint_due = True
        if cleaning.plan.cleaned_directory.exists():
            self._remove_later([cleaning.plan.cleaned_directory], 0)

    def _give_up(self, tp: TopicPartition, log: Log) -> None:
        self._uncleanable[tp] = log
        self.metrics.uncleanable = len(self._uncleanable)

    def _count(self, result: CompactionResult) -> None:
        counted = self.metrics
        counted.runs += 1
        counted.bytes_read += result.bytes_read
        counted.bytes_written += result.bytes_written
        counted.records_read += result.records_read
        counted.records_kept += result.records_kept


def _last_of(entry: ProducerEntry) -> LastOfProducer:
    """The producer's last batch with a sequence or, for a coordinator, which writes none, its last marker."""
    last = entry.batches[-1].last_offset if entry.batches else entry.last_marker_offset
    return LastOfProducer(None if last == NO_OFFSET else last, entry.epoch)


def _aborted_in(log: Log, segments: Sequence[Segment]) -> tuple[AbortedEntry, ...]:
    """The aborted transactions with records in `segments`. Raises BrokerError."""
    end = next(following.base_offset for following in log.segments if following.base_offset > segments[-1].base_offset)
    return tuple(log.aborted.between(segments[0].base_offset, end))


class Cleanable(NamedTuple):
    """The part of a log that may be compacted now."""

    first_dirty_offset: int
    segments: tuple[Segment, ...]
    """From the log's first segment to the last that may be cleaned."""
    ratio: float
    """The dirty ratio: bytes that were never compacted, as a share of all bytes in `segments`."""
    is_due: bool


def cleanable_part(log: Log, clean_offset: int | None, now_ms: int) -> Cleanable | None:
    """None when no closed segment is dirty. `clean_offset` is where the last compaction ended, None before the first.

    Quick: needs only sizes in memory and, for topics with a lag, timestamps of segments.
    """
    segments = log.segments
    if len(segments) == 1:
        return None
    first_dirty = log.log_start_offset
    if clean_offset is not None and first_dirty <= clean_offset <= log.log_end_offset:
        first_dirty = clean_offset
    closed = tuple(segments[:-1])
    dirty_from = sum(1 for following in segments[1:] if following.base_offset <= first_dirty)
    up_to = _stable(segments, log.first_unstable_offset, log.committed)
    if log.config.min_compaction_lag_ms:
        up_to = min(up_to, _old_enough(closed, dirty_from, now_ms - log.config.min_compaction_lag_ms))
    dirty = sum(segment.size for segment in closed[dirty_from:up_to])
    if not dirty:
        return None
    ratio = dirty / sum(segment.size for segment in closed[:up_to])
    is_due = ratio > log.config.min_cleanable_dirty_ratio or _has_waited(closed[dirty_from:], log.config, now_ms)
    return Cleanable(first_dirty, closed[:up_to], ratio, is_due)


def _stable(segments: Sequence[Segment], *bounds: int | None) -> int:
    """How many closed segments end before the first open transaction and the high watermark."""
    count = len(segments) - 1
    lowest = min((bound for bound in bounds if bound is not None), default=None)
    if lowest is not None:
        while count and segments[count].base_offset > lowest:
            count -= 1
    return count


def _old_enough(closed: Sequence[Segment], dirty_from: int, newest_ms: int) -> int:
    """How many closed segments come before the first dirty one with a record newer than `newest_ms`."""
    for number in range(dirty_from, len(closed)):
        if closed[number].newest_ms() > newest_ms:
            return number
    return len(closed)


def _has_waited(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """Whether a dirty record is older than max.compaction.lag.ms."""
    if config.max_compaction_lag_ms >= UNLIMITED:
        return False
    first = [segment.first_timestamp for segment in dirty]
    return any(0 < timestamp < now_ms - config.max_compaction_lag_ms for timestamp in first)
