"""The fold of a manifest's entries: what each changes, and what does not fit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.archive.manifest import (
    Add,
    ArchivedSegment,
    BrokenManifest,
    Change,
    Entry,
    EpochStart,
    Manifest,
    Mark,
    Snapshot,
    Start,
    Truncate,
    from_snapshot,
)
from tests.support.archived_segments import archived_segment
from tests.support.randomness import seeded

MIB = 1 << 20


def fold(*changes: Change, manifest: Manifest | None = None) -> Manifest:
    manifest = manifest or Manifest()
    for change in changes:
        manifest = manifest.apply(Entry(manifest.next_number, 1, 0, change))
    return manifest


def spans(manifest: Manifest) -> list[tuple[int, int]]:
    return [(segment.base, segment.end) for segment in manifest.segments]


TWO = fold(Add(archived_segment(0, 10)), Add(archived_segment(10, 20)))


def test_segments_follow_each_other() -> None:
    assert (TWO.start, TWO.end, TWO.next_number, TWO.size) == (0, 20, 2, 200)
    for base in (9, 11, 0):
        with pytest.raises(BrokenManifest, match="archive ends before 20"):
            fold(Add(archived_segment(base, 30)), manifest=TWO)


def test_the_first_segment_may_begin_below_the_start() -> None:
    """Records were deleted up to within it, before it was archived."""
    manifest = fold(Start(5), Add(archived_segment(0, 10)))
    assert (manifest.start, manifest.end) == (5, 10)
    assert manifest.segment_of(4) is None
    with pytest.raises(BrokenManifest):
        fold(Start(5), Add(archived_segment(6, 10)))
    with pytest.raises(BrokenManifest):
        fold(Start(5), Add(archived_segment(0, 5)))


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, [(0, 10), (10, 20)]), (9, [(0, 10), (10, 20)]), (10, [(10, 20)]), (20, []), (25, [])],
)
def test_a_start_drops_the_segments_below_it(start: int, expected: list[tuple[int, int]]) -> None:
    manifest = fold(Start(start), manifest=TWO)
    assert spans(manifest) == expected
    assert (manifest.start, manifest.end) == (start, max(20, start))
    assert fold(Add(archived_segment(manifest.end, 40)), manifest=manifest).end == 40


def test_a_start_never_falls() -> None:
    with pytest.raises(BrokenManifest, match="falls from 7 to 6"):
        fold(Start(7), Start(6))


@pytest.mark.parametrize(
    ("end", "expected"), [(20, [(0, 10), (10, 20)]), (15, [(0, 10), (10, 15)]), (10, [(0, 10)]), (3, [(0, 3)]), (0, [])]
)
def test_a_truncation_cuts_the_segment_that_holds_its_end(end: int, expected: list[tuple[int, int]]) -> None:
    manifest = fold(Truncate(end), manifest=TWO)
    assert (spans(manifest), manifest.end) == (expected, end)
    assert [segment.name for segment in manifest.segments] == [
        segment.name for segment in TWO.segments[: len(expected)]
    ]


def test_a_truncation_to_before_the_start_leaves_nothing() -> None:
    manifest = fold(Start(5), Truncate(4), manifest=TWO)
    assert (manifest.start, manifest.end, manifest.segments) == (4, 4, ())
    with pytest.raises(BrokenManifest, match="truncation to 21"):
        fold(Truncate(21), manifest=TWO)


def test_epochs_of_writers_never_fall() -> None:
    with pytest.raises(BrokenManifest, match="leader epoch 0 after epoch 1"):
        TWO.apply(Entry(2, 0, 0, Start(3)))
    with pytest.raises(BrokenManifest, match="entry 3 where entry 2"):
        TWO.apply(Entry(3, 1, 0, Start(3)))


def test_epochs_of_records_never_fall() -> None:
    manifest = fold(Add(archived_segment(0, 10, 4)))
    with pytest.raises(BrokenManifest, match="leader epoch 3, after a record of epoch 4"):
        fold(Add(archived_segment(10, 20, 3)), manifest=manifest)


def test_the_epochs_are_those_of_the_records_that_count() -> None:
    first = replace(archived_segment(0, 10, 1), epochs=(EpochStart(1, 0), EpochStart(2, 6)))
    second = replace(archived_segment(10, 20, 2), epochs=(EpochStart(2, 10), EpochStart(5, 15)))
    manifest = fold(Add(first), Add(second))
    assert manifest.epochs == ((1, 0), (2, 6), (5, 15))
    assert fold(Start(8), manifest=manifest).epochs == ((2, 8), (5, 15))
    assert fold(Truncate(15), manifest=manifest).epochs == ((1, 0), (2, 6))
    assert Manifest().epochs == ()


def test_a_hundredth_entry_has_to_be_a_snapshot() -> None:
    manifest = replace(TWO, next_number=100)
    assert manifest.snapshot_is_due
    with pytest.raises(BrokenManifest, match="no snapshot"):
        fold(Start(1), manifest=manifest)
    after = fold(manifest.snapshot(), manifest=manifest)
    assert after == replace(manifest, next_number=101)
    assert from_snapshot(Entry(100, 1, 0, manifest.snapshot())) == after


def test_a_snapshot_that_says_something_else_is_refused() -> None:
    first, second = TWO.segments
    for snapshot in (Snapshot(1, 20, (first, second)), Snapshot(0, 10, (first,)), Snapshot(0, 20, (first,))):
        with pytest.raises(BrokenManifest, match="snapshot"):
            fold(snapshot, manifest=TWO)
    for snapshot in (
        Snapshot(0, 20, (first,)),
        Snapshot(0, 20, (second,)),
        Snapshot(10, 20, (first, second)),
        Snapshot(0, 20, (first, archived_segment(11, 20))),
        Snapshot(0, 20, ()),
        Snapshot(20, 10, ()),
    ):
        with pytest.raises(BrokenManifest):
            from_snapshot(Entry(100, 1, 0, snapshot))
    with pytest.raises(BrokenManifest, match="no snapshot"):
        from_snapshot(Entry(100, 1, 0, Start(1)))


def marked() -> ArchivedSegment:
    marks = tuple(Mark(offset, offset * MIB, offset - 1) for offset in range(40))
    return replace(archived_segment(0, 40), size=40 * MIB, marks=marks)


def test_a_snapshot_has_fewer_marks() -> None:
    segment = marked()
    (thin,) = fold(Add(segment)).snapshot().segments
    assert [mark.offset for mark in thin.marks] == [0, 16, 32]
    assert thin == replace(segment, marks=thin.marks)


def test_marks_bound_what_is_read_of_an_object() -> None:
    segment = replace(marked(), marks=(Mark(0, 0, -1), Mark(10, 500, 3), Mark(20, 900, 8)), size=1000)
    assert [segment.mark_before(offset).position for offset in (0, 9, 10, 25)] == [0, 0, 500, 900]
    assert [segment.position_after(offset) for offset in (0, 1, 10, 11, 20, 21, 40)] == [
        0,
        500,
        500,
        900,
        900,
        1000,
        1000,
    ]


@settings(max_examples=60)
@given(st.integers(0, 1 << 32))
def test_each_offset_that_counts_is_in_one_segment(seed: int) -> None:
    """Against a dictionary of offset → object."""
    chance = seeded(seed)
    manifest, expected = Manifest(), dict[int, str]()
    for _ in range(30):
        change = random_change(chance, manifest)
        manifest = fold(change, manifest=manifest)
        match change:
            case Add(segment):
                expected |= dict.fromkeys(range(max(segment.base, manifest.start), segment.end), segment.name)
            case Start(start):
                expected = {offset: name for offset, name in expected.items() if offset >= start}
            case Truncate(end):
                expected = {offset: name for offset, name in expected.items() if offset < end}
        found = {offset: manifest.segment_of(offset) for offset in range(manifest.end + 2)}
        assert {offset: segment.name for offset, segment in found.items() if segment} == expected
        low, high = sorted((chance.randrange(manifest.end + 2), chance.randrange(manifest.end + 2)))
        between = [segment.name for segment in manifest.segments_between(low, high)]
        assert between == list(dict.fromkeys(name for at, name in sorted(expected.items()) if low <= at < high))


def random_change(chance: random.Random, manifest: Manifest) -> Change:
    if manifest.snapshot_is_due:
        return manifest.snapshot()
    kind = chance.randrange(5)
    if kind == 0:
        return Start(chance.randint(manifest.start, manifest.end + 3))
    if kind == 1:
        return Truncate(chance.randint(max(manifest.start - 2, 0), manifest.end))
    base = manifest.end if manifest.segments else chance.randint(max(manifest.end - 3, 0), manifest.end)
    return Add(archived_segment(base, manifest.end + chance.randint(1, 5)))
