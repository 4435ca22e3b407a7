"""The manifest of one partition: which archived segments count. Pure values, and their JSON.

A manifest is the fold of numbered entries. Each entry is one object of the store, made with create-if-absent
(manifest_store.py), so a number belongs to one writer, who has seen all entries before it. An entry carries the leader
epoch of its writer, and epochs never fall: when a new leader has written, no older one can.

    Add        a segment, which begins where the archive ends
    Start      records below an offset no longer count: retention, or DeleteRecords
    Truncate   records from an offset on never were, for the log of the new leader ends before them. With the archive's
               own end it changes nothing but the epoch: so a new leader fences the older ones
    Snapshot   the whole manifest. Every number that is a multiple of 100 (but 0) is one, so a reader begins at the last

Offsets are those of records, `end` is the offset after the last one. Positions and sizes are bytes; times are
milliseconds since 1970, -1 for none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from broker.errors import PykafkaError

SNAPSHOT_EVERY = 100
"""Entries. A number that it divides, but 0, is a snapshot."""
MARK_BYTES = 1 << 20
"""Of a segment, between two marks; in a snapshot SNAPSHOT_MARK_BYTES."""
SNAPSHOT_MARK_BYTES = 16 << 20
MOST_SEGMENT = (1 << 31) - 1
"""Bytes of a segment: Kafka's indexes have positions of 31 bits."""
MOST_AUX = 256 << 20
"""Bytes of the `.aux` object of a segment."""


class BrokenManifest(PykafkaError):
    """An entry that cannot be read, or that does not fit what was before it."""


class Mark(NamedTuple):
    """A batch begins at `position` of the segment's object, with the record at `offset`.

    No record before it in this segment is newer than `max_timestamp`; -1 for the first mark, which is at position 0.
    """

    offset: int
    position: int
    max_timestamp: int


class EpochStart(NamedTuple):
    """The leader epoch of the records from `start` on."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A segment that was archived. Its object holds the records in [base, end) as the leader's disk had them.

    When a truncation cuts it, `end` falls and the object stays: it then holds records from `end` on that do not count.
    """

    name: str
    """Of both objects, without suffix; see layout.py."""
    base: int
    end: int
    size: int
    """Bytes of the `.log` object."""
    aux_size: int
    """Bytes of the `.aux` object."""
    crc: int
    """CRC-32C of the `.log` object."""
    min_timestamp: int
    max_timestamp: int
    epochs: tuple[EpochStart, ...]
    """The first starts at `base`."""
    marks: tuple[Mark, ...]
    """About one per MiB; the first is (`base`, 0, -1)."""
    aborted: bool = False
    """Whether its `.aux` names aborted transactions, whose markers are in this segment."""
    transactional: bool = False
    """Whether it has records of transactions; those may be aborted by a marker in a later segment."""

    def mark_before(self, offset: int) -> Mark:
        """The last mark at or before an offset of the segment: a reader of `offset` may begin there."""
        return self.marks[max(bisect_right(self.marks, offset, key=_offset_of) - 1, 0)]

    def position_after(self, offset: int) -> int:
        """A position that no batch with records below `offset` reaches beyond: where a mark stands, or the size."""
        following = bisect_right(self.marks, offset - 1, key=_offset_of)
        return self.marks[following].position if following < len(self.marks) else self.size

    def cut(self, end: int) -> ArchivedSegment:
        """The segment without its records from `end` on; its object is the same."""
        marks = tuple(mark for mark in self.marks if mark.offset < end)
        return replace(self, end=end, epochs=tuple(epoch for epoch in self.epochs if epoch.start < end), marks=marks)

    def with_thin_marks(self, between: int) -> ArchivedSegment:
        """With marks that are at least `between` bytes apart."""
        kept: list[Mark] = []
        for mark in self.marks:
            if not kept or mark.position - kept[-1].position >= between:
                kept.append(mark)
        return self if len(kept) == len(self.marks) else replace(self, marks=tuple(kept))


def _offset_of(mark: Mark) -> int:
    return mark.offset


def _base_of(segment: ArchivedSegment) -> int:
    return segment.base


@dataclass(frozen=True, slots=True)
class Add:
    segment: ArchivedSegment


@dataclass(frozen=True, slots=True)
class Start:
    start: int


@dataclass(frozen=True, slots=True)
class Truncate:
    end: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    start: int
    end: int
    segments: tuple[ArchivedSegment, ...]


Change = Add | Start | Truncate | Snapshot


@dataclass(frozen=True, slots=True)
class Entry:
    number: int
    epoch: int
    """The leader epoch of who wrote it."""
    broker: int
    """Id of the broker that wrote it."""
    change: Change


