"""What the cleaner asks of a compaction and what it gets back: plain values that cross to another process.

Made by cleaner.py, carried out by compaction.py. The plan is a snapshot of a log that lives on: the owner may
delete the oldest segments meanwhile, then what was compacted is thrown away.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "CLEANED_SUFFIX",
    "AbortedRange",
    "Compacted",
    "CompactionPlan",
    "CompactionResult",
    "LastOfProducer",
    "PlannedSegment",
]

CLEANED_SUFFIX = ".cleaned"
"""Ends the name of the directory, inside the partition's, that compacted segments are written in."""


class PlannedSegment(NamedTuple):
    """A closed segment: all its batches are in the first `size` bytes of its file."""

    base_offset: int
    size: int


class AbortedRange(NamedTuple):
    """An aborted transaction: its first offset, and that of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class LastOfProducer(NamedTuple):
    """What must stay of a producer so that its epoch and sequence survive: the batch or marker that ends with
    `last_offset` or, where it is only known that there are markers (None), those of `epoch`."""

    last_offset: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """All a compaction of one log needs to know. Times in ms, sizes in bytes."""

    directory: Path
    segments: tuple[PlannedSegment, ...]
    """From the log's first to the last that may be cleaned."""
    first_dirty_offset: int
    """Where the last compaction ended: keys are gathered from here."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval: int
    producers: dict[int, LastOfProducer] = field(default_factory=dict)
    aborted: tuple[AbortedRange, ...] = ()
    """Those that touch the segments."""
    map_bytes: int = 128 << 20
    """Memory for the keys of the dirty part; when it is full the rest is left to the next time."""
    bytes_per_second: float = float("inf")
    """Bound on reading and writing together."""
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Makes the directory's name unique: what an orphan still writes can never be taken for a later run's."""

    @property
    def cleaned_directory(self) -> Path:
        return self.directory / f"compaction-{self.token}{CLEANED_SUFFIX}"


class Compacted(NamedTuple):
    """Some segments of a plan, those from `first` up to `end`, rewritten into one of `size` bytes; it stands,
    synced, under the base offset of the first in the plan's `cleaned_directory`."""

    first: int
    end: int
    base_offset: int
    size: int


class CompactionResult(NamedTuple):
    """The end of a compaction: the log is clean before `clean_offset`."""

    clean_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
