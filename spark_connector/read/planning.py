"""Which offsets a batch reads, and in how many tasks: pure functions, no broker, no clock.

Called on the driver by both readers with offsets that are already resolved. The rules are those of
Spark's `KafkaOffsetRangeCalculator` and `KafkaMicroBatchStream.rateLimit`, except that the cap of a
trigger is a cap here: Spark rounds every partition's share up to one record.

`split_ranges` and `share_tasks` never drop an offset: the ranges they return cover exactly those they were given.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.options.filter_options import ReadFilters
from spark_connector.options.range_limit import format_partitions

__all__ = [
    "OffsetRange",
    "batch_ranges",
    "keep_offsets",
    "limit_bytes",
    "limit_offsets",
    "share_tasks",
    "split_ranges",
    "stream_ranges",
]


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets of one partition from `from_offset` up to, not including, `until_offset`; a task reads one or more."""

    tp: TopicPartition
    from_offset: int
    until_offset: int

    @property
    def size(self) -> int:
        """Offsets in the range; fewer records where compaction or transaction markers left holes."""
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"[{self.from_offset}, {self.until_offset}) of {self.tp}"


def batch_ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Ranges of a batch query, in order of partition. Raises ConnectorError when a start lies after its end."""
    ranges = []
    for tp in sorted(end):
        if start[tp] > end[tp]:
            raise ConnectorError(
                "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                f"The resolved start offset {start[tp]} is greater than the resolved end offset {end[tp]} for topic "
                f"{tp.topic} partition {tp.partition}. The start is set too high, or the topic was created anew.",
            )
        ranges.append(OffsetRange(tp, start[tp], end[tp]))
    return ranges


def keep_offsets(ranges: Sequence[OffsetRange], filters: ReadFilters) -> list[OffsetRange]:
    """What option `filterOffsets` leaves of the ranges: any number of pieces of each, in order."""
    result: list[OffsetRange] = []
    for r in ranges:
        wanted = filters.offsets_of(r.tp)
        pieces = [(r.from_offset, r.until_offset)] if wanted is None else wanted.cut(r.from_offset, r.until_offset)
        result += [OffsetRange(r.tp, first, until) for first, until in pieces]
    return result


def stream_ranges(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], *, fail_on_data_loss: bool
) -> list[OffsetRange]:
    """Ranges of a micro-batch, in order of partition; what is gone or runs backwards is data loss.

    Partitions only in `start` were deleted. One only in `end` cannot be placed: the reader puts the start of new
    partitions into the offset, so that means a damaged checkpoint.
    """
    if deleted := start.keys() - end.keys():
        report_data_loss(
            "PARTITIONS_DELETED", f"Partitions {format_partitions(deleted)} have been deleted.", fail=fail_on_data_loss
        )
    if unplaced := end.keys() - start.keys():
        report_data_loss(
            "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS",
            f"Cannot find initial offsets for partitions {format_partitions(unplaced)}. They may have been deleted.",
            fail=fail_on_data_loss,
        )
    ranges = []
    for tp in sorted(end.keys() & start.keys()):
        if end[tp] < start[tp]:
            report_data_loss(
                "PARTITION_OFFSET_CHANGED",
                f"Partition {tp} offset was changed from {start[tp]} to {end[tp]}. This could either be a user error "
                "that the start offset is set too high and this is the first batch, or the topic was truncated or "
                "created anew, and some data may have been missed.",
                fail=fail_on_data_loss,
            )
        else:
            ranges.append(OffsetRange(tp, start[tp], end[tp]))
    return ranges


def split_ranges(
    ranges: Sequence[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    most_of: Mapping[TopicPartition, int] | None = None,
) -> list[OffsetRange]:
    """Ranges that a task can read: empty ones left out, none above `max_records`, about `min_partitions` or more.

    `most_of`: the same as `max_records` for single partitions, where bytes limit them.
    """
    result = [r for r in ranges if r.size > 0]
    if max_records is not None or most_of:
        most = {r.tp: min(max_records or r.size, (most_of or {}).get(r.tp, r.size)) for r in result}
        result = [part for r in result for part in _divide(r, -(-r.size // most[r.tp]))]
    if min_partitions is not None and 0 < len(result) < min_partitions:
        result = _split_large(result, min_partitions)
    return result


def _split_large(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Split in proportion to size. Ranges too small for a second task are left out of the sum (SPARK-36576)."""
    total = sum(r.size for r in ranges)
    whole = {r for r in ranges if _part_count(r.size, total, min_partitions) == 1}
    to_split = total - sum(r.size for r in whole)
    parts_left = max(min_partitions - len(whole), 1)
    result: list[OffsetRange] = []
    for r in ranges:
        result += _divide(r, 1 if r in whole else _part_count(r.size, to_split, parts_left))
    return result


