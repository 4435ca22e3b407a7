"""Whether a compacted log is due for the cleaner, and how much of it may be cleaned.

Asked by cleaner.py of every compacted log, so it is quick: sizes that are in memory and, where the topic has a lag set,
timestamps of its segments. Rules and names: Kafka's `LogCleanerManager`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from broker.log.log import Log
from broker.log.log_config import UNLIMITED, LogConfig
from broker.log.segment import Segment

__all__ = ["Cleanable", "cleanable"]


class Cleanable(NamedTuple):
    """What a compaction of the log would do."""

    first_dirty_offset: int
    segments: tuple[Segment, ...]
    """The log's first segments, up to the last that may be cleaned."""
    ratio: float
    """Bytes that were never compacted, as a share of all in `segments`."""
    is_due: bool


def cleanable(log: Log, clean_offset: int | None, now_ms: int) -> Cleanable | None:
    """None when no closed segment is dirty. `clean_offset` is where the last compaction ended, if there was one."""
    segments = log.segments
    if len(segments) == 1:
        return None
    first_dirty = log.log_start_offset
    if clean_offset is not None and first_dirty <= clean_offset <= log.log_end_offset:
        first_dirty = clean_offset
    closed = tuple(segments[:-1])
    dirty_from = sum(1 for following in segments[1:] if following.base_offset <= first_dirty)
    up_to = _stable(segments, log.first_unstable_offset)
    if log.config.min_compaction_lag_ms:
        up_to = min(up_to, _old_enough(closed, dirty_from, now_ms - log.config.min_compaction_lag_ms))
    dirty = sum(segment.size for segment in closed[dirty_from:up_to])
    if not dirty:
        return None
    ratio = dirty / sum(segment.size for segment in closed[:up_to])
    is_due = ratio > log.config.min_cleanable_dirty_ratio or _has_waited(closed[dirty_from:], log.config, now_ms)
    return Cleanable(first_dirty, closed[:up_to], ratio, is_due)


def _stable(segments: Sequence[Segment], first_unstable: int | None) -> int:
    """How many closed segments hold nothing from the first open transaction on."""
    count = len(segments) - 1
    if first_unstable is not None:
        while count and segments[count].base_offset > first_unstable:
            count -= 1
    return count


def _old_enough(closed: Sequence[Segment], dirty_from: int, newest_ms: int) -> int:
    """How many closed segments come before the first dirty one with a record newer than `newest_ms`."""
    for number in range(dirty_from, len(closed)):
        newest = closed[number].newest[0]
        if (newest if newest >= 0 else closed[number].modified_ms()) > newest_ms:
            return number
    return len(closed)


def _has_waited(dirty: Sequence[Segment], config: LogConfig, now_ms: int) -> bool:
    """Whether a dirty record is older than max.compaction.lag.ms."""
    if config.max_compaction_lag_ms >= UNLIMITED:
        return False
    first = [segment.first_timestamp for segment in dirty]
    return any(0 < timestamp < now_ms - config.max_compaction_lag_ms for timestamp in first)
