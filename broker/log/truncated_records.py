"""How many records a truncation drops, so that it can be said what is lost.

follower.py asks before it cuts the end of a log that diverges from its leader's. What lies there was never committed;
but producers with acks=1 or acks=0 may have been told that it is stored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from broker.log.segment import Segment
from broker.log.segment_file import SegmentFile, scan_headers


class TruncatedRecords(NamedTuple):
    """`records` leaves out the markers of transactions. The epochs are those of the first and the last batch."""

    records: int
    first_epoch: int
    last_epoch: int


def records_from(segments: Sequence[Segment], offset: int) -> TruncatedRecords:
    """The records at `offset` and after it, by the headers of their batches.

    Of the batch that holds `offset`, those from there on count: the leader has the others. From any thread, because it
    opens the files by itself. Raises OSError, CorruptBatch.
    """
    count = 0
    epochs: list[int] = []
    first = max(bisect_right([segment.base_offset for segment in segments], offset) - 1, 0)
    for segment in segments[first:]:
        for _, header in scan_headers(SegmentFile(segment.path(), writable=False), 0, segment.size):
            if header.last_offset >= offset:
                epochs.append(header.leader_epoch)
                here = header.next_offset - max(offset, header.base_offset)
                count += 0 if header.is_control else min(header.record_count, here)
    return TruncatedRecords(count, epochs[0], epochs[-1]) if epochs else TruncatedRecords(0, -1, -1)
