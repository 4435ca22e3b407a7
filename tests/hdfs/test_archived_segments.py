"""Archived segments in HDFS are read as from the disk they come from, by brokers and by Spark's tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.archive.archived_read import ArchiveReader
from broker.archive.chunk_cache import StoreRead
from broker.clock import SystemClock
from broker.log.log_config import LogConfig
from broker.storage.storage import open_storage
from spark_connector.errors import DataLoss
from tests.support.archive_reads import planned, values
from tests.support.archiving import MIB, PLACE, archive_closed
from tests.support.batches import fill, open_log
from tests.support.small_archive import SmallArchive


def test_archived_segments_are_read_by_ranges(
    hdfs_directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.archive.archived_read.CHUNK_BYTES", 20_000)
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=50_000))
    fill(log, 150, size=1000)
    log.roll()
    whole = b"".join(segment.path().read_bytes() for segment in log.segments)
    storage = open_storage(hdfs_directory)
    reader = ArchiveReader(storage, tmp_path / "cache", max_bytes=MIB, threads=4, clock=SystemClock())
    partition = reader.partition(PLACE, archive_closed(log, storage, mark_bytes=8_000))
    found, offset = b"", 0
    while offset < log.log_end_offset:
        try:
            piece = partition.read(offset, 1, log.log_end_offset)
        except StoreRead as cold:
            cold.warm()
            continue
        assert piece is not None
        found += piece.read()
        offset += 1
    assert found == whole
    assert reader.cache.downloads > len(partition.segments)
    reader.close()


def test_a_spark_task_reads_them(hdfs_directory: str, tmp_path: Path) -> None:
    archive = SmallArchive(open_storage(hdfs_directory), tmp_path)
    for _ in range(3):
        archive.add()
    found = values(archive, planned(archive, 7, 22))
    assert found == [b"value %d of epoch 0" % offset for offset in range(7, 22)]
    gone = planned(archive)
    archive.storage.remove(archive.place.segment(gone.pieces[1].segment))
    with pytest.raises(DataLoss, match=r"offset \[10, 30\)"):
        values(archive, gone)
