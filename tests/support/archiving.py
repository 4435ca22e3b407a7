"""An archive made of a log's closed segments, as the copier makes it, and a store whose answers a test holds back."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from broker.archive.archived_read import ArchivedPartition, ArchiveReader
from broker.archive.aux_file import AuxFile, encode_aux
from broker.archive.layout import PartitionPlace, new_object_name
from broker.archive.manifest import Add, ArchivedSegment, Entry, EpochStart, Manifest, Mark
from broker.clock import Clock, SystemClock
from broker.log.log import Log
from broker.log.segment import ABORTED_SUFFIX, Segment
from broker.records.aborted_entries import AbortedEntry, decode_aborted, encode_aborted
from broker.records.batch import walk_batches
from broker.records.crc32c import crc32c
from broker.storage.storage import Storage, open_storage

PLACE = PartitionPlace("cluster", uuid.UUID(int=7), 0)
MIB = 1 << 20


def describe_segment(
    data: bytes, base: int, end: int, *, mark_bytes: int = MIB, aborted: bool = False
) -> ArchivedSegment:
    """What an `Add` says of a segment."""
    marks = [Mark(base, 0, -1)]
    epochs: list[EpochStart] = []
    newest = oldest = -1
    transactional = False
    for position, header in walk_batches(data):
        if position - marks[-1].position >= mark_bytes:
            marks.append(Mark(header.base_offset, position, newest))
        newest = max(newest, header.max_timestamp)
        oldest = header.max_timestamp if oldest < 0 else min(oldest, header.max_timestamp)
        transactional |= header.is_transactional
        if not epochs or header.leader_epoch > epochs[-1].epoch:
            epochs.append(EpochStart(header.leader_epoch, header.base_offset if epochs else base))
    return ArchivedSegment(
        name=new_object_name(base, epochs[-1].epoch),
        base=base,
        end=end,
        size=len(data),
        aux_size=0,
        crc=crc32c(data),
        min_timestamp=oldest,
        max_timestamp=newest,
        epochs=tuple(epochs),
        marks=tuple(marks),
        aborted=aborted,
        transactional=transactional,
    )


def put_segment(
    storage: Storage, place: PartitionPlace, segment: ArchivedSegment, data: bytes, aborted: list[AbortedEntry]
) -> ArchivedSegment:
    """Write both objects; gives the segment with the size of the second."""
    sections = b"", b"", encode_aborted(aborted), b""
    aux = encode_aux(
        AuxFile(segment.base, segment.end, len(data), segment.crc, *sections, segment.epochs, segment.marks)
    )
    for path, content in ((place.segment(segment.name), data), (place.aux(segment.name), aux)):
        with storage.open_output(path) as file:
            file.write(content)
    return ArchivedSegment(**{**fields_of(segment), "aux_size": len(aux)})


def fields_of(segment: ArchivedSegment) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in ArchivedSegment.__dataclass_fields__}


def archive_closed(log: Log, storage: Storage, place: PartitionPlace = PLACE, *, mark_bytes: int = MIB) -> Manifest:
    """Put all closed segments of a log into a store; gives a manifest of them."""
    manifest = Manifest(log.segments[0].base_offset, log.segments[0].base_offset)
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        manifest = add_segment(manifest, segment, following.base_offset, storage, place, mark_bytes)
    return manifest


def add_segment(
    manifest: Manifest, segment: Segment, end: int, storage: Storage, place: PartitionPlace, mark_bytes: int
) -> Manifest:
    data = segment.path().read_bytes()[: segment.size]
    index = segment.path(ABORTED_SUFFIX)
    aborted = decode_aborted(index.read_bytes()) if index.exists() else []
    added = describe_segment(data, segment.base_offset, end, mark_bytes=mark_bytes, aborted=bool(aborted))
    added = put_segment(storage, place, added, data, aborted)
    return manifest.apply(Entry(manifest.next_number, added.epochs[-1].epoch, 0, Add(added)))


class HeldStore:
    """Answers `read_range` of a storage when a test lets it. Safe for many threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open = threading.Event()
        self._open.set()
        self.error: Exception | None = None
        """Raised instead of an answer."""
        self.damage: dict[str, bytes] = {}
        """Path → bytes that the object has instead."""
        self.asked: Counter[str] = Counter()
        """How often each object was asked for."""
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self.arrived = threading.Condition(self._lock)

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def wait_until_asked(self, count: int = 1) -> None:
        """Until so many reads wait here."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: self.at_once >= count, 30)

    def __getattr__(self, name: str) -> Any:
        """What a test does not hold back."""
        return getattr(self._storage, name)

    def read_range(self, path: str, start: int, end: int) -> bytes:
        with self.arrived:
            self.asked[path] += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.arrived.notify_all()
        try:
            assert self._open.wait(60)
            if self.error is not None:
                raise self.error
            damaged = self.damage.get(path)
            return self._storage.read_range(path, start, end) if damaged is None else damaged[start:end]
        finally:
            with self._lock:
                self.at_once -= 1


class ArchiveOfLog:
    """A log whose closed segments are archived, and the reader of the archive."""

    def __init__(
        self,
        log: Log,
        root: Path,
        *,
        mark_bytes: int = MIB,
        max_bytes: int = 64 * MIB,
        threads: int = 4,
        clock: Clock | None = None,
    ) -> None:
        self.log = log
        self.storage = open_storage(str(root / "archive"))
        self.store = HeldStore(self.storage)
        self.manifest = archive_closed(log, self.storage, mark_bytes=mark_bytes)
        self.reader = ArchiveReader(
            self.store,
            root / "cache",
            max_bytes=max_bytes,
            threads=threads,
            clock=clock or SystemClock(),
        )
        self.partition: ArchivedPartition = self.reader.partition(PLACE, self.manifest)


def archive_all_but_active(log: Log, reader: ArchiveReader, storage: Storage, place: PartitionPlace = PLACE) -> None:
    """Archive a log's closed segments, and let them leave the disk."""
    log.update_config(dataclasses.replace(log.config, remote_storage_enable=True, local_retention_bytes=0))
    log.archived = reader.partition(place, archive_closed(log, storage, place))
    log.apply_retention()
    assert len(log.segments) == 1
