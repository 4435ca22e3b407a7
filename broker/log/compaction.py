"""Rewrite a log's closed segments so that each key keeps only its last record.

Runs in a process of its own (`python -m broker.log.compaction`, started by compaction_process.py), because work per
record would hold up the broker's event loop. First the keys of the dirty part are collected. Then every segment up to
there is filtered, and small ones are joined up to segment.bytes. The results are written and synced in the plan's
directory; the log does not change until its owner swaps them in. Idea: Kafka's `Cleaner`.
"""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

from broker.errors import CorruptBatch
from broker.log.batch_filter import (
    Batches,
    BatchFilter,
    CleanedTransactions,
    OffsetMap,
    are_there,
    keys_of,
    numbers_of,
    read_columns,
)
from broker.log.compaction_process import Compacted, CompactionPlan, CompactionResult, PlannedSegment
from broker.log.segment import MAX_RELATIVE_OFFSET, OpenSegments, Segment, segment_path
from broker.log.segment_file import SegmentFile
from broker.records.batch import HEADER_SIZE, BatchHeader, parse_header, verify_batch, walk_batches

_CHUNK: Final = 4 << 20
_LONGEST_SLEEP_S: Final = 0.5


def compact(plan: CompactionPlan, check: Callable[[], None] = lambda: None) -> Iterator[Compacted | CompactionResult]:
    """Carry out a plan: yields every segment that is ready, then the result.

    Calls `check` every few megabytes, which may raise to stop it. Raises OSError and CorruptBatch, after removing what
    it wrote.
    """
    compaction = _Compaction(plan, check)
    try:
        plan.cleaned_directory.mkdir()
        yield from compaction.run()
    except BaseException:
        shutil.rmtree(plan.cleaned_directory, ignore_errors=True)
        raise


