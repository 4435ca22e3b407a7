"""Walk the files of a partition and tell everything that does not fit together.

Used by `pykafka log check` and by tests after a crash. What recovery would mend counts as well: a torn tail, an
index of a closed segment that is missing or lies. Indexes of the newest segment may lag behind it, for they
are written when it is closed. Gaps between offsets are a fault unless the log is, or was, compacted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker.errors import ConfigError
from broker.log.aborted_index import ENTRY_SIZE, decode_aborted
from broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_epochs, read_topic_id
from broker.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE
from broker.log.inspection import inspect_segment, segment_files
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from broker.log.segment import ABORTED_SUFFIX
from broker.log.segment_swap import was_compacted
from broker.records.batch import BatchHeader

__all__ = ["Problem", "check_partition"]

_OFFSET_ENTRY = struct.Struct(">ii")
_INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)
_TIME_ENTRY = struct.Struct(">qi")


class Problem(NamedTuple):
    """What is wrong in which file, at which byte when that can be said."""

    path: Path
    position: int | None
    text: str


def check_partition(directory: Path, *, compacted: bool = False) -> list[Problem]:
    """Everything wrong in a partition directory; an empty list is a sound one. Raises OSError."""
    return list(_Checker(directory, compacted or was_compacted(directory)).run())


class _Checker:
    def __init__(self, directory: Path, compacted: bool) -> None:
        self._directory = directory
        self._compacted = compacted
        self._end = 0

    def run(self) -> Iterator[Problem]:
        logs = segment_files(self._directory)
        for number, path in enumerate(logs):
            base = int(path.stem)
            if number and base != self._end and (base < self._end or not self._compacted):
                yield Problem(path, None, f"begins at offset {base}; the segment before it ends at {self._end}")
            batches: dict[int, BatchHeader] = {}
            self._end = base
            yield from self._check_batches(path, batches)
            closed = number + 1 < len(logs)
            yield from _check_offset_index(path, batches, closed)
            yield from _check_time_index(path, batches, closed)
            yield from _check_aborted(path, batches)
        stems = {path.stem for path in logs}
        for path in sorted(self._directory.glob("*index")):
            if path.suffix in _INDEX_SUFFIXES and path.stem not in stems:
                yield Problem(path, None, "there is no log for this index")
        yield from self._check_beside()

    def _check_batches(self, path: Path, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
        """Also fills `batches`, by position, and moves the end."""
        for position, header, _, problem in inspect_segment(path):
            if problem:
                yield Problem(path, position, problem)
            if header is None:
                return
            offset = header.base_offset
            if offset < self._end:
                yield Problem(path, position, f"offset {offset} where {self._end} was expected")
            elif offset > self._end and not self._compacted:
                yield Problem(path, position, f"offsets {self._end} to {offset - 1} are missing")
            batches[position] = header
            self._end = max(self._end, header.next_offset)

    def _check_beside(self) -> Iterator[Problem]:
        for path in sorted(self._directory.glob("*" + SNAPSHOT_SUFFIX)):
            try:
                decode_snapshot(path.read_bytes(), 0)
            except ValueError as error:
                yield Problem(path, None, f"no producer snapshot: {error}")
            if path.stem.isdigit() and int(path.stem) > self._end:
                yield Problem(path, None, f"is of offset {int(path.stem)}; the log ends at {self._end}")
        epochs = self._directory / LEADER_EPOCHS
        try:
            entries = read_epochs(epochs)
            read_topic_id(self._directory / PARTITION_METADATA)
        except ConfigError as error:
            yield Problem(self._directory, None, str(error))
            return
        if any(later[0] <= earlier[0] or later[1] < earlier[1] for earlier, later in pairwise(entries)):
            yield Problem(epochs, None, "epochs and their start offsets do not grow")
        if entries and entries[-1][1] > self._end:
            yield Problem(epochs, None, f"epoch {entries[-1][0]} begins past the log's end {self._end}")


def _check_offset_index(log: Path, batches: dict[int, BatchHeader], closed: bool) -> Iterator[Problem]:
    path, base = log.with_suffix(".index"), int(log.stem)
    data = path.read_bytes() if path.exists() else None
    if data is None or len(data) % OFFSET_ENTRY_SIZE:
        if closed or data is not None:
            yield Problem(path, None, "is missing" if data is None else f"ends in {len(data) % 8} stray bytes")
        return
    for number, (relative_offset, position) in enumerate(_OFFSET_ENTRY.iter_unpack(data)):
        header = batches.get(position)
        if header is None:
            text = f"entry {number} points to byte {position}, where no batch begins"
        elif header.last_offset != base + relative_offset:
            text = f"entry {number} is of offset {base + relative_offset}; the batch there ends at {header.last_offset}"
        else:
            continue
        yield Problem(path, number * OFFSET_ENTRY_SIZE, text)


def _check_time_index(log: Path, batches: dict[int, BatchHeader], closed: bool) -> Iterator[Problem]:
    path, base = log.with_suffix(".timeindex"), int(log.stem)
    data = path.read_bytes() if path.exists() else None
    if data is None or len(data) % TIME_ENTRY_SIZE:
        if closed or data is not None:
            yield Problem(path, None, "is missing" if data is None else f"ends in {len(data) % 12} stray bytes")
        return
    headers = iter(batches.values())
    newest, entry_time, offset_reached = -1, -1, base - 1
    for number, (timestamp, relative_offset) in enumerate(_TIME_ENTRY.iter_unpack(data)):
        while offset_reached < base + relative_offset and (header := next(headers, None)) is not None:
            newest, offset_reached = max(newest, header.max_timestamp), header.last_offset
        if timestamp <= entry_time and number:
            text = f"entry {number} has timestamp {timestamp} after {entry_time}"
        elif offset_reached != base + relative_offset:
            text = f"entry {number} is of offset {base + relative_offset}, where no batch ends"
        elif timestamp != newest:
            text = f"entry {number} has timestamp {timestamp}; the newest up to its offset is {newest}"
        else:
            entry_time = timestamp
            continue
        yield Problem(path, number * TIME_ENTRY_SIZE, text)
        return
    newest = max([newest, *(header.max_timestamp for header in headers)])
    if closed and newest != entry_time:
        yield Problem(path, None, f"its last timestamp is {entry_time}; the newest of the segment is {newest}")


def _check_aborted(log: Path, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
    """Every entry is of a marker in this segment. (A marker without an entry ended a transaction without records.)"""
    path = log.with_suffix(ABORTED_SUFFIX)
    if not path.exists():
        return
    try:
        entries = decode_aborted(path.read_bytes())
    except ValueError as error:
        yield Problem(path, None, f"no index of aborted transactions: {error}")
        return
    markers = {(header.producer_id, header.base_offset) for header in batches.values() if header.is_control}
    for number, entry in enumerate(entries):
        if (entry.producer_id, entry.last_offset) not in markers:
            text = f"entry {number}: producer {entry.producer_id} has no marker at offset {entry.last_offset}"
            yield Problem(path, number * ENTRY_SIZE, text)
