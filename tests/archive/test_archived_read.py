"""Records of archived segments: the same as from the local log, whatever the store does."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import pytest

from broker.archive.archived_read import ArchivedPartition, ArchiveReader, cut_chunks
from broker.archive.aux_sections import AuxSections
from broker.archive.chunk_cache import UNUSED_S, ChunkCache, StoreRead
from broker.archive.manifest import ArchivedSegment, Entry, Manifest, Mark, Truncate
from broker.clock import ManualClock, SystemClock
from broker.errors import BrokerError, CorruptBatch, ErrorCode
from broker.log.log import Log
from broker.log.log_config import LogConfig
from broker.log.segment_file import SegmentFile
from broker.metrics import TopicMetrics
from broker.records.batch import BatchHeader, parse_header
from broker.records.record import decode_records
from broker.storage.storage import open_storage
from tests.support.archived_segments import archived_segment
from tests.support.archiving import MIB, PLACE, ArchiveOfLog, archive_closed
from tests.support.batches import NOW, append, batch, open_log
from tests.support.fake_s3 import FakeS3
from tests.support.log_transactions import Producers, stable_end
from tests.support.randomness import seeded

P = ParamSpec("P")
T = TypeVar("T")


def answer(attempt: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The answer, after whatever waits for the store."""
    while True:
        try:
            return attempt(*args, **kwargs)
        except StoreRead as cold:
            cold.warm()


def read_all(log: ArchivedPartition | Log, start: int, end: int, max_bytes: int) -> bytes:
    """The batches from the one that holds `start`, all below `end`."""
    pieces, offset = [], start
    while offset < end:
        found = answer(log.read, offset, max_bytes, up_to=end)
        if found is None:
            break
        data = found.read()
        assert found.length <= max_bytes or found.length == parse_header(data).size
        pieces.append(data)
        offset = last_header(data).next_offset
    return b"".join(pieces)


