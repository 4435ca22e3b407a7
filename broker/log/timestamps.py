"""Find records by time, over the segments of one log.

Called by log.py for ListOffsets. Indexes narrow the search to one batch; only that one is decoded.
Timestamps need not grow along the log: the answer is the first record, in offset order, that is new enough.
Compaction may have taken records out of a batch, or all of them.
Which segment to look into is told by the newest time of each: after a start they are on the disk, in three files of
each of perhaps thousands of segments. Inside `unless_cold` a thread reads them first (`UntimedSegments`), in one go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from broker.errors import CorruptBatch
from broker.log.segment import Segment, SegmentReader
from broker.log.segment_file import ColdRead, may_wait
from broker.records.batch import BatchHeader
from broker.records.record import decode_batch

__all__ = ["first_since", "newest"]


class UntimedSegments(ColdRead):
    """Segments whose newest times nobody has asked for yet; `warm` reads them, `settle` has the segments know them."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = [(segment, segment.reader()) for segment in segments]
        self._found: list[tuple[Segment, SegmentReader, tuple[int, int]]] = []

    def warm(self) -> None:
        """What cannot be read so, for it is damaged or was deleted, is left to the owner."""
        for segment, reader in self._segments:
            with suppress(OSError, CorruptBatch):
                self._found.append((segment, reader, reader.newest))

    def settle(self) -> None:
        for segment, reader, newest in self._found:
            segment.learn_newest(reader, newest)
        for segment, _ in self._segments:
            if not segment.is_timed:
                with suppress(OSError, CorruptBatch):  # deleted, or whoever asks the segment is told
                    _ = segment.newest


def _have_times(segments: Sequence[Segment]) -> None:
    untimed = [] if may_wait() else [segment for segment in segments if not segment.is_timed]
    if untimed:
        raise UntimedSegments(untimed)


def first_since(segments: Sequence[Segment], timestamp: int, log_start_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp ms) of the first record from `log_start_offset` on that is as new as `timestamp`.

    Raises ColdRead.
    """
    _have_times(segments)
    for segment in segments:
        if segment.newest[0] < timestamp:
            continue
        for position, header in _batches(segment, segment.position_for_timestamp(timestamp), log_start_offset):
            if header.max_timestamp >= timestamp and header.last_offset >= log_start_offset:
                for offset, at in _record_times(segment, position, header):
                    if at >= timestamp and offset >= log_start_offset:
                        return offset, at
    return None


def newest(segments: Sequence[Segment], log_start_offset: int) -> tuple[int, int] | None:
    """(offset, timestamp ms) of the first record with the newest timestamp; None without timestamps.

    Raises ColdRead.
    """
    _have_times(segments)
    latest = max((segment.newest[0] for segment in segments), default=-1)
    while latest >= 0:
        found = first_since(segments, latest, log_start_offset)
        if found is not None:
            return found
        # The batch that has it holds no such record: compaction emptied it, or the log starts behind it.
        latest = _newest_below(segments, latest, log_start_offset)
    return None


def _newest_below(segments: Sequence[Segment], timestamp: int, log_start_offset: int) -> int:
    """The newest timestamp older than `timestamp` of any batch with records; -1 for none. Walks the whole log."""
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
    """Those from `position` on, but for what DeleteRecords has left in the file before the log's start."""
    if log_start_offset > segment.base_offset:
        found = segment.locate(log_start_offset)
        if found is None:
            return ()
        position = max(position, found[0])
    return segment.batches(position)


def _record_times(segment: Segment, position: int, header: BatchHeader) -> Iterable[tuple[int, int]]:
    """(offset, timestamp ms) of the batch's records; it is read only where the header does not tell them."""
    if header.record_count == header.last_offset_delta + 1 and (header.is_log_append_time or header.record_count == 1):
        return ((offset, header.max_timestamp) for offset in range(header.base_offset, header.next_offset))
    batch = segment.file().glance(header.size, position)
    return [(record.offset, record.timestamp) for record in decode_batch(batch, 0, header)]
