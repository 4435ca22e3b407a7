"""The segments of one log: which segment holds an offset, and when a new one begins.

Owned by log.py. Idea: Kafka's `LogSegments` and the rules of `UnifiedLog` about a roll.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from broker.clock import Clock
from broker.log.archived_log import not_read_yet
from broker.log.log_config import LogConfig
from broker.log.segment import MAX_RELATIVE_OFFSET, OpenSegments, Segment
from broker.log.segment_file import FileSlice
from broker.log.segment_swap import swap_in
from broker.records.batch import BatchHeader
from broker.records.crc32c import crc32c


class Segments:
    """The segments and their files, ordered by base offset: never empty, the last one is active.

    Not thread-safe. `tuple(segments)` is a snapshot that another thread may walk.
    """

    __slots__ = ("_bases", "_clock", "_directory", "_opened", "_segments", "deleted")

    def __init__(self, directory: Path, segments: Iterable[Segment], clock: Clock, opened: OpenSegments) -> None:
        self._directory = directory
        self._clock = clock
        self._opened = opened
        self._segments = list(segments)
        self._bases = [segment.base_offset for segment in self._segments]
        self.deleted = DeletedFiles()

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    @property
    def first(self) -> Segment:
        return self._segments[0]

    def roll(self, base_offset: int, config: LogConfig) -> None:
        """Make a new segment at `base_offset` the active one. It replaces an empty one that begins elsewhere.

        Raises OSError.
        """
        active = self.active
        if active.size:
            active.seal()
        segment = new_segment(self._directory, base_offset, config, self._clock, self._opened)
        if active.size:
            self._segments.append(segment)
            self._bases.append(base_offset)
        else:
            self._replace([active], segment)
            self.deleted.add(0, active.mark_deleted())

    def older_than(self, offset: int) -> int:
        """How many segments hold only records before `offset`."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def remove_oldest(self, count: int) -> list[Segment]:
        removed = self._segments[:count]
        del self._segments[:count], self._bases[:count]
        return removed

    def cut(self, offset: int) -> int:
        """Drop the batch that holds `offset` and everything after it; returns the end offset of the rest.

        Raises OSError, CorruptBatch.
        """
        keep = max(bisect_right(self._bases, offset), 1)
        _unlink(self._segments[keep:])
        del self._segments[keep:], self._bases[keep:]
        found = self.active.locate(offset)
        if found is not None:
            self.active.cut(found[0])
        return self.active.next_offset()

    def unlink_all(self) -> None:
        """Delete the files of all segments. `start_at` must follow. Raises OSError."""
        _unlink(self._segments)

    def start_at(self, base_offset: int, config: LogConfig) -> None:
        """Begin with an empty segment at `base_offset` instead of the segments so far. Raises OSError."""
        segment = new_segment(self._directory, base_offset, config, self._clock, self._opened)
        self._segments, self._bases = [segment], [base_offset]

    def holds_closed(self, run: Sequence[Segment]) -> bool:
        """Whether `run` is a run of closed segments of this log."""
        if run[0] not in self._segments[:-1]:
            return False
        first = self._segments.index(run[0])
        return self._segments[first : first + len(run)] == list(run) and run[-1] is not self.active

    def swap_in(self, old: Sequence[Segment], cleaned: Path, size: int, config: LogConfig) -> list[Path]:
        """Put the segment of `size` bytes in the directory `cleaned` in the place of the run `old`.

        Returns the files to unlink later. Raises OSError.
        """
        deleted = swap_in(cleaned, self._directory, old[0].base_offset, old)
        compacted = Segment(
            self._directory,
            old[0].base_offset,
            self._opened,
            size=size,
            created_ms=old[-1].created_ms,
            index_interval=config.index_interval_bytes,
        )
        self._replace(old, compacted)
        return deleted

    def _replace(self, old: Sequence[Segment], new: Segment) -> None:
        first = self._segments.index(old[0])
        self._segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def offset_after(self, offset: int, found: FileSlice) -> int | None:
        """An offset after all of `found`, which was just read from `offset` on; None means the log's end."""
        number = self.older_than(offset)
        if not self._segments[number].holds(found):
            return None
        past = self._segments[number].offset_after(found)
        return self._bases[number + 1] if past is None and number + 1 < len(self._bases) else past

    def read(self, offset: int, max_bytes: int, up_to: int, end: int) -> FileSlice | None:
        """Whole batches of one segment, from the batch that holds `offset`, all below `up_to`.

        `end` is the log end offset. Raises OSError, and BrokerError for an offset before the first segment.
        """
        bases = self._bases
        number = len(bases) - 1
        if offset < bases[number]:
            number = bisect_right(bases, offset) - 1
            if number < 0:
                raise not_read_yet(self._directory, offset)
        while number < len(bases):
            segment_end = bases[number + 1] if number + 1 < len(bases) else end
            found = self._segments[number].read(offset, max_bytes, up_to if up_to < segment_end else None)
            if found is not None:
                found.file.check(found.position, found.length)
            if found is not None or up_to <= segment_end:
                return found
            number += 1  # compaction removed the last records of this segment
        return None


