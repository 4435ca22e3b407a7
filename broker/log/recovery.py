"""Bring a partition directory back to a consistent log when it is opened.

Called by `Log.open`. After a clean stop only the tail of the last segment is read, whatever the log's size. After any
other stop every batch from the recovery point on is verified. The log then ends before the first bad byte, whether
that is a torn tail or garbage in the middle, and later segments are deleted. Indexes, producer state and aborted
transactions of the verified part are rebuilt. Everything before the recovery point was fsynced and is trusted. A gap
between offsets is damage too, unless the log is or ever was compacted. Idea: Kafka's `LogLoader`.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from broker.clock import Clock
from broker.durable_files import TEMPORARY_SUFFIX
from broker.errors import CorruptBatch
from broker.log.aborted_index import AbortedIndex, BrokenIndex
from broker.log.checkpoints import LEADER_EPOCHS
from broker.log.leader_epochs import LeaderEpochs
from broker.log.log_config import LogConfig
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, drop_snapshots, load_snapshot, save_snapshot, snapshot_offsets
from broker.log.producer_state import NO_OFFSET, ProducerStates
from broker.log.segment import ABORTED_SUFFIX, DELETED_SUFFIX, MAX_RELATIVE_OFFSET, OpenSegments, Segment, segment_path
from broker.log.segment_file import SegmentFile, scan_headers, scan_verified, waiting
from broker.log.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX, finish_swaps, was_compacted
from broker.log.segments import new_segment
from broker.records.aborted_entries import AbortedEntry
from broker.records.batch import BatchHeader
from broker.records.control import ControlType, read_end_marker
from broker.stored_names import number_named

logger = logging.getLogger(__name__)

_LEFTOVERS = (DELETED_SUFFIX, TEMPORARY_SUFFIX)
_INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)


@dataclass
class LoadedLog:
    segments: list[Segment]
    producers: ProducerStates
    aborted: AbortedIndex
    epochs: LeaderEpochs
    log_start_offset: int
    is_start_known: bool
    """False when an archived log lacks the checkpoint of its start: it may have records from offset 0 on then, until
    the archive says more."""
    log_end_offset: int
    recovery_point: int
    is_sealed: bool
    """Whether nothing was appended since a clean close wrote indexes and producer state."""


def load_log(
    directory: Path,
    config: LogConfig,
    clock: Clock,
    opened: OpenSegments,
    *,
    clean: bool,
    recovery_point: int,
    log_start_offset: int | None,
) -> LoadedLog:
    """Read a partition directory. `log_start_offset` is that of the checkpoint, None without one.

    Raises OSError, and CorruptBatch for damage before the recovery point.
    """
    now = clock.now_ms()
    sizes, with_aborts = _list_segments(directory)
    aborted = AbortedIndex(directory, with_aborts)
    segments = [
        Segment(directory, base, opened, size=sizes[base], created_ms=now, index_interval=config.index_interval_bytes)
        for base in sorted(sizes)
    ]
    epochs = LeaderEpochs(directory / LEADER_EPOCHS)
    epochs_lost = epochs.is_lost and bool(segments)
    if not segments:  # a crash cut `truncate_fully_and_start_at` short, or the log is new
        drop_snapshots(directory, high=-1)
        epochs.truncate_from_end(-1)
    end: int | None = None
    producers: ProducerStates | None = None
    if segments and clean:
        end = _clean_end(segments[-1])
    if segments and end is None:
        # The policy may have changed since the last compaction.
        gaps_allowed = config.is_compacted or was_compacted(directory)
        recovery = _Recovery(directory, segments, epochs, aborted, now, gaps_allowed)
        end = recovery.run(recovery_point)
        producers = recovery.producers
        clean = False
    known_start = log_start_offset or 0
    if end is None or end < known_start:
        for segment in segments:
            for path in segment.mark_deleted():
                path.unlink()
        end = known_start
        segments = [new_segment(directory, end, config, clock, opened)]
        aborted, producers = AbortedIndex(directory), None
    if epochs_lost:
        _find_epochs(segments, epochs)
    drop_snapshots(directory, high=end)
    start, is_start_known = max(known_start, segments[0].base_offset), True
    if config.remote_storage_enable:  # the first records may be in the archive
        is_start_known = log_start_offset is not None or segments[0].base_offset == 0
        start = known_start
    epochs.truncate_from_end(end)
    if is_start_known:
        epochs.truncate_from_start(start)
    epochs.save()
    if producers is None:
        producers = rebuild_producers(directory, segments, end, now)
    sealed = clean and (end == segments[0].base_offset or segment_path(directory, end, SNAPSHOT_SUFFIX).exists())
    recovered_to = end if clean else min(recovery_point, end)
    return LoadedLog(segments, producers, aborted, epochs, start, is_start_known, end, recovered_to, sealed)


def rebuild_producers(directory: Path, segments: Sequence[Segment], end: int, now_ms: int) -> ProducerStates:
    """Producer state before the batch that holds `end`: the newest sound snapshot, plus the batches after that.

    From any thread, because it opens the files by itself. Raises OSError, CorruptBatch.
    """
    states, offset = _newest_snapshot(directory, end, now_ms) or (ProducerStates(), segments[0].base_offset)
    replay = Replay(states, now_ms)
    first = max(bisect_right([segment.base_offset for segment in segments], offset) - 1, 0)
    for segment in segments[first:]:
        if offset >= end or segment.base_offset >= end:
            break
        file = SegmentFile(segment.path(), writable=False)
        for position, header in scan_headers(file, 0, segment.size):
            if header.last_offset >= end:
                break
            if header.base_offset >= offset:
                replay.take(file, position, header, segment.base_offset)
    return states


def try_rebuild_producers(directory: Path, segments: Sequence[Segment], end: int, now_ms: int) -> ProducerStates | None:
    """As `rebuild_producers`; None when the files cannot be read, as when segments were deleted meanwhile."""
    with suppress(OSError, CorruptBatch):
        return rebuild_producers(directory, segments, end, now_ms)
    return None


def rebuild_aborted(
    directory: Path, segments: Sequence[Segment], broken: BrokenIndex, aborted: AbortedIndex, now_ms: int
) -> None:
    """Rebuild the index of the aborted transactions of one segment. Raises OSError."""
    logger.warning("%s; rebuilding the index of aborted transactions", broken)
    base_offset = broken.base_offset
    aborted.drop(base_offset)
    with waiting():
        states = rebuild_producers(directory, segments, base_offset, now_ms)
        segment = next(segment for segment in segments if segment.base_offset == base_offset)
        file, replay = segment.file(), Replay(states, now_ms, aborted)
        for position, header in segment.batches():
            replay.take(file, position, header, base_offset)


def _find_epochs(segments: Sequence[Segment], epochs: LeaderEpochs) -> None:
    """Collect the leader epochs from the batches of the whole log. Raises OSError, CorruptBatch.

    An epoch begins where the batch before it ends: see `LeaderEpochs.assign`.
    """
    epochs.truncate_from_end(0)
    end = segments[0].base_offset
    for segment in segments:
        for _, header in segment.batches():
            epochs.assign(header.leader_epoch, end)
            end = header.next_offset


def _newest_snapshot(directory: Path, end: int, now_ms: int) -> tuple[ProducerStates, int] | None:
    for candidate in reversed(snapshot_offsets(directory)):
        loaded = load_snapshot(directory, candidate, now_ms) if candidate <= end else None
        if loaded is not None:
            return loaded, candidate
    return None


@dataclass
class _Recovery:
    """Verifies the segments from the recovery point on, in order."""

    directory: Path
    segments: list[Segment]
    epochs: LeaderEpochs
    aborted: AbortedIndex
    now_ms: int
    gaps_allowed: bool
    """Compaction leaves gaps between offsets. Without it a gap means damage: the CRC does not cover base offsets."""
    producers: ProducerStates = field(default_factory=ProducerStates)
    """After `run`: the state at the log's end."""

    def run(self, recovery_point: int) -> int:
        """Truncate the log after its last sound batch and return its end offset."""
        bases = [segment.base_offset for segment in self.segments]
        first = max(bisect_right(bases, recovery_point) - 1, 0)
        end = bases[first]
        self.producers = rebuild_producers(self.directory, self.segments[: first or 1], end, self.now_ms)
        for number in range(first, len(self.segments)):
            segment = self.segments[number]
            if segment.base_offset != end and not self.gaps_allowed and number > first:
                self._drop(number, f"begins at offset {segment.base_offset} instead of {end}")
                break
            if len(self.producers):
                # The snapshot may not have been fsynced. Once older segments are deleted, nothing else has this state.
                save_snapshot(self.directory, segment.base_offset, self.producers)
            end, complaint = self._verify(segment, Replay(self.producers, self.now_ms, self.aborted))
            if complaint:
                logger.warning("%s is cut at byte %d: %s", segment.path(), segment.size, complaint)
                self._drop(number + 1, "follows a segment that was cut")
                break
        return end

    def _verify(self, segment: Segment, replay: Replay) -> tuple[int, str]:
        """Note every sound batch and truncate the rest; returns the end offset and what was wrong."""
        file_size, expected, complaint = segment.size, segment.base_offset, ""
        file = segment.begin_rebuild()
        segment.size = 0
        self.aborted.drop(segment.base_offset)
        try:
            for position, header in scan_verified(file, 0, file_size):
                base = header.base_offset
                if base != expected and not (self.gaps_allowed and expected < base):
                    raise CorruptBatch(f"offset {base} where {expected} was expected")
                if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                    raise CorruptBatch(f"offset {base} does not fit in the segment")
                segment.note(header, header.last_offset)
                replay.take(file, position, header, segment.base_offset)
                self.epochs.assign(header.leader_epoch, expected)
                expected = header.next_offset
        except CorruptBatch as error:
            complaint = error.message
        if segment.size < file_size:
            segment.cut(segment.size)
        segment.seal()
        return expected, complaint

    def _drop(self, number: int, reason: str) -> None:
        for segment in self.segments[number:]:
            logger.warning("%s is deleted: it %s", segment.path(), reason)
            self.aborted.drop(segment.base_offset)
            for path in segment.mark_deleted():
                path.unlink()
        del self.segments[number:]


