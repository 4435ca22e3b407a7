"""Read the files of a partition offline, and report everything in them that is wrong.

Used by `pykafka log dump` and `pykafka log check`, and by tests after a crash. Opens files read-only, takes no lock and
repairs nothing, so it may read the directory of a running broker or of a damaged one. `check_partition` also reports
what recovery would repair: a torn tail, or a missing or wrong index of a closed segment. Indexes of the newest segment
may lag behind it, because they are written when it is closed. Gaps between offsets are a fault unless the log is, or
was, compacted. A file that cannot be read does not hide the others: what is in it is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from broker.errors import ConfigError, CorruptBatch
from broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_epochs, read_topic_id
from broker.log.index import OFFSET_ENTRY, TIME_ENTRY
from broker.log.log_directory import partition_name
from broker.log.producer_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from broker.log.segment import ABORTED_SUFFIX
from broker.log.segment_file import SegmentFile, scan_headers
from broker.log.segment_swap import was_compacted
from broker.protocol.topic_partition import TopicPartition
from broker.records.aborted_entries import ENTRY_SIZE, decode_aborted
from broker.records.batch import BatchHeader, verify_batch
from broker.stored_names import number_named
from broker.verdict import Verdict

_SEGMENT_NAME = re.compile(r"\d{20}\.log")


class InspectedBatch(NamedTuple):
    """A batch at byte `position` of a segment file; `problem` is empty for a sound one.

    `header` and `data` are None for bytes that are no whole batch; nothing after them is read.
    """

    position: int
    header: BatchHeader | None
    data: bytes | None
    problem: str


def partition_directories(directory: Path) -> list[Path]:
    """The directory itself if it holds segments, else its subdirectories that do. Raises ConfigError for none."""
    if not directory.is_dir():
        raise ConfigError(f"{directory} is no directory; name a partition's, such as pykafka-data/flights-0")
    if segment_files(directory):
        return [directory]
    found = [path for path in sorted(directory.iterdir()) if path.is_dir() and _may_hold_segments(path)]
    if not found:
        raise ConfigError(f"{directory} holds no segment (*.log) and no partition directory that does")
    return found


def segment_files(directory: Path) -> list[Path]:
    """The log files of a partition, oldest first. Raises OSError."""
    # `Path.glob` takes a directory that may not be read for an empty one.
    return sorted(directory / name for name in os.listdir(directory) if _SEGMENT_NAME.fullmatch(name))


def _may_hold_segments(directory: Path) -> bool:
    try:
        return bool(segment_files(directory))
    except OSError:
        return True  # who reads it is told why not


def inspect_segment(path: Path) -> Iterator[InspectedBatch]:
    """Every batch of a segment file; one with a wrong CRC is reported and skipped. Raises OSError."""
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


_INDEX_SUFFIXES = (".index", ".timeindex", ABORTED_SUFFIX)


class Problem(NamedTuple):
    """What is wrong in which file, and at which byte if that is known. `verdict` UNKNOWN: the file cannot be read."""

    path: Path
    position: int | None
    text: str
    verdict: Verdict = Verdict.MISMATCH


def check_partition(directory: Path, *, compacted: bool = False) -> list[Problem]:
    """Everything that is wrong in a partition directory, or cannot be read; an empty list means it is sound."""
    return list(_Checker(directory, compacted or was_compacted(directory)).run())


def partition_copies(directories: Iterable[Path]) -> list[Problem]:
    """The partition directories that hold the same partition as an earlier one. A broker refuses to start with them."""
    first: dict[TopicPartition, Path] = {}
    problems = []
    for path in dict.fromkeys(directory.resolve() for directory in directories):
        tp = partition_name(path)
        if tp is not None and first.setdefault(tp, path) != path:
            problems.append(Problem(path, None, f"is the same partition as {first[tp]}; keep one of them in log.dirs"))
    return problems


class _Checker:
    def __init__(self, directory: Path, compacted: bool) -> None:
        self._directory = directory
        self._compacted = compacted
        self._end = 0
        self._knows_end = True

    def run(self) -> Iterator[Problem]:
        yield from self._looked_at(self._directory, self._run())

    def _run(self) -> Iterator[Problem]:
        logs = segment_files(self._directory)
        for number, path in enumerate(logs):
            base = int(path.stem)
            follows = base == self._end or (base > self._end and self._compacted)
            if number and self._knows_end and not follows:
                yield Problem(path, None, f"begins at offset {base}; the segment before it ends at {self._end}")
            batches: dict[int, BatchHeader] = {}
            self._end, self._knows_end = base, False
            yield from self._looked_at(path, self._check_batches(path, batches))
            if not self._knows_end:
                continue
            closed = number + 1 < len(logs)
            for check in (_check_offset_index, _check_time_index, _check_aborted):
                yield from self._looked_at(path, check(path, batches, closed))
        stems = {path.stem for path in logs}
        for path in sorted(self._directory.glob("*index")):
            if path.suffix in _INDEX_SUFFIXES and path.stem not in stems:
                yield Problem(path, None, "there is no log for this index")
        yield from self._check_beside()

    def _looked_at(self, path: Path, check: Iterator[Problem]) -> Iterator[Problem]:
        """What a check finds; if a file cannot be read, that."""
        try:
            yield from check
        except OSError as error:
            named = Path(os.fsdecode(error.filename)) if error.filename else path
            yield Problem(named, None, f"cannot be read: {error.strerror or error}", Verdict.UNKNOWN)

    def _check_batches(self, path: Path, batches: dict[int, BatchHeader]) -> Iterator[Problem]:
        """Also fills `batches` (by position) and updates the end."""
        for position, header, _, problem in inspect_segment(path):
            if problem:
                yield Problem(path, position, problem)
            if header is None:
                break
            offset = header.base_offset
            if offset < self._end:
                yield Problem(path, position, f"offset {offset} where {self._end} was expected")
            elif offset > self._end and not self._compacted:
                yield Problem(path, position, f"offsets {self._end} to {offset - 1} are missing")
            batches[position] = header
            self._end = max(self._end, header.next_offset)
        self._knows_end = True

    def _check_beside(self) -> Iterator[Problem]:
        for path in sorted(self._directory.glob("*" + SNAPSHOT_SUFFIX)):
            yield from self._looked_at(path, _check_snapshot(path))
            offset = number_named(path.stem)
            if self._knows_end and offset is not None and offset > self._end:
                yield Problem(path, None, f"is of offset {offset}; the log ends at {self._end}")
        epochs = self._directory / LEADER_EPOCHS
        try:
            entries = read_epochs(epochs)
            read_topic_id(self._directory / PARTITION_METADATA)
        except ConfigError as error:
            yield Problem(self._directory, None, str(error))
            return
        if any(later[0] <= earlier[0] or later[1] < earlier[1] for earlier, later in pairwise(entries)):
            yield Problem(epochs, None, "epochs and their start offsets do not grow")
        if self._knows_end and entries and entries[-1][1] > self._end:
            yield Problem(epochs, None, f"epoch {entries[-1][0]} begins past the log's end {self._end}")


def _check_snapshot(path: Path) -> Iterator[Problem]:
    try:
        decode_snapshot(path.read_bytes(), 0)
    except ValueError as error:
        yield Problem(path, None, f"no producer snapshot: {error}")


def _read_index(path: Path, entry_size: int, closed: bool) -> Generator[Problem, None, bytes | None]:
    """The entries of an index; None when the file is cut or missing, which it may be unless `closed`."""
    data = path.read_bytes() if path.exists() else None
    if data is None:
        if closed:
            yield Problem(path, None, "is missing")
    elif len(data) % entry_size:
        yield Problem(path, None, f"ends in {len(data) % entry_size} stray bytes")
        data = None
    return data


def _check_offset_index(log: Path, batches: dict[int, BatchHeader], closed: bool) -> Iterator[Problem]:
    path, base = log.with_suffix(".index"), int(log.stem)
    data = yield from _read_index(path, OFFSET_ENTRY.size, closed)
    for number, (relative_offset, position) in enumerate(OFFSET_ENTRY.iter_unpack(data or b"")):
        header = batches.get(position)
        if header is None:
            text = f"entry {number} points to byte {position}, where no batch begins"
        elif header.last_offset != base + relative_offset:
            text = f"entry {number} is of offset {base + relative_offset}; the batch there ends at {header.last_offset}"
        else:
            continue
        yield Problem(path, number * OFFSET_ENTRY.size, text)


def _check_time_index(log: Path, batches: dict[int, BatchHeader], closed: bool) -> Iterator[Problem]:
    path, base = log.with_suffix(".timeindex"), int(log.stem)
    data = yield from _read_index(path, TIME_ENTRY.size, closed)
    if data is None:
        return
    headers = iter(batches.values())
    newest, entry_time, offset_reached = -1, -1, base - 1
    for number, (timestamp, relative_offset) in enumerate(TIME_ENTRY.iter_unpack(data)):
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
        yield Problem(path, number * TIME_ENTRY.size, text)
        return
    newest = max([newest, *(header.max_timestamp for header in headers)])
    if closed and newest != entry_time:
        yield Problem(path, None, f"its last timestamp is {entry_time}; the newest of the segment is {newest}")


def _check_aborted(log: Path, batches: dict[int, BatchHeader], closed: bool) -> Iterator[Problem]:
    """Every entry needs its marker in this segment. A marker of a transaction without records has no entry."""
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
