"""Checks the archive of a partition: that what its manifest promises is in the store (A14). Only reads.

`pykafka log archive verify` calls it. Without `deep`, the manifest and the lists of objects with their sizes; `deep`
reads all objects: the CRC of each file and of each record batch, offsets, leader epochs, and the positions that readers
jump to. Brokers may go on meanwhile: what is committed or deleted during the check is no problem. What the store does
not give, because it is away or refuses, is unknown.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from broker.archive.aux_file import AuxFile, BrokenAux, decode_aux
from broker.archive.contents import is_named, objects_of, unnamed_since_ms
from broker.archive.layout import PartitionPlace, number_of
from broker.archive.manifest import (
    MOST_AUX,
    SNAPSHOT_EVERY,
    Add,
    ArchivedSegment,
    BrokenManifest,
    Entry,
    Manifest,
    Snapshot,
    from_snapshot,
)
from broker.archive.manifest_json import decode_entry
from broker.errors import CorruptBatch
from broker.records.batch import HEADER_SIZE, BatchHeader, parse_header, verify_batch
from broker.records.crc32c import crc32c
from broker.storage.storage import Storage, TooLarge
from broker.storage.url_secrets import text_without_secrets
from broker.verdict import Verdict

BLOCK = 8 << 20
"""Bytes of an object that are read at a time."""
_READ_AT_ONCE = 8

MISSING, SHORT, TORN, HOLE, OVERLAP = "missing object", "wrong size", "torn", "hole", "overlap"
EPOCHS, GAP, MANIFEST, ORPHAN = "epoch order", "entry gap", "manifest", "orphan"


class Problem(NamedTuple):
    """Something that is not as it must be."""

    path: str
    kind: str
    text: str


@dataclass
class Report:
    place: PartitionPlace
    manifest: Manifest = field(default_factory=Manifest)
    """As far as it could be read."""
    problems: list[Problem] = field(default_factory=list)
    unnamed: int = 0
    """Objects that the manifest does not name and that are too young for an orphan: copies that are under way, and
    objects of deleted segments."""
    unread: list[str] = field(default_factory=list)
    """What the store did not give, and why."""

    @property
    def verdict(self) -> Verdict:
        return Verdict.of(self.problems, self.unread)

    @contextlib.contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """A block that reads what is below `path`; an error of the store ends the block, and is kept."""
        try:
            yield
        except OSError as error:
            self.unread.append(f"{path}: {text_without_secrets(str(error))}")


def verify_partition(storage: Storage, place: PartitionPlace, *, deep: bool, orphan_ms: int, now_ms: int) -> Report:
    """Blocks on the store. An object that no manifest names is an orphan from the age of `orphan_ms` on."""
    report = Report(place)
    with report.reading(place.directory):
        objects = objects_of(storage, place).sizes
        is_whole = _read_manifest(storage, report)
        named = {segment.name for segment in report.manifest.segments}
        for segment in report.manifest.segments:
            with report.reading(place.segment(segment.name)):
                _check_objects(storage, report, segment, objects)
            if deep:
                _read_segment(storage, report, segment)
        if is_whole:
            for file in objects:
                if not is_named(file, named):
                    _check_orphan(storage, report, file, now_ms - orphan_ms)
    return report


# --- the manifest ---------------------------------------------------------------------------------------------------


def _read_manifest(storage: Storage, report: Report) -> bool:
    """Fold all entries that must be there, from the last snapshot but one. False if they could not all be folded."""
    numbers = _numbers(storage, report.place)
    while True:
        report.manifest, problem = _fold(storage, report.place, numbers)
        listed, numbers = numbers, _numbers(storage, report.place)
        if problem is None or _first(numbers) == _first(listed):  # else older entries were deleted meanwhile
            break
    if problem is not None:
        report.problems.append(problem)
    return problem is None


def _numbers(storage: Storage, place: PartitionPlace) -> list[int]:
    names = (number_of(name) for name in storage.names(place.manifest))
    return sorted(number for number in names if number is not None)


def _first(numbers: list[int]) -> int:
    """The number of the last snapshot but one; what is older may be deleted."""
    return max(numbers[-1] // SNAPSHOT_EVERY - 1, 0) * SNAPSHOT_EVERY if numbers else 0


def _fold(storage: Storage, place: PartitionPlace, listed: list[int]) -> tuple[Manifest, Problem | None]:
    """The manifest, as far as it can be read, and why not further."""
    manifest, first = Manifest(), _first(listed)
    numbers = range(first, listed[-1] + 1) if listed else range(0)
    with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
        found = list(pool.map(lambda number: _read(storage, place.entry(number)), numbers))
    for number, data in zip(numbers, found, strict=True):
        path = place.entry(number)
        if data is None:
            return manifest, Problem(path, GAP, f"there is no entry {number}, and the last is {listed[-1]}")
        try:
            entry = decode_entry(data)
        except BrokenManifest as error:
            return manifest, Problem(path, MANIFEST, str(error))
        if number == first > 0:
            manifest = Manifest(next_number=number)
        try:
            manifest = from_snapshot(entry) if number == first == entry.number > 0 else manifest.apply(entry)
        except BrokenManifest as error:
            return manifest, Problem(path, _kind_of(manifest, entry), str(error))
    return manifest, None


def _read(storage: Storage, path: str) -> bytes | None:
    """None if it is missing; nothing of one that is larger than any entry, which is no entry then."""
    try:
        return storage.read(path)
    except FileNotFoundError:
        return None
    except TooLarge:
        return b""


def _kind_of(manifest: Manifest, entry: Entry) -> str:
    """Why an entry does not fit."""
    if entry.epoch < manifest.epoch:
        return EPOCHS
    if isinstance(entry.change, Add):
        return _kind_of_segments((*manifest.segments[-1:], entry.change.segment), manifest.end)
    if isinstance(entry.change, Snapshot) and entry.change.segments:
        return _kind_of_segments(entry.change.segments, entry.change.segments[0].base)
    return MANIFEST


def _kind_of_segments(segments: tuple[ArchivedSegment, ...], end: int) -> str:
    for before, after in pairwise(segments):
        if after.base != before.end:
            return HOLE if after.base > before.end else OVERLAP
        if after.epochs[0].epoch < before.epochs[-1].epoch:
            return EPOCHS
    if segments and segments[-1].base > end:
        return HOLE
    return MANIFEST


# --- objects --------------------------------------------------------------------------------------------------------


def _check_objects(storage: Storage, report: Report, segment: ArchivedSegment, objects: dict[str, int]) -> None:
    place = report.place
    for path, size in ((place.segment(segment.name), segment.size), (place.aux(segment.name), segment.aux_size)):
        found = objects.get(path.rpartition("/")[2])
        if found is None and not storage.exists(path):  # else it was put after the list was made
            report.problems.append(Problem(path, MISSING, f"the records {segment.base} to {segment.end - 1} need it"))
        elif found is not None and found != size:
            report.problems.append(Problem(path, SHORT, f"it has {found} bytes, and the manifest says {size}"))


def _check_orphan(storage: Storage, report: Report, file: str, before_ms: int) -> None:
    path = f"{report.place.directory}/{file}"
    try:
        unnamed_ms = unnamed_since_ms(storage, report.place, report.manifest, path)
    except FileNotFoundError:
        return
    if unnamed_ms <= before_ms:
        text = "no manifest names it, and it is too old for a copy that is under way; see `pykafka log archive prune`"
        report.problems.append(Problem(path, ORPHAN, text))
    else:
        report.unnamed += 1


# --- their content --------------------------------------------------------------------------------------------------


def _read_segment(storage: Storage, report: Report, segment: ArchivedSegment) -> None:
    """Problems that only reading finds. An object that is missing was told already."""
    path = report.place.aux(segment.name)
    end = segment.end
    with report.reading(path), contextlib.suppress(FileNotFoundError):
        try:
            aux = decode_aux(storage.read(path, MOST_AUX))
            end = aux.end
            if text := _aux_problem(aux, segment):
                report.problems.append(Problem(path, TORN, text))
        except (BrokenAux, TooLarge) as error:
            report.problems.append(Problem(path, TORN, str(error)))
    path = report.place.segment(segment.name)
    with report.reading(path), contextlib.suppress(FileNotFoundError):
        for text in _Walk(segment, end).problems(storage, path):
            report.problems.append(Problem(path, TORN, text))


def _aux_problem(aux: AuxFile, segment: ArchivedSegment) -> str:
    """A truncation may have cut the segment, but not its objects."""
    said = (aux.base, aux.log_size, aux.log_crc)
    if said != (segment.base, segment.size, segment.crc) or aux.end < segment.end:
        return f"it belongs to {aux.log_size} bytes with the records {aux.base} to {aux.end - 1}, not to this segment"
    return ""


class _Walk:
    def __init__(self, segment: ArchivedSegment, end: int) -> None:
        """`end` is the offset after the last record in the object."""
        self._segment = segment
        self._end = end
        self._next = segment.base
        self._epoch = segment.epochs[0].epoch
        self._marks = {mark.position: mark.offset for mark in segment.marks[1:]}

    def problems(self, storage: Storage, path: str) -> Iterator[str]:
        """The first wrong batch, if any, and whether the CRC of the whole is right. Raises FileNotFoundError."""
        crc, rest, position, is_sound = 0, b"", 0, True
        for block in _blocks(storage, path, self._segment.size):
            crc = crc32c(block, crc)
            if is_sound:
                try:
                    used = self._batches(rest + block, position)
                except CorruptBatch as error:
                    yield error.message
                    is_sound = False
                else:
                    rest = (rest + block)[used:]
                    position += used
        if is_sound and rest:
            yield f"it ends within the batch at byte {position}"
        elif is_sound and self._marks:
            yield f"no batch begins at byte {min(self._marks)}, where the manifest has a mark"
        if crc != self._segment.crc:
            yield f"its CRC-32C is {crc:08x}, and the manifest says {self._segment.crc:08x}"

    def _batches(self, data: bytes, begin: int) -> int:
        """Check the whole batches in `data`, which begins at byte `begin` of the object; returns their bytes."""
        at = 0
        while len(data) - at >= HEADER_SIZE:
            header = parse_header(data, at)
            if header.length < 0:
                raise CorruptBatch(f"length {header.length} of the batch at byte {begin + at}")
            if at + header.size > len(data) and begin + at + header.size <= self._segment.size:
                break
            verify_batch(data, at, header)
            self._check(header, begin + at)
            at += header.size
        return at

    def _check(self, header: BatchHeader, position: int) -> None:
        if not (self._next <= header.base_offset and header.next_offset <= self._end):
            raise CorruptBatch(
                f"the batch at byte {position} has the records {header.base_offset} to {header.last_offset}; it should "
                f"lie between {self._next} and {self._end - 1}"
            )
        if header.leader_epoch < self._epoch:
            raise CorruptBatch(f"leader epoch {header.leader_epoch} after {self._epoch} at byte {position}")
        marked = self._marks.pop(position, header.base_offset)
        if marked != header.base_offset:
            raise CorruptBatch(f"byte {position} begins with offset {header.base_offset}, and its mark says {marked}")
        self._next, self._epoch = header.next_offset, header.leader_epoch


def _blocks(storage: Storage, path: str, size: int) -> Iterator[bytes]:
    with storage.open_input(path) as file:
        while block := file.read(min(BLOCK, size)):
            yield bytes(block)
