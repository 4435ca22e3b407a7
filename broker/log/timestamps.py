"""Find records by time, in the segments of one log.

Called by log.py for ListOffsets. Indexes narrow the search to one batch, and only that batch is decoded. Timestamps
need not grow along the log: the answer is the first record, in offset order, that is new enough. Compaction may have
removed records from a batch, or all of them.
The newest timestamp of each segment says which segment to search. After a start these are only on disk, in the files
of perhaps thousands of segments. Inside `unless_cold`, a thread reads all of them first (`UntimedSegments`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from broker.errors import CorruptBatch
from broker.log.segment import Segment, SegmentReader
from broker.log.segment_file import ColdRead, SegmentFile, may_wait
from broker.records.batch import BatchHeader
from broker.records.record import decode_batch


class UntimedSegments(ColdRead):
    """Segments whose newest timestamp is not in memory; `warm` reads it, `keep` stores it in the segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = [(segment, segment.reader()) for segment in segments]
        self._found: list[tuple[Segment, SegmentReader, tuple[int, int]]] = []

    def warm(self) -> None:
        """Skips damaged and deleted segments, which only the owner can handle."""
        for segment, reader in self._segments:
            with suppress(OSError, CorruptBatch):
                self._found.append((segment, reader, reader.newest))

    def keep(self) -> None:
        for segment, reader, newest in self._found:
            segment.learn_newest(reader, newest)
        for segment, _ in self._segments:
            if not segment.is_timed:
                with suppress(OSError, CorruptBatch):  # deleted, or the next caller gets the error
                    _ = segment.newest


def _require_times(segments: Sequence[Segment]) -> None:
    untimed = [] if may_wait() else [segment for segment in segments if not segment.is_timed]
    if untimed:
        raise UntimedSegments(untimed)


def first_since(segments: Sequence[Segment], timestamp: int, log_start_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp ms) of the first record from `log_start_offset` on with a timestamp of at least `timestamp`.

    Raises ColdRead.
    """
    _require_times(segments)
    for segment in segments:
        if segment.newest[0] < timestamp:
            continue
        for position, header in _batches(segment, segment.position_for_timestamp(timestamp), log_start_offset):
            if header.max_timestamp >= timestamp and header.last_offset >= log_start_offset:
                for offset, at in record_times(segment.file(), position, header):
                    if at >= timestamp and offset >= log_start_offset:
                        return offset, at
    return None


def newest(segments: Sequence[Segment], log_start_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp ms) of the first record with the newest timestamp; None without timestamps.

    Raises ColdRead.
    """
    _require_times(segments)
    latest = max((segment.newest[0] for segment in segments), default=-1)
    while latest >= 0:
        found = first_since(segments, latest, log_start_offset)
        if found is not None:
            return found
        # The batch with that timestamp has no such record: compaction removed it, or the log starts after it.
        latest = _newest_below(segments, latest, log_start_offset)
    return None


def _newest_below(segments: Sequence[Segment], timestamp: int, log_start_offset: int) -> int:
    """The newest timestamp below `timestamp` of any batch with records, or -1. Reads the headers of the whole log."""
    return max(
        (
            header.max_timestamp
            for segment in segments
            for _, header in _batches(segment, 0, log_start_offset)
            if header.record_count and header.last_offset >= log_start_offset and header.max_timestamp < timestamp
        ),
        default=-1,
    )


def _batches(segment: Segment, position: int, log_start_offset: int) -> Iterable[tuple[int, BatchHeader]]:
    """The batches from `position` on, without those before the log start, which DeleteRecords leaves in the file."""
    if log_start_offset > segment.base_offset:
        found = segment.locate(log_start_offset)
        if found is None:
            return ()
        position = max(position, found[0])
    return segment.batches(position)


def record_times(file: SegmentFile, position: int, header: BatchHeader) -> Iterable[tuple[int, int]]:
    """(offset, timestamp ms) of the batch's records, from its header alone if that is enough. Raises ColdRead."""
    if header.record_count == header.last_offset_delta + 1 and (header.is_log_append_time or header.record_count == 1):
        return ((offset, header.max_timestamp) for offset in range(header.base_offset, header.next_offset))
    batch = file.glance(header.size, position)
    return [(record.offset, record.timestamp) for record in decode_batch(batch, 0, header)]