def _clean_end(active: Segment) -> int | None:
    """End offset of a log that was closed cleanly; None when its tail is damaged after all."""
    try:
        return active.next_offset()
    except CorruptBatch as error:
        logger.warning("%s is not as a clean stop leaves it (%s); recovering", active.path(), error.message)
        return None


def _list_segments(directory: Path) -> tuple[dict[int, int], list[int]]:
    """(base offset → size of the log files, base offsets of the segments with aborted transactions).

    Removes leftovers and indexes without a log, and finishes swaps of compacted segments.
    """
    sizes: dict[int, int] = {}
    indexes = []
    swaps = False
    with os.scandir(directory) as entries:
        for entry in entries:
            stem, suffix = os.path.splitext(entry.name)
            if suffix in (SWAP_SUFFIX, CLEANED_SUFFIX):
                swaps = True
            elif suffix in _LEFTOVERS:
                os.unlink(entry.path)
            elif (base := number_named(stem)) is None:
                continue
            elif suffix == ".log":
                sizes[base] = entry.stat().st_size
            elif suffix in _INDEX_SUFFIXES:
                indexes.append((base, suffix, entry.path))
    if swaps:
        finish_swaps(directory)
        return _list_segments(directory)
    for base, _, path in indexes:
        if base not in sizes:
            os.unlink(path)
    return sizes, [base for base, suffix, _ in indexes if suffix == ABORTED_SUFFIX and base in sizes]


