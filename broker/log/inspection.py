"""Read a partition directory offline, as it is: every batch, sound or not.

Used by consistency.py and by `pykafka log dump`. Opens files read-only, takes no lock, repairs nothing, so it
may look at the directory of a running broker or at the wreck of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from broker.errors import ConfigError, CorruptBatch
from broker.log.scan import scan_headers
from broker.log.segment_file import SegmentFile
from broker.records.batch import BatchHeader, verify_batch

__all__ = ["InspectedBatch", "inspect_segment", "partition_directories", "segment_files"]

_SEGMENT_NAME = re.compile(r"\d{20}\.log")


class InspectedBatch(NamedTuple):
    """A batch at byte `position` of a segment file; `problem` is empty when all of it is sound.

    `header` and `data` are None for what cannot even be framed as a batch: then it is the last one.
    """

    position: int
    header: BatchHeader | None
    data: bytes | None
    problem: str


def partition_directories(directory: Path) -> list[Path]:
    """The directory itself if it holds segments, else those below it that do. Raises ConfigError for none."""
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory; name a partition's, such as pykafka-data/flights-0")
    if segment_files(directory):
        return [directory]
    found = [path for path in sorted(directory.iterdir()) if path.is_dir() and segment_files(path)]
    if not found:
        raise ConfigError(f"{directory} holds no segment (*.log) and no partition directory that does")
    return found


def segment_files(directory: Path) -> list[Path]:
    """The log files of a partition, oldest first."""
    return sorted(path for path in directory.glob("*.log") if _SEGMENT_NAME.fullmatch(path.name))


def inspect_segment(path: Path) -> Iterator[InspectedBatch]:
    """Every batch of a segment file; one with a wrong CRC is reported and stepped over. Raises OSError."""
    file = SegmentFile(path, writable=False)
    size = path.stat().st_size
    end = 0
    try:
        for position, header in scan_headers(file, 0, size):
            data = file.pread(header.size, position)
            yield InspectedBatch(position, header, data, _problem_of(data, header))
            end = position + header.size
    except CorruptBatch as error:
        yield InspectedBatch(end, None, None, f"{size - end} bytes that are no whole batch: {error.message}")


def _problem_of(data: bytes, header: BatchHeader) -> str:
    try:
        verify_batch(data, 0, header)
    except CorruptBatch as error:
        return error.message
    return ""
