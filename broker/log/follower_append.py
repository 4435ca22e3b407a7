"""Check the batches that a follower has fetched, and divide them into runs that fit in a segment.

log.py calls this for `prepare_follower_append`. The leader has checked the records and given them offsets, so a
follower stores the bytes as they are: replicas are equal byte for byte (promise P3). It checks what a broken disk or
link of the leader, or a log that diverges from it, would spoil. Kafka's rules for replicas
(`UnifiedLog.analyzeAndValidateRecords`, without a limit on the size of a batch), and two of our own: leader epochs
never fall, and a control batch must be readable, because the state of transactions depends on it.

A leader cannot have records of a later epoch than its own. It may send them all the same, when it is deposed and
replaces the end of its log while an answer is on its way: a slice is sent from the file. The records before them may
not be those of the new leader, so they are refused (KAFKA-18723).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.append_checks import Batches
from broker.log.segment import MAX_RELATIVE_OFFSET
from broker.records.batch import BatchHeader, Buffer, verify_batch, walk_batches
from broker.records.control import read_end_marker

_LARGEST_OFFSET: Final = 2**63 - 2
"""The offset after it still fits in an int64."""


class FollowerAppend(NamedTuple):
    """What a follower appended: the offsets, and how many bytes. Without a whole batch `size` is 0."""

    first_offset: int
    last_offset: int
    size: int


class FollowerRun(NamedTuple):
    """Batches that fit in one segment: their bytes, where these begin in what was fetched, and (position, header)."""

    buffer: memoryview
    start: int
    batches: Batches


class FollowerPlan(NamedTuple):
    """What to append. `has_gaps`: some batch does not begin where the log or the batch before it ends."""

    runs: list[FollowerRun]
    has_gaps: bool
    result: FollowerAppend


def plan_follower_append(
    records: Buffer, log_end_offset: int, epochs: tuple[int, int], segment_bytes: int, empty: bool
) -> FollowerPlan:
    """Check the whole batches in `records`, for a log with this end. `epochs`: its newest one, and the leader's.

    A cut batch at the end is skipped. Gaps between offsets are allowed, because the leader's log may be compacted. The
    log of a new follower is `empty`: its first batch may begin before the log's end, which is the leader's log start
    offset and may lie inside a batch. Raises CorruptBatch, and BrokerError: `offset_out_of_range` for records that the
    log has already, `not_leader_or_follower` for records of a later leader.
    """
    batches: Batches = []
    end, (epoch, leader_epoch), has_gaps = log_end_offset, epochs, False
    for position, header in walk_batches(records):
        verify_batch(records, position, header)
        if header.base_offset < end:
            _check_overlap(header, log_end_offset, is_first=not batches, empty=empty)
        _check_header(header, epoch)
        if header.leader_epoch > leader_epoch:
            text = f"the leader of epoch {leader_epoch} sent records of epoch {header.leader_epoch}"
            raise BrokerError(ErrorCode.not_leader_or_follower, f"{text} at offset {header.base_offset}")
        if header.is_control:
            read_end_marker(records, position, header)
        has_gaps = has_gaps or header.base_offset != end
        end, epoch = header.next_offset, header.leader_epoch
        batches.append((position, header))
    if not batches:
        return FollowerPlan([], False, FollowerAppend(log_end_offset, log_end_offset - 1, 0))
    runs = [
        FollowerRun(memoryview(records)[run[0][0] : run[-1][0] + run[-1][1].size], run[0][0], run)
        for run in _runs(batches, segment_bytes)
    ]
    result = FollowerAppend(batches[0][1].base_offset, end - 1, sum(len(run.buffer) for run in runs))
    return FollowerPlan(runs, has_gaps, result)


def _check_header(header: BatchHeader, epoch: int) -> None:
    base = header.base_offset
    if header.last_offset > _LARGEST_OFFSET:
        raise CorruptBatch(f"the batch at offset {base} ends at offset {header.last_offset}")
    if header.record_count > header.last_offset_delta + 1:
        raise CorruptBatch(f"the batch at offset {base} has more records than offsets: {header.record_count}")
    if header.leader_epoch < epoch:
        raise CorruptBatch(f"leader epoch {header.leader_epoch} at offset {base}, after epoch {epoch}")
    if header.is_control and header.codec:
        raise CorruptBatch(f"the control batch at offset {base} is compressed")


def _check_overlap(header: BatchHeader, log_end_offset: int, *, is_first: bool, empty: bool) -> None:
    if not is_first:
        raise CorruptBatch(f"the batch at offset {header.base_offset} does not come after the one before it")
    if header.base_offset < 0:
        raise CorruptBatch(f"a batch at offset {header.base_offset}")
    if not (empty and header.last_offset >= log_end_offset):
        raise BrokerError(
            ErrorCode.offset_out_of_range,
            f"a follower got a batch at offset {header.base_offset}; its log ends at {log_end_offset}",
        )


def _runs(batches: Batches, segment_bytes: int) -> Iterator[Batches]:
    """Divide the batches into runs that one segment can hold. A larger batch, which the leader took, is a run."""
    first = 0
    for number, (position, header) in enumerate(batches):
        start, head = batches[first]
        end = position + header.size
        if number > first and (
            end - start > segment_bytes or header.last_offset - head.base_offset > MAX_RELATIVE_OFFSET
        ):
            yield batches[first:number]
            first = number
    yield batches[first:]
