"""What is in the page cache, asked of the kernel, and what is read of it instead of being sent by sendfile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.log.segment_file import ColdRead, FileSlice, SegmentFile, unless_cold
from broker.net.response import READ_BYTES, SHORT_BYTES, is_cached, warm, with_short_ranges_read
from tests.support.randomness import noise

SIZE = 1 << 20


@pytest.fixture
def cold(tmp_path: Path) -> FileSlice:
    """A file whose pages were dropped."""
    path = tmp_path / "segment"
    path.write_bytes(noise(SIZE))
    file = SegmentFile(path)
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # a read brings in what it reads, and no more
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return FileSlice(file, 0, SIZE)
    except OSError as error:
        pytest.skip(f"this file system cannot tell what is in memory: {error.strerror}")
    pytest.skip("this file system keeps what it is told to drop")


def test_a_range_is_cached_once_it_was_warmed(cold: FileSlice) -> None:
    assert not is_cached(cold.file.fileno(), 0, SIZE)
    warm(cold, SIZE)
    assert is_cached(cold.file.fileno(), 0, SIZE)


def test_a_range_whose_end_is_not_cached_is_not(cold: FileSlice) -> None:
    os.pread(cold.file.fileno(), 1, 0)
    assert is_cached(cold.file.fileno(), 0, 10)
    assert not is_cached(cold.file.fileno(), 0, SIZE)


def test_a_glance_refuses_to_wait_where_it_is_told_to(cold: FileSlice) -> None:
    with pytest.raises(ColdRead) as told:
        unless_cold(lambda: cold.file.glance(100, SIZE // 2))
    told.value.warm()
    seen = unless_cold(lambda: cold.file.glance(100, SIZE // 2))
    assert seen == cold.file.pread(100, SIZE // 2)


def test_a_glance_waits_everywhere_else(cold: FileSlice) -> None:
    assert len(cold.file.glance(100, SIZE // 2)) == 100


def test_short_ranges_are_read_and_joined_with_their_surroundings(cold: FileSlice) -> None:
    warm(cold, SIZE)
    data = cold.file.pread(SIZE, 0)
    short, long = FileSlice(cold.file, 10, READ_BYTES), FileSlice(cold.file, 0, READ_BYTES + 1)
    joined = b"a" + data[10 : 10 + READ_BYTES] + b"b"
    assert with_short_ranges_read([b"a", short, b"b", long, b"c"]) == [joined, long, b"c"]
    many = with_short_ranges_read([short] * 5)
    assert [len(part) for part in many if isinstance(part, bytes)] == [SHORT_BYTES, READ_BYTES]


def test_a_short_range_that_is_not_cached_stays_a_range(cold: FileSlice) -> None:
    short = FileSlice(cold.file, SIZE // 2, 100)
    assert with_short_ranges_read([b"a", short, b"b"]) == [b"a", short, b"b"]


def test_a_short_range_beyond_the_end_of_the_file_stays_a_range(cold: FileSlice) -> None:
    warm(cold, SIZE)
    short = FileSlice(cold.file, SIZE - 10, 100)
    assert with_short_ranges_read([short]) == [short]
