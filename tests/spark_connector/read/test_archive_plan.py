"""Which bytes of the store a range is: each offset once, and no byte that another task reads."""

from __future__ import annotations

import uuid
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from broker.archive.layout import PartitionPlace, new_object_name
from broker.archive.manifest import ArchivedSegment, EpochStart, Manifest, Mark
from broker.protocol.topic_partition import TopicPartition
from spark_connector.options.value_sets import NO_END, Intervals
from spark_connector.read.archive_plan import at_marks, bytes_per_offset, divide, keep_times, stored_range
from spark_connector.read.planning import OffsetRange, split_ranges

TP = TopicPartition("t", 0)
PLACE = PartitionPlace("cluster", uuid.UUID(int=1), 0)


def segment(base: int, gaps: list[tuple[int, int, int]], size: int) -> ArchivedSegment:
    """Batches of so many offsets and bytes, with a time each; a mark for every one."""
    marks, at, position, newest = [], base, 0, -1
    for offsets, length, ms in gaps:
        marks.append(Mark(at, position, newest))
        at, position, newest = at + offsets, position + length, max(newest, ms)
    return ArchivedSegment(
        name=new_object_name(base, 0),
        base=base,
        end=at,
        size=position + size,
        aux_size=0,
        crc=0,
        min_timestamp=0,
        max_timestamp=newest,
        epochs=(EpochStart(0, base),),
        marks=tuple(marks),
    )


BATCHES = st.lists(st.tuples(st.integers(1, 9), st.integers(61, 300), st.integers(0, 100)), min_size=1, max_size=8)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    base = first = draw(st.integers(0, 50))
    segments = []
    for batches in draw(st.lists(BATCHES, min_size=1, max_size=5)):
        segments.append(segment(base, batches, 0))
        base = segments[-1].end
    start = draw(st.integers(first, segments[0].end - 1))
    return Manifest(start=start, end=base, segments=tuple(segments))


@given(manifest=manifests(), low=st.integers(0, 200), size=st.integers(0, 200))
def test_each_offset_is_stored_or_live(manifest: Manifest, low: int, size: int) -> None:
    parts = divide([OffsetRange(TP, low, low + size)], {TP: manifest})
    stored = [offset for one in parts.stored for offset in range(one.from_offset, one.until_offset)]
    live = [offset for one in parts.live for offset in range(one.from_offset, one.until_offset)]
    assert sorted(stored + live) == list(range(low, low + size))
    assert all(manifest.start <= offset < manifest.end for offset in stored)
    assert not any(manifest.start <= offset < manifest.end for offset in live)


@given(manifest=manifests(), parts=st.integers(1, 12))
def test_the_pieces_of_all_tasks_are_every_byte_once(manifest: Manifest, parts: int) -> None:
    whole = [OffsetRange(TP, manifest.start, manifest.end)]
    ranges = at_marks(split_ranges(whole, min_partitions=parts), {TP: manifest})
    assert [(a.until_offset, a.tp) for a in ranges[:-1]] == [(b.from_offset, b.tp) for b in ranges[1:]]
    assert (ranges[0].from_offset, ranges[-1].until_offset) == (manifest.start, manifest.end)
    pieces = [piece for one in ranges for piece in stored_range(one, manifest, "url", PLACE).pieces]
    for a, b in pairwise(pieces):
        assert (a.segment == b.segment and a.end == b.start) or (a.segment != b.segment and b.start == 0)
    assert pieces[-1].end == manifest.segments[-1].size
    assert bytes_per_offset(ranges, {TP: manifest})[TP] >= 1


@given(manifest=manifests(), low=st.integers(0, 250), size=st.integers(1, 50))
def test_a_piece_holds_its_offsets(manifest: Manifest, low: int, size: int) -> None:
    held: set[int] = set()
    for part in divide([OffsetRange(TP, low, low + size)], {TP: manifest}).stored:
        for piece in stored_range(part, manifest, "url", PLACE).pieces:
            found = next(found for found in manifest.segments if found.name == piece.segment)
            edges = [*((mark.offset, mark.position) for mark in found.marks), (found.end, found.size)]
            inside = [(a[0], b[0]) for a, b in pairwise(edges) if piece.start <= a[1] < piece.end]
            assert piece.first == inside[0][0]
            held |= {offset for a, b in inside for offset in range(a, b)}
        assert set(range(part.from_offset, part.until_offset)) <= held


@given(manifest=manifests(), lowest=st.integers(0, 110))
def test_times_leave_out_only_what_is_older(manifest: Manifest, lowest: int) -> None:
    whole = [OffsetRange(TP, manifest.start, manifest.end)]
    kept = keep_times(whole, {TP: manifest}, Intervals(((lowest, NO_END),)))
    offsets = {offset for one in kept for offset in range(one.from_offset, one.until_offset)}
    for found in manifest.segments:
        for mark, following in pairwise((*found.marks, Mark(found.end, found.size, found.max_timestamp))):
            newest_yet = following.max_timestamp
            if newest_yet >= lowest:
                assert set(range(max(mark.offset, manifest.start), following.offset)) <= offsets
    assert keep_times(whole, {TP: manifest}, Intervals(())) == []
    assert keep_times(whole, {TP: manifest}, None) == whole
