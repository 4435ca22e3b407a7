"""Where a group's offsets are moved to: the targets of `pykafka groups reset-offsets`, by the rules of Kafka's tool.

Called by groups.py. An offset outside the log becomes its nearer end; a time after the last record is the log's end.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence

from broker.client.admin import Admin
from broker.client.partition_offsets import EARLIEST, LATEST, list_offsets
from broker.protocol.topic_partition import TopicPartition
from broker.tools.output import note
from broker.tools.partitions import parse_time
from broker.tools.usage import UsageError

__all__ = ["reset_targets"]

_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?")


def reset_targets(
    admin: Admin,
    committed: Mapping[TopicPartition, int],
    partitions: Sequence[TopicPartition],
    target: str,
    value: str | int | None,
) -> dict[TopicPartition, int]:
    """The new offset of each partition. `target`: the option's name, such as `to_datetime`; `value`: what it was given.

    Raises UsageError for a time or duration that is none, UnknownTopic.
    """
    earliest, latest = _ends(admin, partitions, EARLIEST), _ends(admin, partitions, LATEST)
    if target == "to_earliest":
        return earliest
    if target == "to_latest":
        return latest
    if target in ("to_datetime", "by_duration"):
        since = (
            parse_time("--to-datetime", str(value))
            if target == "to_datetime"
            else time.time_ns() // 1_000_000 - _milliseconds(str(value))
        )
        found = _ends(admin, partitions, since)
        return {tp: offset if offset >= 0 else latest[tp] for tp, offset in found.items()}
    wanted = {}
    for tp in partitions:
        if target == "to_offset":
            wanted[tp] = int(value or 0)
        elif tp in committed:
            wanted[tp] = committed[tp] + (int(value or 0) if target == "shift_by" else 0)
        elif target == "shift_by":
            raise UsageError(f"--shift-by: the group has no offset of {tp.topic}-{tp.partition} to begin at")
        else:  # to_current
            wanted[tp] = latest[tp]
    return {tp: _inside(tp, offset, earliest[tp], latest[tp]) for tp, offset in wanted.items()}


def _ends(admin: Admin, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
    found = list_offsets(admin.cluster, dict.fromkeys(partitions, timestamp))
    return {tp: one.offset for tp, one in found.items()}


def _inside(tp: TopicPartition, offset: int, earliest: int, latest: int) -> int:
    inside = min(max(offset, earliest), latest)
    if inside != offset:
        note(f"pykafka: {tp.topic}-{tp.partition} has offsets {earliest} to {latest}: {inside} instead of {offset}")
    return inside


def _milliseconds(duration: str) -> int:
    match = _DURATION.fullmatch(duration)
    if match is None or not any(match.groups()):
        raise UsageError(f"--by-duration {duration}: expected a duration such as PT1H30M or P7D")
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