@dataclass(frozen=True)
class Manifest:
    """What an archive has of one partition after the entries below `next_number`. Immutable; begins empty."""

    start: int = 0
    """The first record that counts. Without segments it is `end`."""
    end: int = 0
    """The offset after the last archived record: where the next segment begins."""
    epoch: int = -1
    """The leader epoch of the last entry."""
    next_number: int = 0
    segments: tuple[ArchivedSegment, ...] = ()
    """Ascending, each beginning where the one before it ends. The first may begin below `start`."""
    last: int = field(default=-1, compare=False)
    """The last record that was ever archived, also after its segment went; -1 for none, or if no entry since the last
    snapshot tells."""

    @cached_property
    def epochs(self) -> tuple[EpochStart, ...]:
        """At which offset each leader epoch of the archived records begins, both ascending; the first at `start`."""
        found: list[EpochStart] = []
        for segment in self.segments:
            found += [epoch for epoch in segment.epochs if not found or epoch.epoch > found[-1].epoch]
        following = bisect_right(found, self.start, key=lambda epoch: epoch.start)
        if following:
            found = [EpochStart(found[following - 1].epoch, self.start), *found[following:]]
        return tuple(found)

    @cached_property
    def size(self) -> int:
        """Bytes of the `.log` objects that count."""
        return sum(segment.size for segment in self.segments)

    @property
    def snapshot_is_due(self) -> bool:
        return self.next_number > 0 and self.next_number % SNAPSHOT_EVERY == 0

    def segment_of(self, offset: int) -> ArchivedSegment | None:
        """The segment with this offset; None below `start` and from `end` on."""
        if not self.start <= offset < self.end:
            return None
        return self.segments[bisect_right(self.segments, offset, key=_base_of) - 1]

    def segments_between(self, start: int, end: int) -> tuple[ArchivedSegment, ...]:
        """The segments with records in [start, end) that count, ascending."""
        low, high = max(start, self.start), min(end, self.end)
        if low >= high:
            return ()
        first = bisect_right(self.segments, low, key=_base_of) - 1
        return self.segments[first : bisect_left(self.segments, high, key=_base_of)]

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.start, self.end, tuple(segment.with_thin_marks(SNAPSHOT_MARK_BYTES) for segment in self.segments)
        )

    def apply(self, entry: Entry) -> Manifest:
        """The manifest after one more entry. Raises BrokenManifest if the entry does not fit."""
        change = entry.change
        if entry.number != self.next_number:
            raise BrokenManifest(f"entry {entry.number} where entry {self.next_number} should be")
        if entry.epoch < self.epoch:
            raise BrokenManifest(f"entry {entry.number} has leader epoch {entry.epoch} after epoch {self.epoch}")
        if self.snapshot_is_due and not isinstance(change, Snapshot):
            raise BrokenManifest(f"entry {entry.number} is no snapshot")
        match change:
            case Add(segment):
                after = self._with(segment)
            case Start(start):
                after = self._from(start)
            case Truncate(end):
                after = self._until(end)
            case Snapshot():
                after = self._as(change)
        return replace(after, epoch=entry.epoch, next_number=entry.number + 1)

    def _with(self, segment: ArchivedSegment) -> Manifest:
        """The first one may hold records below `start`, which do not count: a start may lie within a segment."""
        _check_follows(segment, self.end, self.segments[-1:])
        return replace(self, end=segment.end, segments=(*self.segments, segment), last=segment.end - 1)

    def _from(self, start: int) -> Manifest:
        if start < self.start:
            raise BrokenManifest(f"the start falls from {self.start} to {start}")
        kept = tuple(segment for segment in self.segments if segment.end > start)
        return replace(self, start=start, end=max(self.end, start), segments=kept)

    def _until(self, end: int) -> Manifest:
        if end > self.end:
            raise BrokenManifest(f"a truncation to {end} of an archive that ends before {self.end}")
        if end <= self.start:
            return replace(self, start=end, end=end, segments=(), last=min(self.last, end - 1))
        kept = tuple(segment for segment in self.segments if segment.base < end)
        if kept and kept[-1].end > end:
            kept = (*kept[:-1], kept[-1].cut(end))
        return replace(self, end=end, segments=kept, last=min(self.last, end - 1))

    def _as(self, snapshot: Snapshot) -> Manifest:
        """A snapshot has to say what is known already, unless it is the first entry that is read."""
        known = [(segment.name, segment.end) for segment in self.segments]
        said = [(segment.name, segment.end) for segment in snapshot.segments]
        if (self.start, self.end, known) != (snapshot.start, snapshot.end, said):
            raise BrokenManifest(f"snapshot {self.next_number} differs from the entries before it")
        return replace(self, segments=snapshot.segments)


def _check_follows(segment: ArchivedSegment, end: int, before: tuple[ArchivedSegment, ...]) -> None:
    """A segment after an archive that ends at `end`; `before` is its last segment, if it has one."""
    fits = segment.base == end if before else segment.base <= end
    if not (fits and end < segment.end):
        raise BrokenManifest(
            f"segment {segment.name} holds offsets {segment.base} to {segment.end - 1}, and the archive ends before "
            f"{end}"
        )
    if before and segment.epochs[0].epoch < before[-1].epochs[-1].epoch:
        raise BrokenManifest(
            f"segment {segment.name} begins in leader epoch {segment.epochs[0].epoch}, after a record of epoch "
            f"{before[-1].epochs[-1].epoch}"
        )


def from_snapshot(entry: Entry) -> Manifest:
    """The manifest that a snapshot holds. Raises BrokenManifest if the entry is none, or contradicts itself."""
    snapshot = entry.change
    if not isinstance(snapshot, Snapshot):
        raise BrokenManifest(f"entry {entry.number} is no snapshot")
    first = snapshot.segments[:1]
    manifest = Manifest(snapshot.start, snapshot.start)
    for before, segment in pairwise(snapshot.segments):  # not by `_with`, whose cost grows with what is there
        _check_follows(segment, before.end, (before,))
    if first:
        end = snapshot.segments[-1].end
        manifest = replace(manifest, end=end, segments=snapshot.segments, last=end - 1)
    if manifest.end != snapshot.end or any(segment.end <= snapshot.start for segment in first):
        raise BrokenManifest(f"snapshot {entry.number}: {snapshot.start} to {snapshot.end} does not fit its segments")
    if manifest.segments and snapshot.start < manifest.segments[0].base:
        raise BrokenManifest(f"snapshot {entry.number} starts at {snapshot.start}, before its first segment")
    return replace(manifest, epoch=entry.epoch, next_number=entry.number + 1)
