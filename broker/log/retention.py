"""Which segments of a log have had their time.

Pure but for the timestamps that segments look up; called by `Log.apply_retention`. Always a run from the
oldest: a segment that may stay protects all after it, so offsets never get holes.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.log.log_config import LogConfig
from broker.log.segment import Segment

__all__ = ["expired_segments"]


def expired_segments(
    segments: Sequence[Segment], config: LogConfig, now_ms: int, log_start_offset: int
) -> tuple[int, str]:
    """(how many of the oldest segments are to be deleted, why, for the log); may be all of them, when even the newest
    is too old."""
    found = [(_before(segments, log_start_offset), f"the log starts at offset {log_start_offset}")]
    if "delete" in config.cleanup_policy:
        found += [
            (_too_many(segments, config.retention_bytes), f"retention.bytes is {config.retention_bytes}"),
            (_too_old(segments, config.retention_ms, now_ms), f"retention.ms is {config.retention_ms}"),
        ]
    return max(found, key=lambda one: one[0])


def _before(segments: Sequence[Segment], log_start_offset: int) -> int:
    """Segments that hold nothing from `log_start_offset` on (DeleteRecords moves it)."""
    return sum(1 for following in segments[1:] if following.base_offset <= log_start_offset)


def _too_old(segments: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    """By the newest timestamp of each; records without timestamps count by when their file was written."""
    if retention_ms < 0:
        return 0
    for count, segment in enumerate(segments):
        if not segment.size:
            return count
        newest = segment.newest[0]
        if now_ms - (newest if newest >= 0 else segment.modified_ms()) <= retention_ms:
            return count
    return len(segments)


def _too_many(segments: Sequence[Segment], retention_bytes: int) -> int:
    """As many as can go without falling below `retention_bytes`; never the active one."""
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    for count, segment in enumerate(segments[:-1]):
        excess -= segment.size
        if excess < 0:
            return count
    return len(segments) - 1
