"""Segments: finding a batch by its offset, opening and releasing, indexes that follow the log."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import CorruptBatch
from broker.log.index import OffsetIndex
from broker.log.segment import DESCRIPTORS_PER_SEGMENT, OpenSegments, Segment, segment_path
from broker.log.segment_file import SegmentFile, scan_headers
from broker.records.batch import BatchHeader, patch_base_offset, walk_batches
from tests.support.batches import NOW, batch
from tests.support.randomness import seeded


@pytest.fixture
def opened() -> OpenSegments:
    return OpenSegments()


def create(directory: Path, opened: OpenSegments, base_offset: int = 0, interval: int = 300) -> Segment:
    return Segment.create(directory, base_offset, opened, created_ms=NOW, index_interval=interval, reserve=0)


@pytest.fixture
def segment(tmp_path: Path, opened: OpenSegments) -> Segment:
    return create(tmp_path, opened)


def add(segment: Segment, offset: int, *values: bytes, timestamp: int = NOW) -> None:
    data = bytearray(batch(*values, timestamp=timestamp))
    patch_base_offset(data, 0, offset, 0)
    segment.begin_append().pwrite(data, segment.size)
    segment.append([(header.last_offset, header) for _, header in walk_batches(data)])


def headers(segment: Segment) -> list[BatchHeader]:
    return [header for _, header in segment.batches()]


def test_names_sort_as_offsets_do(tmp_path: Path) -> None:
    assert segment_path(tmp_path, 42, ".log").name == "00000000000000000042.log"


def test_locate_finds_the_batch_of_every_offset(tmp_path: Path, opened: OpenSegments) -> None:
    segment = create(tmp_path, opened, base_offset=1000)
    for number in range(40):
        add(segment, 1000 + 3 * number, b"a", b"b" * number, b"c")
    places = list(segment.batches())
    for offset in range(1000, 1120):
        position, header = places[(offset - 1000) // 3]
        assert segment.locate(offset) == (position, header.size)
    assert segment.locate(1120) is None


def test_locate_steps_over_gaps(segment: Segment) -> None:
    """Compaction leaves them."""
    add(segment, 0, b"a")
    add(segment, 10, b"b")
    first, second = headers(segment)
    assert segment.locate(5) == (first.size, second.size)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_appended_last_is_found_after_any_appends_and_cuts(
    tmp_path: Path, opened: OpenSegments, seed: int
) -> None:
    """The position of the last append is remembered, and must not outlive a cut."""
    rng, segment, offset = seeded(seed), create(tmp_path, opened), 0
    for _ in range(60):
        if rng.random() < 0.3 and segment.size:
            position, header = rng.choice(list(segment.batches()))
            segment.cut(position)
            offset = header.base_offset
        else:
            offset += rng.choice([0, 0, 3])  # a gap, as in a copy of a compacted log
            count = rng.randint(1, 3)
            add(segment, offset, *[b"v" * rng.randint(1, 200)] * count)
            offset += count
        known = [(position, header.size, header.last_offset) for position, header in segment.batches()]
        for wanted in range(max(offset - 10, 0), offset + 1):
            expected = next(((at, size) for at, size, last in known if last >= wanted), None)
            assert segment.locate(wanted) == expected


def test_an_index_entry_names_a_batch_by_its_last_offset(tmp_path: Path, opened: OpenSegments) -> None:
    """As Kafka's does; its DumpLogSegments checks it."""
    segment = create(tmp_path, opened, base_offset=50, interval=0)
    for number in range(3):
        add(segment, 50 + 2 * number, b"a", b"b")
    segment.seal()
    index = OffsetIndex.load(segment.path(".index"), segment.size)
    assert index is not None
    positions = [position for position, _ in segment.batches()]
    assert [index.entry(number) for number in range(len(index))] == [(3, positions[1]), (5, positions[2])]


def test_a_closed_segment_opens_itself_again(segment: Segment) -> None:
    for number in range(20):
        add(segment, number, b"x" * 100)
    segment.close()
    for number in range(20, 40):
        add(segment, number, b"x" * 100)
    segment.close()
    index = OffsetIndex.load(segment.path(".index"), segment.size)
    assert index is not None
    noted = [index.entry(number)[0] for number in range(len(index))]
    indexed = [header.last_offset for _, header in segment.batches() if header.last_offset in noted]
    assert indexed == noted
    assert len(indexed) > 5
    assert [header.base_offset for header in headers(segment)] == list(range(40))


def test_an_index_that_was_cut_short_is_made_anew(segment: Segment) -> None:
    """It may lag, but not so far that every read walks the log."""
    for number in range(6):
        add(segment, number, b"x" * 1_000_000)
    segment.seal()
    segment.close()
    for keep, rebuilt in ((4, False), (0, True)):
        os.truncate(segment.path(".index"), keep * 8)
        segment.locate(5)
        segment.close()
        assert (segment.path(".index").stat().st_size > keep * 8) == rebuilt