def last_header(data: bytes) -> BatchHeader:
    position = 0
    while (after := position + parse_header(data, position).size) < len(data):
        position = after
    return parse_header(data, position)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Some segments of batches of any size, codec and time, in two leader epochs; all but the last are closed."""
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=60_000, index_interval_bytes=500))
    chance = seeded(5)
    for number in range(400):
        values = [b"x" * chance.choice((10, 100, 2000)) for _ in range(chance.randint(1, 4))]
        times = [NOW + number * 10 + chance.randint(-300, 300) for _ in values]
        append(log, batch(*values, timestamps=times, codec=number % 5), leader_epoch=1 if number < 230 else 4)
    log.roll()
    assert len(log.segments) > 4
    return log


@pytest.fixture
def archive(log: Log, tmp_path: Path) -> ArchiveOfLog:
    return ArchiveOfLog(log, tmp_path, mark_bytes=8_000)


def test_the_archive_gives_the_bytes_of_the_log(
    log: Log, archive: ArchiveOfLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.archive.archived_read.CHUNK_BYTES", 20_000)
    end = log.log_end_offset
    assert (archive.partition.start, archive.partition.end, archive.partition.size) == (0, end, log.size)
    assert archive.partition.segments[-1].end == end
    chance = seeded(7)
    for max_bytes in (1, 900, 30_000, 1 << 30):
        for _ in range(12):
            start = chance.randrange(end)
            stop = chance.randint(start, end)
            assert read_all(archive.partition, start, stop, max_bytes) == read_all(log, start, stop, max_bytes)
    assert read_all(archive.partition, 0, end, 1 << 30) == read_all(log, 0, end, 1 << 30)
    assert archive.partition.read(end, 100, end + 1) is None
    chunks = sum(len(cut_chunks("", segment)) for segment in archive.manifest.segments)
    assert archive.reader.cache.downloads == chunks > 2 * len(archive.manifest.segments), "once each"


def test_chunks_are_whole_and_about_four_mebibytes() -> None:
    segment = segment_with_marks([MIB + 1000] * 11 + [9 * MIB, 300])
    chunks = cut_chunks("x", segment)
    assert [chunk.length // MIB for chunk in chunks] == [3, 3, 3, 2, 9, 0]
    assert [chunk.position for chunk in chunks[1:]] == [chunk.position + chunk.length for chunk in chunks[:-1]]
    assert [chunk.first_offset for chunk in chunks[1:]] == [chunk.end_offset for chunk in chunks[:-1]]
    assert cut_chunks("x", segment.cut(20))[-1].end_offset == 20
    assert cut_chunks("x", dataclasses.replace(segment, size=1 << 40).cut(5))[-1].length == 32 * MIB
    far = dataclasses.replace(segment, size=1 << 40, marks=(segment.marks[0], Mark(5, 50 << 30, -1)))
    with pytest.raises(CorruptBatch, match="its marks ask for 53687091200 bytes at once"):
        cut_chunks("x", far)


def segment_with_marks(distances: list[int]) -> ArchivedSegment:
    """Its marks are so many bytes and ten offsets apart."""
    positions = [sum(distances[:number]) for number in range(len(distances))]
    marks = tuple(Mark(10 * number, position, -1) for number, position in enumerate(positions))
    return dataclasses.replace(archived_segment(0, 10 * len(distances)), size=sum(distances), marks=marks)


@pytest.mark.parametrize("cached", [False, True])
def test_what_a_truncation_cut_off_is_not_read(log: Log, archive: ArchiveOfLog, cached: bool) -> None:
    """Also if it was in the cache before: later segments hold other records at these offsets."""
    if cached:
        read_all(archive.partition, 0, log.log_end_offset, 1 << 30)
    cut = archive.manifest.segments[2].base + 40
    data = read_all(log, 0, cut, 1 << 30)
    end = last_header(data).next_offset
    truncated = archive.manifest.apply(Entry(archive.manifest.next_number, 4, 0, Truncate(end)))
    archive.partition.manifest = truncated
    assert read_all(archive.partition, 0, end, 1 << 30) == data
    assert archive.partition.end == end
    assert archive.partition.read(end, 1, end + 1) is None
    found = answer(archive.partition.read, end - 1, 1 << 30, 1 << 30)
    assert found is not None
    assert last_header(found.read()).next_offset == end


def test_a_snapshot_has_few_marks_and_the_aux_has_all(
    log: Log, archive: ArchiveOfLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.archive.archived_read.CHUNK_BYTES", 10_000)
    thin = tuple(segment.with_thin_marks(50_000) for segment in archive.manifest.segments)
    archive.partition.manifest = dataclasses.replace(archive.manifest, segments=thin)
    end = log.log_end_offset
    assert read_all(archive.partition, 0, end, 1 << 30) == read_all(log, 0, end, 1 << 30)
    asked = archive.store.asked
    assert [asked[PLACE.aux(segment.name)] for segment in thin[:-1]] == [2] * (len(thin) - 1), "its footer, its marks"
    assert all(asked[PLACE.segment(segment.name)] > 3 for segment in thin[:-1])


# --- times


def test_times_are_found_as_in_the_log(log: Log, archive: ArchiveOfLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.archive.archived_read.CHUNK_BYTES", 10_000)
    end = log.log_end_offset
    records = [(found, time) for found, time in all_times(log)]
    chance = seeded(2)
    for _ in range(40):
        ms = NOW + chance.randint(-400, 4400)
        start = chance.choice((0, chance.randrange(end)))
        stop = chance.choice((end, chance.randint(start, end)))
        within = [(offset, time) for offset, time in records if start <= offset < stop]
        expected = next((one for one in within if one[1] >= ms), None)
        assert answer(archive.partition.offset_for_timestamp, ms, start, stop) == expected
        newest = max((time for _, time in within), default=-1)
        first = next((one for one in within if one[1] == newest), None)
        assert answer(archive.partition.max_timestamp, start, stop) == first


def all_times(log: Log) -> list[tuple[int, int]]:
    return [(one.offset, one.timestamp) for one in decode_records(read_all(log, 0, log.log_end_offset, 1 << 30))]


def test_a_time_after_all_is_known_without_the_store(archive: ArchiveOfLog) -> None:
    assert archive.partition.offset_for_timestamp(NOW + 100_000, 0, archive.partition.end) is None
    assert not archive.store.asked


# --- transactions


def test_aborted_transactions_are_those_of_the_log_wherever_the_marker_is(tmp_path: Path) -> None:
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=1_500))
    producers, chance = Producers(log), seeded(11)
    for _ in range(300):
        producer = chance.randrange(1, 6)
        producers.send(producer)
        if chance.random() < 0.15:
            (producers.abort if chance.random() < 0.6 else producers.commit)(producer)
    for producer in range(1, 6):
        producers.send(producer)
        producers.abort(producer)
    log.roll()
    archive = ArchiveOfLog(log, tmp_path, mark_bytes=400)
    assert len(archive.manifest.segments) > 15
    up_to = stable_end(log)
    for offset in range(log.log_end_offset):
        here, there = log.read(offset, 600), answer(archive.partition.read, offset, 600, up_to)
        assert here is not None
        assert there is not None
        end = last_header(there.read()).next_offset
        found = answer(archive.partition.aborted_in, offset, there, up_to)
        needed = log.aborted.transactions_between(offset, end)
        assert [one for one in found if one in needed] == needed
        segment = archive.manifest.segment_of(offset)
        assert segment is not None
        assert set(found) <= set(log.aborted.transactions_between(offset, segment.end)), "not those of the whole log"


def test_without_transactions_no_aux_is_read(log: Log, archive: ArchiveOfLog) -> None:
    found = answer(archive.partition.read, 0, 100, 1000)
    assert found is not None
    assert archive.partition.aborted_in(0, found, 1000) == []
    assert not any(path.endswith(".aux") for path in archive.store.asked)


# --- a store that fails


def test_a_damaged_or_missing_object_is_an_error_that_names_it(
    log: Log, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(NOW)
    archive = ArchiveOfLog(log, tmp_path, clock=clock)
    segment = archive.manifest.segments[1]
    path = PLACE.segment(segment.name)
    whole = archive.storage.read(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4

    def read() -> bytes:
        return read_all(archive.partition, segment.base, segment.end, 1 << 30)

    pause_ms = 1_000
    for damaged, reason in ((bytes(flipped), "CRC"), (whole[:-40], "ends at byte"), (None, "missing"), (b"", "ends")):
        archive.store.damage = {} if damaged is None else {path: damaged}
        archive.store.error = FileNotFoundError(path) if damaged is None else None
        for _ in range(2):
            with caplog.at_level(logging.ERROR), pytest.raises(BrokerError, match=reason) as refused:
                read()
            assert refused.value.code is ErrorCode.kafka_storage_error
        asked = archive.store.asked[path]
        with pytest.raises(BrokerError, match=reason):
            read()
        assert archive.store.asked[path] == asked, "it is not asked again at once"
        assert [path in record.getMessage() for record in caplog.records] == [True], "logged once"
        caplog.clear()
        clock.advance(pause_ms)
        pause_ms *= 2
    archive.store.damage.clear()
    assert read() == read_all(log, segment.base, segment.end, 1 << 30)


def test_secrets_in_the_errors_of_a_store_are_not_told(archive: ArchiveOfLog, caplog: pytest.LogCaptureFixture) -> None:
    archive.store.error = OSError("cannot get https://store/x?X-Amz-Signature=abcdef")
    with caplog.at_level(logging.ERROR), pytest.raises(BrokerError) as refused:
        read_all(archive.partition, 0, 10, 100)
    assert "abcdef" not in refused.value.message + caplog.text


def test_a_cached_file_that_is_gone_or_cut_is_downloaded_again(log: Log, archive: ArchiveOfLog, tmp_path: Path) -> None:
    expected = read_all(log, 0, 50, 1 << 30)
    for damage in (Path.unlink, lambda path: path.write_bytes(b"short")):
        assert read_all(archive.partition, 0, 50, 1 << 30) == expected
        for path in (tmp_path / "cache").iterdir():
            damage(path)
    assert read_all(archive.partition, 0, 50, 1 << 30) == expected


def test_a_cached_file_that_cannot_be_read_is_an_error_and_then_downloaded_again(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not fail for ever, and not the other partitions of the fetch."""
    clock = ManualClock(NOW)
    archive = ArchiveOfLog(log, tmp_path, clock=clock)
    expected = read_all(log, 0, 50, 1 << 30)

    def garbage() -> None:
        for path in (tmp_path / "cache").iterdir():
            path.write_bytes(bytes(path.stat().st_size))

    def denied() -> None:
        def refuse(file: SegmentFile, length: int, position: int) -> bytes:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(SegmentFile, "glance", refuse)

    for damage in (garbage, denied):
        assert read_all(archive.partition, 0, 50, 1 << 30) == expected
        damage()
        with pytest.raises(BrokerError, match=r"archive\.cache\.dir") as refused:
            read_all(archive.partition, 0, 50, 1 << 30)
        assert refused.value.code is ErrorCode.kafka_storage_error
        monkeypatch.undo()
        clock.advance(1_000)
    assert read_all(archive.partition, 0, 50, 1 << 30) == expected
    files = sum(path.stat().st_size for path in (tmp_path / "cache").iterdir())
    assert files == archive.reader.cache.size


