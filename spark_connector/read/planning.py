"""Which offsets a batch reads, and in how many tasks: pure functions without broker or clock.

Both readers call them on the driver with resolved offsets. The rules are those of Spark's `KafkaOffsetRangeCalculator`
and `KafkaMicroBatchStream.rateLimit`, except that the limit of a trigger is strict (S6): Spark rounds the share of
every partition up to one record. `split_ranges` and `share_tasks` never drop an offset (S7): their ranges cover the
given ones.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError, report_data_loss
from spark_connector.offset_store.base import Offsets
from spark_connector.options.read_filters import ReadFilters
from spark_connector.options.selection import format_partitions


@dataclass(frozen=True, order=True)
class OffsetRange:
    """Offsets of one partition from `from_offset` to `until_offset`, exclusive. A task reads one or more ranges."""

    tp: TopicPartition
    from_offset: int
    until_offset: int

    @property
    def size(self) -> int:
        """Number of offsets; there may be fewer records, because of compaction and transaction markers."""
        return self.until_offset - self.from_offset

    def __str__(self) -> str:
        return f"[{self.from_offset}, {self.until_offset}) of {self.tp}"


def batch_ranges(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """Ranges of a batch query, in order of partition. Raises ConnectorError when a start lies after its end."""
    ranges = []
    for tp in sorted(end):
        if start[tp] > end[tp]:
            raise ConnectorError(
                "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET",
                f"The resolved start offset {start[tp]} is greater than the resolved end offset {end[tp]} for topic "
                f"{tp.topic} partition {tp.partition}. The start is set too high, or the topic was recreated.",
            )
        ranges.append(OffsetRange(tp, start[tp], end[tp]))
    return ranges


def keep_offsets(ranges: Sequence[OffsetRange], filters: ReadFilters) -> list[OffsetRange]:
    """The parts of the ranges whose offsets pass, in order; zero or more parts of each range."""
    result: list[OffsetRange] = []
    for r in ranges:
        wanted = filters.offsets_of(r.tp)
        pieces = [(r.from_offset, r.until_offset)] if wanted is None else wanted.cut(r.from_offset, r.until_offset)
        result += [OffsetRange(r.tp, first, until) for first, until in pieces]
    return result


def stream_ranges(start: Offsets, end: Offsets, *, fail_on_data_loss: bool) -> list[OffsetRange]:
    """Ranges of a micro-batch, in order of partition. A deleted partition, or an end before its start, is data loss.

    A partition only in `start` was deleted. A partition only in `end` means a damaged checkpoint, because the reader
    records the start of every new partition in the offset.
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
                "recreated, and some data may have been missed.",
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
    """Non-empty ranges of at most `max_records` offsets, at least about `min_partitions` of them.

    `most_of`: like `max_records`, for single partitions whose bytes are limited.
    """
    result = [r for r in ranges if r.size > 0]
    if max_records is not None or most_of:
        most = {r.tp: min(max_records or r.size, (most_of or {}).get(r.tp, r.size)) for r in result}
        result = [part for r in result for part in _divide(r, -(-r.size // most[r.tp]))]
    if min_partitions is not None and 0 < len(result) < min_partitions:
        result = _split_large(result, min_partitions)
    return result


def _split_large(ranges: Sequence[OffsetRange], min_partitions: int) -> list[OffsetRange]:
    """Split in proportion to size. Ranges too small to split do not count in the sum (SPARK-36576)."""
    total = sum(r.size for r in ranges)
    whole = {r for r in ranges if _part_count(r.size, total, min_partitions) == 1}
    to_split = total - sum(r.size for r in whole)
    parts_left = max(min_partitions - len(whole), 1)
    result: list[OffsetRange] = []
    for r in ranges:
        result += _divide(r, 1 if r in whole else _part_count(r.size, to_split, parts_left))
    return result


def _part_count(size: int, total: int, parts: int) -> int:
    return max((2 * size * parts + total) // (2 * total), 1)  # rounds half up, like Java's Math.round


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    """At most `parts` consecutive, non-empty ranges; later ones take the remainder (SPARK-28489)."""
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
    """The ranges of each task. A range of `least_bytes` (estimated) or more has its own task; smaller ones share tasks
    up to that size.

    A shared task has at most `max_records` offsets. There are at least `min_partitions` tasks if there are that many
    ranges.
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


def limit_offsets(cap: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
    """New ends that are in total `cap` (> 0) offsets after `start`, or fewer if the backlog is smaller.

    Every partition with data gets one offset; the rest is shared in proportion to backlog. If there are fewer offsets
    than such partitions, or some are left by rounding, partitions get one each in round-robin order. The first one
    follows from the sum of the start offsets, which grows by `cap` with every batch. So no partition starves, and no
    state must survive a restart.
    """
    return limit_bytes(cap, dict.fromkeys(end, 1), start, end)


def limit_bytes(
    cap: int, bytes_per_offset: Mapping[TopicPartition, int], start: Offsets, end: Offsets
) -> dict[TopicPartition, int]:
    """New ends that are in total at most `cap` (> 0) estimated bytes after `start`, but at least one offset.

    Bytes are shared like offsets in `limit_offsets`. The round-robin stops at the first partition whose next offset
    does not fit and begins there next time, so that large records are not skipped for ever.
    """
    sizes = {tp: end[tp] - start[tp] for tp in end if tp in start and end[tp] > start[tp]}
    total = sum(size * bytes_per_offset[tp] for tp, size in sizes.items())
    if total <= cap:
        return dict(end)
    turn = _turn(start, sizes)
    shares, left = dict.fromkeys(turn, 0), cap
    one_each = sum(bytes_per_offset[tp] for tp in turn)
    if one_each <= cap:
        shares = {tp: 1 + (cap - one_each) * (sizes[tp] - 1) // (total - one_each) for tp in turn}
        left -= sum(share * bytes_per_offset[tp] for tp, share in shares.items())
    for tp in turn:
        if shares[tp] < sizes[tp]:
            left -= bytes_per_offset[tp]
            if left < 0 and any(shares.values()):
                break
            shares[tp] += 1
    return {tp: start[tp] + shares[tp] if tp in sizes else end[tp] for tp in end}


def _turn(start: Offsets, sizes: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The partitions with data in round-robin order; the start offsets determine the first one."""
    everyone = sorted(start)
    first = sum(start.values()) % len(everyone)
    return [tp for tp in everyone[first:] + everyone[:first] if tp in sizes]