def group_segments(plan: CompactionPlan, ends: list[int], clean_offset: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each group of segments to join into one. `ends` are the end offsets of the segments.

    Only segments that begin before `clean_offset` are compacted.
    """
    first, size = 0, 0
    segments = [segment for segment in plan.segments if segment.base_offset < clean_offset]
    for number, segment in enumerate(segments):
        reach = ends[number] - 1 - segments[first].base_offset
        if number > first and (size + segment.size > plan.segment_bytes or reach > MAX_RELATIVE_OFFSET):
            yield first, number - first
            first, size = number, 0
        size += segment.size
    if segments:
        yield first, len(segments) - first


class _Compaction:
    def __init__(self, plan: CompactionPlan, check: Callable[[], None]) -> None:
        self._plan = plan
        self._pace = _Pace(plan.bytes_per_second, check)
        self._read = self._written = 0

    def run(self) -> Iterator[Compacted | CompactionResult]:
        plan = self._plan
        offsets = OffsetMap(plan.map_bytes, plan.first_dirty_offset)
        files = [
            SegmentFile(segment_path(plan.directory, s.base_offset, ".log"), writable=False) for s in plan.segments
        ]
        self._gather_keys(files, offsets)
        filtered = BatchFilter(
            offsets,
            CleanedTransactions(plan.aborted),
            plan.producers,
            now_ms=plan.now_ms,
            delete_retention_ms=plan.delete_retention_ms,
        )
        ends = [following.base_offset for following in plan.segments[1:]]
        ends.append(max(offsets.end, plan.segments[-1].base_offset + 1))
        for first, count in group_segments(plan, ends, offsets.end):
            size = self._rewrite(first, files[first : first + count], filtered)
            yield Compacted(first, first + count, plan.segments[first].base_offset, size)
        yield CompactionResult(offsets.end, self._read, self._written, filtered.records_read, filtered.records_kept)

    def _gather_keys(self, files: list[SegmentFile], offsets: OffsetMap) -> None:
        """Collect the keys of committed records of the dirty part, until the map is full."""
        plan, start = self._plan, self._plan.first_dirty_offset
        transactions = CleanedTransactions(entry for entry in plan.aborted if entry.last_offset >= start)
        for number, (file, segment) in enumerate(zip(files, plan.segments, strict=True)):
            if number + 1 < len(files) and plan.segments[number + 1].base_offset <= start:
                continue
            for chunk, batches, _ in self._chunks(file, segment):
                _note_keys(chunk, batches, start, transactions, offsets)
                if offsets.is_full:
                    return

    def _rewrite(self, first: int, files: list[SegmentFile], filtered: BatchFilter) -> int:
        """Write one segment from several; returns its size."""
        plan = self._plan
        segments = plan.segments[first : first + len(files)]
        target = Segment.create(
            plan.cleaned_directory,
            segments[0].base_offset,
            OpenSegments(),
            created_ms=plan.now_ms,
            index_interval=plan.index_interval,
            reserve=0,
        )
        for file, segment in zip(files, segments, strict=True):
            for chunk, batches, is_end in self._chunks(file, segment):
                ends_target = is_end and file is files[-1]
                left = b"".join(filtered.filter(chunk, batches, keep_last=ends_target))
                _append(target, left)
                self._written += len(left)
                self._pace.spend(len(left))
        target.seal()
        modified = os.fstat(files[-1].fileno()).st_mtime_ns
        os.utime(target.path(), ns=(modified, modified))  # retention uses it for records without timestamps
        target.sync(closed=True)
        target.close()
        return target.size

    def _chunks(self, file: SegmentFile, segment: PlannedSegment) -> Iterator[tuple[bytes, Batches, bool]]:
        """(bytes, batches in them, whether these are the last) of a segment, some megabytes at a time."""
        position = 0
        while position < segment.size:
            length = min(_CHUNK, segment.size - position)
            chunk = file.pread(length, position)
            first = parse_header(chunk)
            if first.size > len(chunk) and first.length >= HEADER_SIZE - 12:
                chunk = file.pread(min(first.size, segment.size - position), position)
            batches = list(walk_batches(chunk))
            if not batches:
                raise CorruptBatch(f"no whole batch at byte {position} of segment {segment.base_offset}")
            self._read += len(chunk)
            self._pace.spend(len(chunk))
            position += _end_of(batches)
            yield chunk, batches, position >= segment.size


def _note_keys(
    chunk: bytes, batches: Batches, start: int, transactions: CleanedTransactions, offsets: OffsetMap
) -> None:
    wanted: Batches = []
    for position, header in batches:
        verify_batch(chunk, position, header)
        discards = transactions.discards(chunk, position, header)
        if header.last_offset >= start and header.record_count and not header.is_control and not discards:
            wanted.append((position, header))
    for _, columns in read_columns(chunk, wanted, ("key", "offset")):
        offset = numbers_of(columns.offset)
        counts = are_there(columns.key) & (offset >= start)
        offsets.note(list(itertools.compress(keys_of(columns.key), counts)), offset[counts].tolist())
    offsets.end = max(offsets.end, batches[-1][1].next_offset)


def _append(target: Segment, left: bytes) -> None:
    target.file().pwrite(left, target.size)
    for _, header in walk_batches(left):
        target.note(header, header.last_offset)


def _end_of(batches: list[tuple[int, BatchHeader]]) -> int:
    position, header = batches[-1]
    return position + header.size


class _Pace:
    """Sleeps so that I/O stays below `bytes_per_second` on average. Idea: Kafka's `Throttler`."""

    def __init__(self, bytes_per_second: float, check: Callable[[], None]) -> None:
        self._bytes_per_second = bytes_per_second
        self._check = check
        self._started = time.monotonic()
        self._spent = 0

    def spend(self, count: int) -> None:
        self._spent += count
        until = self._started + self._spent / self._bytes_per_second
        self._check()
        while (ahead := until - time.monotonic()) > 0:
            time.sleep(min(ahead, _LONGEST_SLEEP_S))
            self._check()


_NICE = 10


class _Orphaned(Exception):
    """The broker is gone."""


def main(plans: BinaryIO, answers: BinaryIO) -> None:
    """Carry out pickled plans one after another until `plans` ends, and write pickled answers.

    Stops in the middle of a compaction when the broker that started this process has died.
    """
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            raise _Orphaned

    while True:
        try:
            plan = pickle.load(plans)
        except EOFError:
            return
        try:
            for answer in compact(plan, check):
                _send(answers, answer)
        except _Orphaned:
            raise
        except OSError as error:
            _send(answers, error)
        except CorruptBatch as error:
            _send(answers, CorruptBatch(error.message))
        except Exception as error:  # a bug: the same plan would fail again
            traceback.print_exc()
            _send(answers, CorruptBatch(f"{type(error).__name__}: {error}"))


def _send(answers: BinaryIO, answer: object) -> None:
    pickle.dump(answer, answers)
    answers.flush()


if __name__ == "__main__":
    os.nice(_NICE)
    try:
        main(sys.stdin.buffer, sys.stdout.buffer)
    except (_Orphaned, BrokenPipeError, KeyboardInterrupt):
        os._exit(1)
