"""The two indexes: lookups, Kafka's file formats, files that cannot be trusted."""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.index import OffsetIndex, TimeIndex

Buffer = bytes | bytearray | memoryview

ENTRIES = [(3, 100), (7, 250), (20, 900)]


@pytest.fixture
def offsets() -> OffsetIndex:
    index = OffsetIndex()
    for relative_offset, position in ENTRIES:
        index.append(relative_offset, position)
    return index


@pytest.fixture
def times() -> TimeIndex:
    index = TimeIndex()
    for timestamp, relative_offset in [(1000, 3), (1500, 7), (9000, 20)]:
        index.append_newer(timestamp, relative_offset)
    return index


@pytest.mark.parametrize(("offset", "position"), [(0, 0), (2, 0), (3, 100), (6, 100), (7, 250), (99, 900)])
def test_position_of_an_offset(offsets: OffsetIndex, offset: int, position: int) -> None:
    assert offsets.position_of(offset) == position


@pytest.mark.parametrize(
    ("limit", "entry"), [(0, None), (99, None), (100, ENTRIES[0]), (899, ENTRIES[1]), (5000, ENTRIES[2])]
)
def test_the_entry_at_or_before_a_position(offsets: OffsetIndex, limit: int, entry: tuple[int, int] | None) -> None:
    assert offsets.at_or_before(limit) == entry


@pytest.mark.parametrize(
    ("limit", "entry"), [(0, ENTRIES[0]), (100, ENTRIES[0]), (101, ENTRIES[1]), (900, ENTRIES[2]), (901, None)]
)
def test_the_entry_at_or_after_a_position(offsets: OffsetIndex, limit: int, entry: tuple[int, int] | None) -> None:
    assert offsets.at_or_after(limit) == entry


def test_the_offset_file_is_kafkas(offsets: OffsetIndex, tmp_path: Path) -> None:
    offsets.save(tmp_path / "index")
    assert (tmp_path / "index").read_bytes() == b"".join(struct.pack(">ii", *entry) for entry in ENTRIES)


def test_the_time_file_is_kafkas(times: TimeIndex, tmp_path: Path) -> None:
    times.save(tmp_path / "index")
    assert (tmp_path / "index").read_bytes() == struct.pack(">qiqiqi", 1000, 3, 1500, 7, 9000, 20)


def test_saves_write_what_is_new(offsets: OffsetIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    offsets.save(path)
    offsets.append(30, 1000)
    offsets.save(path)
    offsets.save(path)
    loaded = OffsetIndex.load(path, 2000)
    assert loaded is not None
    assert entries(loaded) == [*ENTRIES, (30, 1000)]
    loaded.append(40, 1100)
    assert entries(loaded) == [*ENTRIES, (30, 1000), (40, 1100)]
    loaded.save(path)
    assert path.stat().st_size == 5 * 8
    assert entries(loaded) == [*ENTRIES, (30, 1000), (40, 1100)]


def test_a_new_index_shortens_the_file_of_the_one_before(offsets: OffsetIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    offsets.save(path)
    anew = OffsetIndex()
    anew.append(8, 260)
    del offsets
    anew.save(path)
    loaded = OffsetIndex.load(path, 2000)
    assert loaded is not None
    assert entries(loaded) == [(8, 260)]


def test_a_lost_file_is_written_whole(offsets: OffsetIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    offsets.save(path)
    path.unlink()
    offsets.detach()
    offsets.append(30, 1000)
    offsets.save(path)
    assert entries(offsets) == [*ENTRIES, (30, 1000)]
    assert path.stat().st_size == 4 * 8


@pytest.mark.parametrize("refused", [False, True])
def test_a_disk_that_takes_a_part_only_leaves_no_zeros(
    offsets: OffsetIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Once the rest was filled up with entries of offset 0 at byte 0, and forgotten."""
    path, calls, write = tmp_path / "index", [0], os.pwrite

    def take_ten_bytes(fd: int, data: Buffer, position: int) -> int:
        calls[0] += 1
        if refused and calls[0] > 1:
            raise OSError(errno.ENOSPC, "full")
        return write(fd, memoryview(data)[:10], position)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", take_ten_bytes)
        if refused:
            with pytest.raises(OSError, match="full"):
                offsets.save(path)
        else:
            offsets.save(path)
    assert entries(offsets) == ENTRIES
    offsets.save(path)
    loaded = OffsetIndex.load(path, 2000)
    assert loaded is not None
    assert entries(loaded) == ENTRIES


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 50), max_size=60).map(lambda steps: list(accumulate(steps))),
    st.integers(0, 60),
    st.integers(0, 2000),
)
def test_lookups_are_the_same_wherever_entries_are_kept(
    tmp_path_factory: pytest.TempPathFactory, column: list[int], saved: int, value: int
) -> None:
    index = OffsetIndex()
    for number, offset in enumerate(column):
        if number == saved:
            index.save(tmp_path_factory.getbasetemp() / "anywhere")
        index.append(offset, offset * 3)
    assert index.count_up_to(value, 0) == bisect_right(column, value)
    assert index.position_of(value) == max((3 * offset for offset in column if offset <= value), default=0)


def entries(index: OffsetIndex | TimeIndex) -> list[tuple[int, int]]:
    return [index.entry(number) for number in range(len(index))]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">ii", 3, 2000), id="past the end of the log"),
        pytest.param(struct.pack(">iii", 3, 100, 7), id="cut"),
    ],
)
def test_a_wrong_offset_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    assert OffsetIndex.load(tmp_path / "index", 2000) is None


def test_a_cut_time_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(struct.pack(">qi", 1000, 3)[:-1])
    assert TimeIndex.read(tmp_path / "index") is None


def test_missing_files_are_refused(tmp_path: Path) -> None:
    assert OffsetIndex.load(tmp_path / "none", 10) is None
    assert TimeIndex.read(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(999, -1), (1000, -1), (1001, 3), (1500, 3), (1501, 7), (9000, 7), (9001, 20)]
)
def test_no_record_up_to_the_offset_is_as_new(times: TimeIndex, timestamp: int, offset: int) -> None:
    entry = times.before(timestamp)
    assert (-1 if entry is None else entry[1]) == offset


def test_only_newer_timestamps_make_entries(times: TimeIndex) -> None:
    times.append_newer(9000, 25)
    times.append_newer(8000, 30)
    assert times.last == (9000, 20)
    times.append_newer(9001, 31)
    assert times.last == (9001, 31)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_loading_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile-index"
    path.write_bytes(data)
    for index in (OffsetIndex.load(path, 1 << 31), TimeIndex.read(path)):
        if index is not None:
            assert index.size == len(data)
            for column in (0, 1):
                assert 0 <= index.count_up_to(77, column) <= len(index)
