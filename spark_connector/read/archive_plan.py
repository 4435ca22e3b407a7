"""Which bytes of the store a range of offsets is: manifests in, pieces of archived segments and live ranges out. Pure.

Called on the driver by archive_offsets.py. What the manifest does not name is live: what was not archived when the
manifest was read, and what lies below its start, about which only a broker can say whether it is lost. So each record
is in one part (A7), however far archiving and retention move in the meantime: a broker still has, or finds in the
archive, all that follows. Only what is live is asked of a broker (A8).

A piece is cut at marks, where batches begin. It may hold records before and after its offsets, which the reader leaves
out. Times leave out what cannot pass: whole segments, and the head of a segment up to a mark before which all is older.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.archive.layout import PartitionPlace
from broker.archive.manifest import ArchivedSegment, Manifest
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.value_sets import Intervals
from spark_connector.read.planning import OffsetRange

Manifests = Mapping[TopicPartition, Manifest]


@dataclass(frozen=True)
class Piece:
    """Whole batches of one archived segment: the bytes [start, end) of its object, which begin at offset `first`.

    The batches end at offset `until`, or later. The segment's name is that of the manifest.
    """

    segment: str
    start: int
    end: int
    first: int
    until: int
    transactional: bool


@dataclass(frozen=True)
class StoredRange(OffsetRange):
    """Offsets that are read from the archive at `url`, in which the partition is at `place`. `pieces` hold all its
    records."""

    url: str = field(repr=False)
    place: PartitionPlace
    pieces: tuple[Piece, ...]
    aborted: tuple[tuple[int, int], ...] = ()
    """(producer id, first offset) of the aborted transactions that the archive's end cuts: their markers are after."""


@dataclass(frozen=True)
class ArchiveParts:
    """Ranges by where their records are; together they are the ranges that were divided."""

    stored: list[OffsetRange]
    live: list[OffsetRange]


def divide(ranges: Sequence[OffsetRange], manifests: Manifests) -> ArchiveParts:
    """Each range that is not empty, cut where the archive of its partition begins and ends, in order."""
    parts = ArchiveParts([], [])
    for one in ranges:
        manifest = manifests.get(one.tp)
        low, high = one.from_offset, one.until_offset
        if low >= high:
            continue
        if manifest is not None and manifest.start < manifest.end:
            low, high = max(low, manifest.start), min(high, manifest.end)
            if low < high:
                parts.stored.append(OffsetRange(one.tp, low, high))
                outside = ((one.from_offset, low), (high, one.until_offset))
                parts.live.extend(OffsetRange(one.tp, start, end) for start, end in outside if start < end)
                continue
        parts.live.append(one)
    return parts


def keep_times(ranges: Sequence[OffsetRange], manifests: Manifests, times: Intervals | None) -> list[OffsetRange]:
    """The parts of stored ranges in which a record of one of these times may be, in order."""
    if times is None:
        return list(ranges)
    kept: list[OffsetRange] = []
    for one in ranges:
        for segment in manifests[one.tp].segments_between(one.from_offset, one.until_offset):
            start = max(one.from_offset, _first_that_may_pass(segment, times))
            end = min(one.until_offset, segment.end)
            if start >= end:
                continue
            if kept and kept[-1].tp == one.tp and kept[-1].until_offset == start:
                start = kept.pop().from_offset
            kept.append(OffsetRange(one.tp, start, end))
    return kept


def stored_range(
    one: OffsetRange, manifest: Manifest, url: str, place: PartitionPlace, aborted: Sequence[tuple[int, int]] = ()
) -> StoredRange:
    """The pieces of a range that lies within the archive; `aborted` as StoredRange has it."""
    pieces = tuple(
        _piece(segment, max(one.from_offset, segment.base), min(one.until_offset, segment.end))
        for segment in manifest.segments_between(one.from_offset, one.until_offset)
    )
    cut = tuple((producer_id, first) for producer_id, first in aborted if first < one.until_offset)
    return StoredRange(one.tp, one.from_offset, one.until_offset, url, place, pieces, cut)


def bytes_per_offset(ranges: Sequence[OffsetRange], manifests: Manifests) -> dict[TopicPartition, int]:
    """How many bytes an archived offset takes, at least 1, in each partition of the stored ranges."""
    found = {}
    for tp in {one.tp for one in ranges}:
        segments = manifests[tp].segments
        found[tp] = max(-(-manifests[tp].size // (segments[-1].end - segments[0].base)), 1)
    return found


def stored_bytes_per_offset(ranges: Sequence[StoredRange]) -> dict[TopicPartition, int]:
    """How many bytes tasks read for an offset, at least 1, in each partition."""
    offsets, sizes = Counter[TopicPartition](), Counter[TopicPartition]()
    for one in ranges:
        offsets[one.tp] += one.size
        sizes[one.tp] += sum(piece.end - piece.start for piece in one.pieces)
    return {tp: max(-(-sizes[tp] // count), 1) for tp, count in offsets.items()}


def at_marks(ranges: Sequence[OffsetRange], manifests: Manifests) -> list[OffsetRange]:
    """The ranges with the edges between two of a partition moved to the last mark before, so that no task reads the
    bytes of another. Ranges that would be empty are left out."""
    moved: list[OffsetRange] = []
    for one in ranges:
        start = one.from_offset
        if moved and moved[-1].tp == one.tp and moved[-1].until_offset == start:
            before = moved.pop()
            segment = manifests[one.tp].segment_of(start)
            mark = start if segment is None else max(segment.mark_before(start).offset, segment.base)
            if mark <= before.from_offset:
                mark = before.from_offset
            else:
                moved.append(OffsetRange(one.tp, before.from_offset, mark))
            start = mark
        moved.append(OffsetRange(one.tp, start, one.until_offset))
    return moved


def _first_that_may_pass(segment: ArchivedSegment, times: Intervals) -> int:
    """The first offset of the segment that may hold a record of these times; its end if none does.

    Only the largest timestamps count, which batches tell exactly: the smallest one of a batch may be below that of its
    first record.
    """
    lowest = times.parts[0][0] if times.parts else None
    if lowest is None or segment.max_timestamp < lowest:
        return segment.end
    first = segment.base
    for mark in segment.marks[1:]:
        if mark.max_timestamp >= lowest:
            break
        first = mark.offset
    return first


def _piece(segment: ArchivedSegment, start: int, until: int) -> Piece:
    mark = segment.mark_before(start)
    end = segment.position_after(until)
    return Piece(segment.name, mark.position, end, mark.offset, until, segment.transactional)
