"""When the active segment is closed and a new one begun.

Called by log.py before each append and at each tick. By size, by offsets that no longer fit in 32 bits, by
full indexes, and by time: counted in the records' own timestamps while appending (as Kafka does, so that a
replay of old data gets segments by its own time), in the broker's clock when nothing is appended.
"""

from __future__ import annotations

from broker.log.log_config import LogConfig
from broker.log.segment import MAX_RELATIVE_OFFSET, Segment
from broker.records.crc32c import crc32c

__all__ = ["is_aged", "must_roll"]


def must_roll(active: Segment, config: LogConfig, incoming: int, newest_ms: int, last_offset: int, now_ms: int) -> bool:
    """Whether `incoming` bytes up to `last_offset`, none newer than `newest_ms`, need a new segment."""
    if not active.size:
        return last_offset - active.base_offset > MAX_RELATIVE_OFFSET
    if active.size + incoming > config.segment_bytes or last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if active.indexes_full(config.segment_index_bytes):
        return True
    first = active.first_timestamp
    if first < 0 or newest_ms < 0:
        return is_aged(active, config, now_ms)
    return newest_ms - first > _roll_after(active, config)


def is_aged(active: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the segment has records and was begun, or opened, longer ago than segment.ms."""
    return active.size > 0 and now_ms - active.created_ms > _roll_after(active, config)


def _roll_after(segment: Segment, config: LogConfig) -> int:
    """segment.ms (or max.compaction.lag.ms where that is shorter, since only closed segments are compacted) less a part
    of the jitter that is random between segments and fixed for each."""
    longest = min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
    if not config.segment_jitter_ms:
        return longest
    spread = min(config.segment_jitter_ms, longest)
    return longest - crc32c(str(segment.path()).encode()) % spread