def _part_count(size: int, total: int, parts: int) -> int:
    return max((2 * size * parts + total) // (2 * total), 1)  # rounds half up, as Java's Math.round does


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """Cut into `parts` consecutive ranges; the later ones take the odd offsets, none is empty (SPARK-28489)."""
    result = []
    start, remaining = whole.from_offset, whole.size
    for part in range(parts):
        size = remaining // (parts - part)
        if size > 0:
            result.append(replace(whole, from_offset=start, until_offset=start + size))
        start += size
        remaining -= size
    return result


def share_tasks(
    ranges: Sequence[OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, int],
    *,
    least_bytes: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: a range of an estimated `least_bytes` or more alone, smaller ones together up to that.

    No task of several ranges holds more than `max_records`, and there are `min_partitions` tasks where there are as
    many ranges.
    """
    tasks: list[list[OffsetRange]] = []
    shared: list[list[OffsetRange]] = []
    room_bytes = room_records = 0
    most_records = max_records or sys.maxsize
    for r in ranges:
        size = r.size * bytes_per_offset[r.tp]
        if size >= least_bytes:
            tasks.append([r])
        elif shared and size <= room_bytes and r.size <= room_records:
            shared[-1].append(r)
            room_bytes, room_records = room_bytes - size, room_records - r.size
        else:
            shared.append([r])
            room_bytes, room_records = least_bytes - size, most_records - r.size
    wanted = min(min_partitions or 1, len(ranges)) - len(tasks)
    while len(shared) < wanted:
        longest = max(shared, key=len)
        shared.append(longest[len(longest) // 2 :])
        del longest[len(longest) // 2 :]
    return sorted(tuple(task) for task in tasks + shared)


def limit_offsets(
    cap: int, start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """New ends that lie together at most `cap` (> 0) beyond `start`, and exactly that if so much is there.

    Every partition with data gets one offset, the rest is shared in proportion to backlog. With more such
    partitions than offsets, or offsets left over by rounding, it is one partition's turn after the other: the turn
    follows from the start offsets themselves, which grow by `cap` from batch to batch, so nobody starves and
    nothing must be remembered over a restart.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}
    if sum(sizes.values()) <= cap:
        return dict(end)
    turn = _turn(start, sizes)
    shares = dict.fromkeys(turn, 0)
    left = cap
    if cap >= len(turn):
        spare = cap - len(turn)
        beyond = sum(sizes.values()) - len(turn)
        shares = {tp: 1 + spare * (sizes[tp] - 1) // beyond for tp in turn}
        left = cap - sum(shares.values())
    for tp in turn:
        if left and shares[tp] < sizes[tp]:
            shares[tp] += 1
            left -= 1
    return {tp: start[tp] + shares[tp] if tp in sizes else end[tp] for tp in end}


def limit_bytes(
    cap: int,
    bytes_per_offset: Mapping[TopicPartition, int],
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """New ends that lie together at most `cap` (> 0) estimated bytes beyond `start`, or one offset if that is more.

    Shared as `limit_offsets` shares offsets. When not even one offset of each partition fits, the turn ends at the
    first that does not fit and begins there the next time, so that large records are not passed over for ever.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}
    total = sum(size * bytes_per_offset[tp] for tp, size in sizes.items())
    if total <= cap:
        return dict(end)
    turn = _turn(start, sizes)
    one_each = sum(bytes_per_offset[tp] for tp in turn)
    if one_each <= cap:
        shares = {tp: 1 + (cap - one_each) * (sizes[tp] - 1) // (total - one_each) for tp in turn}
    else:
        shares, left = dict.fromkeys(turn, 0), cap
        for place, tp in enumerate(turn):
            left -= bytes_per_offset[tp]
            if left < 0 and place:
                break
            shares[tp] = 1
    return {tp: start[tp] + shares[tp] if tp in sizes else end[tp] for tp in end}


def _turn(start: Mapping[TopicPartition, int], sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions that have data, beginning with the one whose turn it is by the start offsets."""
    everyone = sorted(start)
    first = sum(start.values()) % len(everyone)
    return [tp for tp in everyone[first:] + everyone[:first] if tp in sizes]