def test_a_released_segment_is_sealed_whole(segment: Segment) -> None:
    """Its time index ends with the newest timestamp, though it was not loaded."""
    add(segment, 0, b"a", timestamp=NOW + 7)
    segment.release()
    segment.seal()
    assert segment.path(".timeindex").read_bytes()[-12:-4] == (NOW + 7).to_bytes(8)


def test_newest_is_known_without_opening_it_all(segment: Segment, tmp_path: Path, opened: OpenSegments) -> None:
    for number, at in enumerate([5, 9, 7]):
        add(segment, number, b"x", timestamp=NOW + at)
    segment.seal()
    again = Segment(tmp_path, 0, opened, size=segment.size)
    assert again.newest == (NOW + 9, 1)
    assert again.first_timestamp == NOW + 5


def test_records_without_timestamps_have_no_newest(segment: Segment, tmp_path: Path, opened: OpenSegments) -> None:
    add(segment, 0, b"x", timestamp=-1)
    segment.seal()
    assert segment.newest[0] == -1
    assert Segment(tmp_path, 0, opened, size=segment.size).newest[0] == -1


def test_cut_makes_a_batch_boundary_the_end(tmp_path: Path, opened: OpenSegments) -> None:
    segment = create(tmp_path, opened, interval=0)
    for number in range(5):
        add(segment, number, b"x" * 100, timestamp=NOW + number)
    position, _ = list(segment.batches())[2]
    segment.cut(position)
    assert segment.path().stat().st_size == segment.size == position
    assert segment.newest == (NOW + 1, 1)
    assert segment.next_offset() == 2
    add(segment, 2, b"new")
    assert [header.base_offset for header in headers(segment)] == [0, 1, 2]


@pytest.mark.parametrize("seed", range(10))
def test_a_cut_leaves_the_indexes_that_a_rebuild_would_make(tmp_path: Path, opened: OpenSegments, seed: int) -> None:
    rng, segment = seeded(seed), create(tmp_path, opened)
    times = [NOW + rng.choice([number, -number]) if rng.random() < 0.9 else -1 for number in range(60)]
    for number, time in enumerate(times):
        add(segment, number, b"x" * rng.randint(1, 200), timestamp=time)
    for _ in range(4):
        position, header = rng.choice(list(segment.batches()))
        if rng.random() < 0.5:
            segment.close()
        segment.cut(position)
        found = [segment.path(suffix).read_bytes() for suffix in (".index", ".timeindex")], segment.newest
        segment.rebuild()
        assert found == ([segment.path(suffix).read_bytes() for suffix in (".index", ".timeindex")], segment.newest)
        add(segment, header.base_offset, b"new", timestamp=NOW + 100)


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_cut_reads_no_more_than_follows_the_last_entry(
    tmp_path: Path, opened: OpenSegments, monkeypatch: pytest.MonkeyPatch, is_opened_again: bool
) -> None:
    """A follower truncates on the event loop, and a segment may have a gigabyte."""
    segment = create(tmp_path, opened)
    for number in range(200):
        add(segment, number, b"x" * 50, timestamp=NOW + number)
    whole = segment.size
    if is_opened_again:
        segment.seal()
        segment.close()
        segment = Segment(tmp_path, 0, OpenSegments(), size=whole, index_interval=300)
    end = list(segment.batches())[150][0]
    read: list[int] = []

    def counted(file: SegmentFile, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        read.append(end - start)
        return scan_headers(file, start, end)

    monkeypatch.setattr("broker.log.segment.scan_headers", counted)
    segment.cut(end)
    assert read
    assert max(read) < 1000 < segment.size


def test_a_scan_stops_at_what_is_no_batch(segment: Segment) -> None:
    add(segment, 0, b"x")
    size = segment.size
    with segment.path().open("ab") as file:
        file.write(bytes(100))
    found: list[tuple[int, BatchHeader]] = []
    with pytest.raises(CorruptBatch, match=f"byte {size}"):
        found.extend(scan_headers(segment.file(), 0, size + 100))
    scan = scan_headers(segment.file(), 0, size + 100)
    assert next(scan)[1].base_offset == 0


def test_deleted_files_get_out_of_the_way(segment: Segment, tmp_path: Path, opened: OpenSegments) -> None:
    add(segment, 0, b"x")
    segment.seal()
    renamed = segment.mark_deleted()
    assert sorted(path.name for path in renamed) == sorted(path.name for path in tmp_path.iterdir())
    assert all(path.name.endswith(".deleted") for path in renamed)
    assert len(opened) == 0
    segment.sync(closed=True)  # a flush that was on its way finds nothing to do


def test_what_is_not_saved_of_the_indexes_is_bounded(tmp_path: Path, opened: OpenSegments) -> None:
    segment = create(tmp_path, opened, interval=0)
    for number in range(600):
        add(segment, number, b"x")
    assert segment.path(".index").stat().st_size >= 512 * 8
    segment.release()
    assert [segment.locate(number) is not None for number in range(600)] == [True] * 600


class TestAnIndexThatLies:
    """Its length is right and its entries are not: what is read is still what was written."""

    @pytest.fixture
    def segment(self, tmp_path: Path, opened: OpenSegments) -> Segment:
        segment = create(tmp_path, opened, interval=0)
        for number in range(50):
            add(segment, number, b"x" * 50, timestamp=NOW + number)
        segment.seal()
        segment.close()
        return segment

    @pytest.mark.parametrize("seed", range(20))
    def test_offsets(self, segment: Segment, seed: int) -> None:
        found = {number: segment.locate(number) for number in range(50)}
        slices = {number: self.ends(segment, number) for number in range(50)}
        segment.close()
        dice = seeded(seed)
        path = segment.path(".index")
        data = bytearray(path.read_bytes())
        for at in range(0, len(data) - 8, 8):
            data[at : at + 8] = struct.pack(">II", dice.randrange(50), dice.randrange(segment.size))
        path.write_bytes(data)
        assert {number: segment.locate(number) for number in range(50)} == found
        assert {number: self.ends(segment, number) for number in range(50)} == slices

    def ends(self, segment: Segment, offset: int) -> tuple[int, int, int]:
        """Where a read ends, and an offset past it that is not too low."""
        read = segment.read(offset, 500, None)
        assert read is not None
        past = segment.offset_after(read)
        last = max(
            header.last_offset for position, header in segment.batches() if position < read.position + read.length
        )
        assert past is None or past > last
        return read.position, read.length, last

    @pytest.mark.parametrize("seed", range(10))
    def test_times_of_what_is_left_by_a_cut(self, segment: Segment, seed: int) -> None:
        dice = seeded(seed)
        path, cut = segment.path(".timeindex"), dice.randrange(1, 50)
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 12):
            data[at : at + 12] = struct.pack(">qi", NOW + dice.randrange(90), dice.randrange(50))
        path.write_bytes(data)
        segment.cut(list(segment.batches())[cut][0])
        assert segment.newest == (NOW + cut - 1, cut - 1)

    @pytest.mark.parametrize("seed", range(10))
    def test_times(self, segment: Segment, seed: int) -> None:
        dice = seeded(seed)
        path = segment.path(".timeindex")
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 12):
            data[at : at + 12] = struct.pack(">qi", NOW + dice.randrange(90), dice.randrange(50))
        path.write_bytes(data)
        again = Segment(segment.path().parent, 0, OpenSegments(), size=segment.size, index_interval=0)
        assert again.newest == (NOW + 49, 49)
        positions = {header.max_timestamp: position for position, header in again.batches()}
        for timestamp in range(NOW, NOW + 50):
            assert again.position_for_timestamp(timestamp) <= positions[timestamp]