def test_no_file_stays_open_when_its_slices_are_sent(archive: ArchiveOfLog, tmp_path: Path) -> None:
    """Else each partition that was ever read would keep a file, which takes its place on the disk after its end."""
    found = answer(archive.partition.read, 0, 1 << 30, 1000)
    assert open_files(tmp_path / "cache") == 1
    del found
    assert open_files(tmp_path / "cache") == 0


def open_files(directory: Path) -> int:
    """Of this process, below the directory."""
    descriptors = Path("/proc/self/fd")
    return sum(os.path.realpath(one).startswith(str(directory)) for one in descriptors.iterdir())


def test_sections_in_use_do_not_drive_each_other_out(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that needs two would else never find both."""
    monkeypatch.setattr("broker.archive.aux_sections.MOST_ROWS", 1)
    clock = ManualClock(NOW)
    archive = ArchiveOfLog(log, tmp_path, mark_bytes=8_000, clock=clock)
    sections = AuxSections(archive.reader.cache, archive.store, clock)

    def look(number: int) -> object:
        segment = archive.manifest.segments[number]
        return sections.marks(PLACE.aux(segment.name), segment.aux_size, TopicMetrics())

    for number in (0, 1):
        assert answer(look, number)
    assert look(0)
    assert look(1)
    clock.advance(int(UNUSED_S * 1000) + 1)
    assert answer(look, 2)
    with pytest.raises(StoreRead):
        look(0)


def test_a_slice_outlives_its_chunk(log: Log, tmp_path: Path) -> None:
    """A consumer may take longer to receive an answer than the chunk stays."""
    archive = ArchiveOfLog(log, tmp_path, max_bytes=70_000, threads=1)
    found = answer(archive.partition.read, 0, 1 << 30, 1000)
    assert found is not None
    expected = found.read()
    read_all(archive.partition, found.length, log.log_end_offset, 1 << 30)
    assert found.read() == expected
    assert archive.reader.cache.size <= 70_000


def test_reading_asks_the_store_in_threads_only(archive: ArchiveOfLog, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()
    read_range = archive.store.read_range

    def noting(path: str, start: int, end: int) -> bytes:
        threads.add(threading.get_ident())
        return read_range(path, start, end)

    monkeypatch.setattr(archive.store, "read_range", noting)
    read_all(archive.partition, 0, archive.partition.end, 5000)
    assert threads
    assert threading.get_ident() not in threads


def test_an_empty_manifest_has_nothing() -> None:
    empty = ArchivedPartition(PLACE, Manifest(), cast(ChunkCache, None), cast(AuxSections, None), TopicMetrics())
    assert (empty.start, empty.end, empty.size, list(empty.segments)) == (None, 0, 0, [])
    assert empty.read(0, 10, 10) is None
    assert empty.max_timestamp(0, 10) is None


def test_the_objects_of_an_s3_are_read_by_ranges(
    log: Log, tmp_path: Path, s3: FakeS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.archive.archived_read.CHUNK_BYTES", 20_000)
    storage = open_storage("s3://lake/kafka", s3.options)
    reader = ArchiveReader(storage, tmp_path / "cache", max_bytes=MIB, threads=4, clock=SystemClock())
    partition = reader.partition(PLACE, archive_closed(log, storage, mark_bytes=8_000))
    end = log.log_end_offset
    assert read_all(partition, 0, end, 1 << 30) == read_all(log, 0, end, 1 << 30)
    segment = partition.segments[1]
    storage.remove(PLACE.segment(segment.name))
    reader.close()
    reader = ArchiveReader(storage, tmp_path / "cache", max_bytes=MIB, threads=4, clock=SystemClock())
    partition = reader.partition(PLACE, partition.manifest)
    with pytest.raises(BrokerError, match=r"the object is missing"):
        read_all(partition, segment.base, segment.end, 1 << 30)
    reader.close()