def _unlink(segments: Sequence[Segment]) -> None:
    """Delete segments, the newest first: after a crash the others are still a log without gaps."""
    for segment in reversed(segments):
        for path in segment.mark_deleted():
            path.unlink()


# --- when a new segment begins


def new_segment(directory: Path, base_offset: int, config: LogConfig, clock: Clock, opened: OpenSegments) -> Segment:
    """Create an empty active segment by the topic's settings. Raises OSError."""
    return Segment.create(
        directory,
        base_offset,
        opened,
        created_ms=clock.now_ms(),
        index_interval=config.index_interval_bytes,
        reserve=config.segment_bytes if config.preallocate else 0,
    )


def must_roll(
    active: Segment,
    config: LogConfig,
    incoming: int,
    placed: Sequence[tuple[int, BatchHeader]],
    base_offset: int,
    now_ms: int,
) -> bool:
    """Whether `incoming` bytes from `base_offset` on, batches as (last offset, header), need a new segment.

    The first offset of a follower may lie before the empty segment that its log began with, or far behind it.

    The age of a segment is measured in the records' own timestamps, as in Kafka: a replay of old data gets segments
    by its own time. Records without timestamps are measured by the broker's clock.
    """
    last_offset, header = placed[-1]
    if not active.size:
        return base_offset < active.base_offset or last_offset - active.base_offset > MAX_RELATIVE_OFFSET
    if active.size + incoming > config.segment_bytes or last_offset - active.base_offset > MAX_RELATIVE_OFFSET:
        return True
    if active.indexes_full(config.segment_index_bytes):
        return True
    first = active.first_timestamp
    newest_ms = header.max_timestamp if len(placed) == 1 else max(header.max_timestamp for _, header in placed)
    if first < 0 or newest_ms < 0:
        return is_aged(active, config, now_ms)
    return newest_ms - first > _roll_after(active, config)


def is_aged(active: Segment, config: LogConfig, now_ms: int) -> bool:
    """Whether the segment has records and was created, or opened, longer ago than segment.ms."""
    return active.size > 0 and now_ms - active.created_ms > _roll_after(active, config)


def _roll_after(segment: Segment, config: LogConfig) -> int:
    """segment.ms minus the segment's share of segment.jitter.ms, which is random but fixed for each segment.

    max.compaction.lag.ms replaces a longer segment.ms, because only closed segments are compacted.
    """
    longest = min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
    if not config.segment_jitter_ms:
        return longest
    spread = min(config.segment_jitter_ms, longest)
    return longest - crc32c(str(segment.path()).encode()) % spread


# --- deleted files


class DeletedFiles:
    """Renamed files that wait for file.delete.delay.ms. After a crash the next start finds and removes them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Path]] = []

    def add(self, due_ms: int, paths: Iterable[Path]) -> None:
        self._waiting += [(due_ms, path) for path in paths]

    def take(self, now_ms: int) -> list[Path]:
        """Remove and return the paths that are due, for the caller to unlink."""
        due = [path for when, path in self._waiting if when <= now_ms]
        if due:
            self._waiting = [entry for entry in self._waiting if entry[0] > now_ms]
        return due
