"""What a task reads from the store of an archive, without a broker and without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.archive.manifest import Start, Truncate
from broker.errors import CorruptBatch
from broker.storage.storage import Storage, open_storage
from spark_connector.errors import ConnectorError, DataLoss
from tests.support.archive_reads import TP, planned, values
from tests.support.fake_s3 import FakeS3
from tests.support.small_archive import SmallArchive


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    return SmallArchive(open_storage(str(tmp_path / "archive")), tmp_path)


def expected(*parts: tuple[int, int, int]) -> list[bytes]:
    """The values of parts (from, until, epoch)."""
    return [b"value %d of epoch %d" % (each, epoch) for low, high, epoch in parts for each in range(low, high)]


def test_records_that_a_truncation_has_cut_are_not_read(archive: SmallArchive) -> None:
    """The object still holds them, and the next segment has others at their offsets."""
    for _ in range(2):
        archive.add()
    archive.commit(Truncate(14), 1)
    for _ in range(2):
        archive.add(1)
    assert values(archive) == expected((0, 14, 0), (14, 34, 1))
    assert values(archive, planned(archive, 3, 21)) == expected((3, 14, 0), (14, 21, 1))
    archive.commit(Truncate(4), 2)
    archive.add(2)
    assert values(archive) == expected((0, 4, 0), (4, 14, 2))


def test_what_is_gone_ends_where_the_archive_begins_again(
    archive: SmallArchive, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        archive.add()
    whole = planned(archive)
    archive.commit(Start(15), 0)
    archive.storage.remove(archive.place.segment(whole.pieces[0].segment))
    with pytest.raises(DataLoss, match=r"offset \[0, 40\) .*no longer has"):
        values(archive, whole)
    assert values(archive, whole, failOnDataLoss="false") == expected((15, 40, 0))
    assert "Offsets skipped: 15" in caplog.text


def test_an_object_that_the_manifest_names_and_that_is_gone_costs_its_own_records(archive: SmallArchive) -> None:
    for _ in range(3):
        archive.add()
    whole = planned(archive)
    archive.storage.remove(archive.place.segment(whole.pieces[1].segment))
    with pytest.raises(DataLoss, match=r"offset \[10, 30\)"):
        values(archive, whole)
    assert values(archive, whole, failOnDataLoss="false") == expected((0, 10, 0), (20, 30, 0))


def test_a_store_that_is_not_mounted_has_lost_nothing(archive: SmallArchive, tmp_path: Path) -> None:
    archive.add()
    whole = planned(archive)
    (tmp_path / "archive").rename(tmp_path / "elsewhere")
    with pytest.raises(ConnectorError, match=r"PYKAFKA_ARCHIVE_UNAVAILABLE.*cluster-1.*mounted on all executors"):
        values(archive, whole, failOnDataLoss="false")
    (tmp_path / "elsewhere").rename(tmp_path / "archive")
    assert values(archive, whole) == expected((0, 10, 0))


def test_a_batch_that_claims_more_than_its_piece_is_refused_at_once(
    archive: SmallArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length must not make a task gather the whole object."""
    segment = archive.add()
    path = archive.place.segment(segment.name)
    data = bytearray(archive.storage.read(path))
    data[8:12] = (0x7FFFFF00).to_bytes(4)
    archive.replace(path, bytes(data))
    monkeypatch.setattr("spark_connector.read.archive_reader.READ_BYTES", 100)
    asked: list[int] = []
    read_range = Storage.read_range

    def counted(self: Storage, name: str, start: int, end: int) -> bytes:
        if name == path:  # not of the objects that are read whole
            asked.append(start)
        return read_range(self, name, start, end)

    monkeypatch.setattr(Storage, "read_range", counted)
    with pytest.raises(CorruptBatch, match=str(TP)):
        values(archive)
    assert len(asked) <= 2


def test_rows_come_from_an_object_store(s3: FakeS3, tmp_path: Path) -> None:
    options = s3.options
    archive = SmallArchive(open_storage("s3://lake/archive", options), tmp_path)
    for _ in range(3):
        archive.add()
    given = {f"archive.option.{name}": value for name, value in options.items()}
    assert values(archive, planned(archive), **given) == expected((0, 30, 0))
    assert values(archive, planned(archive, 7, 22), **given) == expected((7, 22, 0))
    gone = planned(archive)
    archive.storage.remove(archive.place.segment(gone.pieces[2].segment))
    with pytest.raises(DataLoss, match=r"offset \[20, 30\)"):
        values(archive, gone, **given)