class TestOpenSegments:
    """Descriptors and memory stay within their limits."""

    def test_the_least_recently_used_is_released(self, tmp_path: Path) -> None:
        opened = OpenSegments(limit=2)
        first, second, third = (create(tmp_path, opened, base_offset=base) for base in (0, 10, 20))
        assert len(opened) == 2
        add(second, 10, b"x")
        add(first, 0, b"x")
        add(third, 20, b"x")
        assert len(opened) == 2
        for segment, base in ((first, 0), (second, 10), (third, 20)):
            assert [header.base_offset for header in headers(segment)] == [base]

    def test_what_is_mapped_goes_with_the_file(self, tmp_path: Path) -> None:
        opened = OpenSegments(limit=2)
        segments = [create(tmp_path, opened, base_offset=1000 * base, interval=0) for base in range(5)]
        for segment in segments:
            for number in range(20):
                add(segment, segment.base_offset + number, b"x")
            segment.close()
        before = len(os.listdir("/proc/self/fd"))
        for segment in segments:
            assert segment.locate(segment.base_offset + 15) is not None
            assert segment.position_for_timestamp(NOW) == 0
            assert len(os.listdir("/proc/self/fd")) - before <= 2 * DESCRIPTORS_PER_SEGMENT
        assert sum(str(tmp_path) in line for line in Path("/proc/self/maps").read_text().splitlines()) <= 2 * 2

    def test_to_know_the_newest_timestamp_keeps_nothing_open(
        self, segment: Segment, tmp_path: Path, opened: OpenSegments
    ) -> None:
        add(segment, 0, b"x")
        segment.seal()
        segment.close()
        again = Segment(tmp_path, 0, opened, size=segment.size)
        assert again.newest == (NOW, 0)
        assert len(opened) == 0

    def test_closing_leaves_the_set(self, segment: Segment, opened: OpenSegments) -> None:
        segment.close()
        assert len(opened) == 0
