"""Put a compacted segment in the place of those it was made from, so that a crash at any step leaves one or the other.

`swap_in` is called by the log's owner, `finish_swaps` by recovery.py before it looks at anything else. The steps:

0. The first time, the partition's directory is marked as one that may have gaps between offsets, for good: recovery
   must not take them for damage when cleanup.policy is another by then.
1. The indexes, then the log file, move from the cleaned directory into the partition's, with the suffix `.swap`. Until
   `X.log.swap` is there nothing has happened; from then on the swap will be finished, if need be at the next start.
2. The old segments' files get the suffix `.deleted`.
3. `X.index.swap` and the others lose their suffix, the log file last.

A compacted segment always ends with the last offset of those it replaces, so what `X.log.swap` replaces can be told
from the file itself. It has no aborted transactions any more, hence no `.txnindex`. Idea: Kafka's
`LocalLog.replaceSegments`, whose suffixes these are.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from broker.log.segment import Segment, segment_path
from broker.log.segment_file import SegmentFile, scan_headers

__all__ = ["CLEANED_SUFFIX", "SWAP_SUFFIX", "finish_swaps", "swap_in", "was_compacted"]

logger = logging.getLogger(__name__)

CLEANED_SUFFIX = ".cleaned"
"""Of the directory in a partition's directory that compacted segments are written to."""
SWAP_SUFFIX = ".swap"

_COMPACTED_MARK = ".compacted"
_INDEXES = (".index", ".timeindex")
_SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def swap_in(cleaned: Path, directory: Path, base_offset: int, old: Sequence[Segment]) -> list[Path]:
    """Replace `old` by the segment at `base_offset` of the directory `cleaned`; returns the files to unlink later.

    Raises OSError; the log must then not be used until a start has run `finish_swaps`.
    """
    if not was_compacted(directory):
        (directory / _COMPACTED_MARK).touch()
    for suffix in (*_INDEXES, ".log"):
        segment_path(cleaned, base_offset, suffix).rename(_swap_path(directory, base_offset, suffix))
    doomed = [path for segment in old for path in segment.mark_deleted()]
    _take_places(directory, base_offset)
    return doomed


def was_compacted(directory: Path) -> bool:
    """Whether a segment of this partition was ever compacted, so that offsets may be missing."""
    return (directory / _COMPACTED_MARK).exists()


def finish_swaps(directory: Path) -> None:
    """Finish the swaps that a crash cut short, and remove what others left before they counted. Raises OSError."""
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
    """Unlink the old segments in [base_offset, end), but for indexes that are the new segment's already."""
    for name in os.listdir(directory):
        stem, suffix = os.path.splitext(name)
        if suffix not in _SEGMENT_SUFFIXES or not stem.isdigit() or not base_offset <= int(stem) < end:
            continue
        is_new = suffix in _INDEXES and int(stem) == base_offset
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
