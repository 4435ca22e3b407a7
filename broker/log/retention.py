"""Which segments are old enough to leave the disk, and with an archive, which records are old enough to go for good.

Called by retained_log.py. Without an archive both are the same: the oldest segments go, by retention.ms and
retention.bytes. With one, local.retention.* say what leaves the disk, and retention.* where the whole log shall start.
Kafka's rules (`UnifiedLog.deleteOldSegments`, `RemoteLogManager.RLMExpirationTask`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from broker.log.archived_log import ArchivedLog
from broker.log.log_config import LogConfig
from broker.log.segment import Segment


def expired_segments(
    segments: Sequence[Segment], config: LogConfig, now_ms: int, log_start_offset: int
) -> tuple[int, str]:
    """(how many of the oldest segments to delete, the reason for the broker's log).

    It may be all of them. A segment that is kept protects all later ones, so offsets never get gaps.
    """
    before_start = sum(1 for following in segments[1:] if following.base_offset <= log_start_offset)
    found = [(before_start, f"the log starts at offset {log_start_offset}")]
    if "delete" in config.cleanup_policy:
        prefix = "local.retention" if config.copies_segments else "retention"
        found += [
            (_too_many(segments, config.local_bytes), f"{prefix}.bytes is {config.local_bytes}"),
            (_too_old(segments, config.local_ms, now_ms), f"{prefix}.ms is {config.local_ms}"),
        ]
    return max(found, key=lambda counted: counted[0])


def _too_old(segments: Sequence[Segment], retention_ms: int, now_ms: int) -> int:
    """A segment is as old as its newest timestamp, or as its file when its records have no timestamps."""
    if retention_ms < 0:
        return 0
    for count, segment in enumerate(segments):
        if not segment.size or now_ms - segment.newest_ms() <= retention_ms:
            return count
    return len(segments)


def of_the_future(
    archived: ArchivedLog | None, segments: Sequence[Segment], config: LogConfig, now_ms: int
) -> tuple[int, int] | None:
    """(offset, newest timestamp) of the segment that is to go next by its age, if it has a record of the future: it
    keeps itself and all after it until then. None if there is no such segment."""
    if "delete" not in config.cleanup_policy:
        return None
    parts = (
        [(one.base, one.max_timestamp) for one in archived.segments[:1]]
        if archived and config.retention_ms >= 0
        else []
    )
    if config.local_ms >= 0:
        kept = segments[_too_old(segments, config.local_ms, now_ms) :][:1]
        parts += [(one.base_offset, one.newest_ms()) for one in kept if one.size]
    return next((part for part in parts if part[1] > now_ms), None)


def _too_many(segments: Sequence[Segment], retention_bytes: int) -> int:
    """How many can go without falling below `retention_bytes`; never the active segment."""
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    for count, segment in enumerate(segments[:-1]):
        excess -= segment.size
        if excess < 0:
            return count
    return len(segments) - 1


# --- the whole log, of which the first part is in the archive


class _Part(NamedTuple):
    """A closed segment of the whole log. `newest_ms`: of its records, -1 when they have no timestamps."""

    end: int
    size: int
    newest_ms: int


def retained_from(archived: ArchivedLog | None, segments: Sequence[Segment], config: LogConfig, now_ms: int) -> int:
    """The offset before which retention.ms and retention.bytes let all records go; 0 for none.

    A segment that still has to be copied stays, and so does all after it: it is not archived late, but lost.
    """
    if "delete" not in config.cleanup_policy:
        return 0
    archived_end = 0 if archived is None else archived.end
    local = [segment for segment in segments if segment.base_offset >= archived_end]
    kept_by_size = (archived.size if archived else 0) + sum(segment.size for segment in local)
    by_size = by_time = 0
    excess = kept_by_size - config.retention_bytes if config.retention_bytes >= 0 else -1
    for part in _parts(archived, [] if config.copies_segments else local):
        excess -= part.size
        if excess < 0:
            break
        by_size = part.end
    if config.retention_ms >= 0:
        by_time = _older_than(_parts(archived, [] if config.copies_segments else local), now_ms - config.retention_ms)
    return max(by_size, by_time)


def _parts(archived: ArchivedLog | None, local: Sequence[Segment]) -> Iterator[_Part]:
    """The closed segments, the oldest first. Reads of a local one how new it is only when it is its turn."""
    if archived is not None:
        for one in archived.segments:
            yield _Part(one.end, one.size, one.max_timestamp)
    for segment, following in pairwise(local):
        yield _Part(following.base_offset, segment.size, segment.newest_ms())


def _older_than(parts: Iterable[_Part], ms: int) -> int:
    """Where the oldest parts end that are all older than `ms`. One without timestamps is as old as the one after it."""
    end = 0
    for part in parts:
        if part.newest_ms >= ms:
            break
        if part.newest_ms >= 0:
            end = part.end
    return end
