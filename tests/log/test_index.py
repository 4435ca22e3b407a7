"""The two indexes: lookups, Kafka's file formats, files that cannot be trusted."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.index import OffsetIndex, TimeIndex

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


@pytest.mark.parametrize(("limit", "boundary"), [(0, 0), (99, 0), (100, 100), (899, 250), (5000, 900)])
def test_boundary_before_a_position(offsets: OffsetIndex, limit: int, boundary: int) -> None:
    assert offsets.boundary_before(limit) == boundary


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
    assert list(loaded.offsets) == [3, 7, 20, 30]
    loaded.append(40, 1100)
    loaded.save(path)
    assert path.stat().st_size == 5 * 8


def test_a_truncated_index_shrinks_its_file(offsets: OffsetIndex, tmp_path: Path) -> None:
    path = tmp_path / "index"
    offsets.save(path)
    offsets.truncate(250)
    offsets.append(8, 260)
    offsets.save(path)
    loaded = OffsetIndex.load(path, 2000)
    assert loaded is not None
    assert list(loaded.positions) == [100, 260]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">iiii", 3, 100, 3, 250), id="offset repeats"),
        pytest.param(struct.pack(">iiii", 3, 100, 7, 90), id="position falls"),
        pytest.param(struct.pack(">ii", 3, 2000), id="past the end of the log"),
        pytest.param(struct.pack(">iii", 3, 100, 7), id="cut"),
        pytest.param(bytes(16), id="zeros"),
    ],
)
def test_a_wrong_offset_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    assert OffsetIndex.load(tmp_path / "index", 2000) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(struct.pack(">qiqi", 1000, 3, 1000, 7), id="timestamp repeats"),
        pytest.param(struct.pack(">qiqi", 1000, 3, 2000, 3), id="offset repeats"),
        pytest.param(struct.pack(">qi", 1000, 3)[:-1], id="cut"),
        pytest.param(bytes(24), id="zeros"),
    ],
)
def test_a_wrong_time_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "index").write_bytes(data)
    assert TimeIndex.load(tmp_path / "index") is None


def test_missing_files_are_refused(tmp_path: Path) -> None:
    assert OffsetIndex.load(tmp_path / "none", 10) is None
    assert TimeIndex.load(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("timestamp", "offset"), [(999, -1), (1000, -1), (1001, 3), (1500, 3), (1501, 7), (9000, 7), (9001, 20)]
)
def test_no_record_up_to_the_offset_is_as_new(times: TimeIndex, timestamp: int, offset: int) -> None:
    assert times.offset_before(timestamp) == offset


def test_only_newer_timestamps_make_entries(times: TimeIndex) -> None:
    times.append_newer(9000, 25)
    times.append_newer(8000, 30)
    assert times.last == (9000, 20)
    times.append_newer(9001, 31)
    assert times.last == (9001, 31)


def test_times_truncate_by_offset(times: TimeIndex) -> None:
    times.truncate(7)
    assert [times.entry(number) for number in range(len(times))] == [(1000, 3)]


@given(st.binary(max_size=400))
def test_no_bytes_make_loading_fail(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "hostile-index"
    path.write_bytes(data)
    for index in (OffsetIndex.load(path, 1 << 31), TimeIndex.load(path)):
        if index is not None:
            assert index.size == len(data)