class Replay:
    """Applies batches that are in a log already to producer state, in order and without the checks of an append.

    Idea: Kafka's `UnifiedLog.updateProducers` and `LogSegment.recover`.
    """

    def __init__(self, states: ProducerStates, now_ms: int, aborted: AbortedIndex | None = None) -> None:
        """Aborted transactions are added to `aborted`, unless it is None because its files are sound."""
        self.states = states
        self._now_ms = now_ms
        self._aborted = aborted

    def take(self, file: SegmentFile, position: int, header: BatchHeader, segment_base: int) -> None:
        """Apply the batch at `position` of a segment's file. Raises OSError."""
        if header.producer_id < 0:
            return
        if not header.is_control:
            self.states.record(header, header.base_offset, self._now_ms)
            return
        try:
            marker = read_end_marker(file.pread(header.size, position), 0, header)
        except CorruptBatch as error:
            logger.error("a control batch at offset %d of %s: %s", header.base_offset, segment_base, error.message)
            return
        if marker is None:
            return
        if marker.control_type is ControlType.ABORT and self._aborted is not None:
            note_aborted(self._aborted, self.states, segment_base, header.producer_id, header.last_offset)
        self.states.end_transaction(
            header.producer_id, header.producer_epoch, marker.coordinator_epoch, self._now_ms, header.last_offset
        )


def note_aborted(
    aborted: AbortedIndex, states: ProducerStates, segment_base: int, producer_id: int, last_offset: int
) -> None:
    """Add the transaction that the marker at `last_offset` aborts to the index. Call this before `end_transaction`.

    A transaction without records needs no entry. Raises OSError.
    """
    entry = states.get(producer_id)
    if entry is None or entry.transaction_first_offset == NO_OFFSET:
        return
    unstable = states.first_unstable_without(producer_id)
    stable = last_offset + 1 if unstable is None else unstable
    aborted.note(segment_base, AbortedEntry(producer_id, entry.transaction_first_offset, last_offset, stable))
