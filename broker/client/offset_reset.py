"""Where the offsets of a group go when they are reset, by the rules of Kafka's kafka-consumer-groups.sh."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from broker.client.admin import Admin
from broker.client.partition_offsets import EARLIEST, LATEST, offsets_at
from broker.errors import ConfigError, PykafkaError
from broker.protocol.topic_partition import TopicPartition

OnBounded = Callable[[TopicPartition, int, int, tuple[int, int]], None]
"""Called with a partition, the offset that was wanted, the one it became, and the start and end of the log."""


class ResetTarget(StrEnum):
    """The options of Kafka's tool, with `_` for `-`."""

    TO_EARLIEST = "to_earliest"
    TO_LATEST = "to_latest"
    TO_CURRENT = "to_current"
    TO_OFFSET = "to_offset"
    TO_DATETIME = "to_datetime"
    BY_DURATION = "by_duration"
    SHIFT_BY = "shift_by"
    FROM_FILE = "from_file"


def refuse_members(admin: Admin, name: str) -> None:
    """Raise PykafkaError while a group has members: nobody else may change its offsets."""
    described = admin.describe_group(name)
    if described.active:
        raise PykafkaError(
            f"group {name!r} is {described.state} and has {len(described.members)} members: its offsets can be "
            "reset only while it has none; stop its consumers first"
        )


def new_offsets(
    admin: Admin,
    known: Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    target: ResetTarget,
    number: int = 0,
    *,
    on_bounded: OnBounded = lambda tp, wanted, bounded, log: None,
) -> dict[TopicPartition, int]:
    """The new offset of each partition.

    `known` holds the committed offsets, or with `FROM_FILE` those of the file. `number` is an offset, a difference or a
    time (ms). An offset outside the log becomes its nearer end. A time after the last record becomes the log's end.
    Raises ConfigError for `SHIFT_BY` of a partition without an offset.
    """
    earliest, latest = (offsets_at(admin.cluster, partitions, end) for end in (EARLIEST, LATEST))
    if target is ResetTarget.TO_EARLIEST:
        return earliest
    if target is ResetTarget.TO_LATEST:
        return latest
    if target in (ResetTarget.TO_DATETIME, ResetTarget.BY_DURATION):
        found = offsets_at(admin.cluster, partitions, number)
        return {tp: offset if offset >= 0 else latest[tp] for tp, offset in found.items()}
    moved = {}
    for tp in partitions:
        wanted = _wanted(tp, known, target, number, latest[tp])
        moved[tp] = min(max(wanted, earliest[tp]), latest[tp])
        if moved[tp] != wanted:
            on_bounded(tp, wanted, moved[tp], (earliest[tp], latest[tp]))
    return moved


def _wanted(
    tp: TopicPartition, known: Mapping[TopicPartition, int], target: ResetTarget, number: int, latest: int
) -> int:
    if target is ResetTarget.TO_OFFSET:
        return number
    if tp in known:
        return known[tp] + number  # which is 0 unless the target is SHIFT_BY
    if target is ResetTarget.SHIFT_BY:
        raise ConfigError(f"--shift-by: the group has no offset of {tp.topic}-{tp.partition} to begin at")
    return latest
