"""Replace segments by the segment that was compacted from them, so that a crash at any step leaves one or the other.

log.py calls `swap_in`; recovery.py calls `finish_swaps` before it reads anything else. The steps:

0. The first time, mark the partition's directory as one whose offsets may have gaps. Recovery must not take the gaps
   for damage, even if cleanup.policy has changed by then.
1. Move the indexes, then the log file, from the cleaned directory into the partition's, with the suffix `.swap`. A
   crash before `X.log.swap` exists undoes the swap. After that, the next start finishes it.
2. Give the old segments' files the suffix `.deleted`.
3. Remove the suffix from `X.index.swap` and the others, from the log file last.

A compacted segment ends with the last offset of the segments it replaces, so the file itself says which these are. It
has no aborted transactions and therefore no `.txnindex`. Idea and suffixes: Kafka's `LocalLog.replaceSegments`.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from broker.log.segment import Segment, segment_path
from broker.log.segment_file import SegmentFile, scan_headers
from broker.stored_names import number_named

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
"""Of the directory in a partition's directory that compacted segments are written to."""
SWAP_SUFFIX = ".swap"

_COMPACTED_MARK = ".compacted"
_INDEXES = (".index", ".timeindex")
_SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def swap_in(cleaned: Path, directory: Path, base_offset: int, old: Sequence[Segment]) -> list[Path]:
    """Replace `old` by the segment at `base_offset` in the directory `cleaned`; returns the files to unlink later.

    Raises OSError; the log must then not be used before `finish_swaps` ran.
    """
    mark_compacted(directory)
    for suffix in (*_INDEXES, ".log"):
        segment_path(cleaned, base_offset, suffix).rename(_swap_path(directory, base_offset, suffix))
    doomed = [path for segment in old for path in segment.mark_deleted()]
    _take_places(directory, base_offset)
    return doomed


def mark_compacted(directory: Path) -> None:
    """Note that offsets of this partition may have gaps: it is compacted, or copied from a compacted one.

    Raises OSError.
    """
    if not was_compacted(directory):
        (directory / _COMPACTED_MARK).touch()


def was_compacted(directory: Path) -> bool:
    """Whether a segment of this partition, or of its leader, was ever compacted, so that offsets may have gaps."""
    return (directory / _COMPACTED_MARK).exists()


def finish_swaps(directory: Path) -> None:
    """Finish the swaps that a crash interrupted after step 1, and undo earlier ones. Raises OSError."""
    names = os.listdir(directory)
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            path = directory / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    begun = sorted(int(name.partition(".")[0]) for name in names if name.endswith(".log" + SWAP_SUFFIX))
    for base_offset in begun:
        end = _end_of(_swap_path(directory, base_offset, ".log"))
        logger.info("%s: finishing the swap of the compacted segment %d, up to offset %d", directory, base_offset, end)
        _remove_replaced(directory, base_offset, end)
        _take_places(directory, base_offset)
    for name in names:
        if name.endswith(SWAP_SUFFIX):
            (directory / name).unlink(missing_ok=True)


def _remove_replaced(directory: Path, base_offset: int, end: int) -> None:
    """Unlink the old segments in [base_offset, end), but not indexes that belong to the new segment already."""
    for name in os.listdir(directory):
        stem, suffix = os.path.splitext(name)
        base = number_named(stem)
        if suffix not in _SEGMENT_SUFFIXES or base is None or not base_offset <= base < end:
            continue
        is_new = suffix in _INDEXES and base == base_offset
        if not is_new or _swap_path(directory, base_offset, suffix).exists():
            (directory / name).unlink()


def _take_places(directory: Path, base_offset: int) -> None:
    for suffix in (*_INDEXES, ".log"):
        path = _swap_path(directory, base_offset, suffix)
        if path.exists():
            path.rename(segment_path(directory, base_offset, suffix))


def _swap_path(directory: Path, base_offset: int, suffix: str) -> Path:
    return segment_path(directory, base_offset, suffix + SWAP_SUFFIX)


def _end_of(path: Path) -> int:
    """The offset after the last batch of a segment file."""
    end = 0
    for _, header in scan_headers(SegmentFile(path, writable=False), 0, path.stat().st_size):
        end = header.next_offset
    return end
