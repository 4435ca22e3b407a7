"""`verify` finds whatever is wrong with an archive, and nothing in one that is whole, also while brokers go on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.archive import verify
from broker.archive.contents import archived_topics
from broker.archive.manifest import Add, Start, Truncate
from broker.archive.verify import Report, verify_partition
from broker.storage.storage import Storage, open_storage
from tests.support.archived_segments import archived_segment
from tests.support.small_archive import SmallArchive

DAY_MS = 86_400_000


@pytest.fixture
def storage() -> Storage:
    return open_storage(f"memory://archive/{uuid.uuid4()}")


@pytest.fixture
def archive(storage: Storage, tmp_path: Path) -> SmallArchive:
    """Three segments, in two leader epochs."""
    archive = SmallArchive(storage, tmp_path)
    for epoch in (0, 0, 2):
        archive.add(epoch)
    return archive


def check(archive: SmallArchive, *, deep: bool = True, later_ms: int = 0) -> Report:
    topic = archive.place.directory.rpartition("/")[0]
    now_ms = archive.storage.modified_ms(f"{topic}/topic.json") + 60_000 + later_ms
    return verify_partition(archive.storage, archive.place, deep=deep, orphan_ms=DAY_MS, now_ms=now_ms)


def kinds(report: Report) -> list[str]:
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize("deep", [False, True])
def test_a_whole_archive_has_no_problem(archive: SmallArchive, deep: bool) -> None:
    report = check(archive, deep=deep, later_ms=2 * DAY_MS)
    assert report.problems == []
    assert report.manifest == archive.manifest


def test_a_cut_archive_has_no_problem(archive: SmallArchive) -> None:
    """A truncation cuts a segment, and not its objects; the next one goes on in it."""
    archive.commit(Truncate(24), 3)
    archive.commit(Start(13), 3)
    archive.add(3)
    assert [(one.base, one.end) for one in archive.manifest.segments] == [(10, 20), (20, 24), (24, 34)]
    assert check(archive).problems == []


@pytest.mark.parametrize("suffix", ["log", "aux"])
def test_a_missing_object(archive: SmallArchive, suffix: str) -> None:
    path = f"{archive.place.directory}/{archive.manifest.segments[1].name}.{suffix}"
    archive.storage.remove(path)
    (problem,) = check(archive).problems
    assert (problem.path, problem.kind) == (path, verify.MISSING)
    assert "records 10 to 19" in problem.text


@pytest.mark.parametrize("suffix", ["log", "aux"])
def test_a_short_object(archive: SmallArchive, suffix: str) -> None:
    path = f"{archive.place.directory}/{archive.manifest.segments[1].name}.{suffix}"
    archive.replace(path, archive.storage.read(path)[:-1])
    assert kinds(check(archive, deep=False)) == [verify.SHORT]
    assert verify.TORN in kinds(check(archive))


@pytest.mark.parametrize("at", [0, 8, 12, 30, 60, -1])
@pytest.mark.parametrize("suffix", ["log", "aux"])
def test_a_flipped_bit_is_found_by_reading(archive: SmallArchive, suffix: str, at: int) -> None:
    path = f"{archive.place.directory}/{archive.manifest.segments[1].name}.{suffix}"
    data = bytearray(archive.storage.read(path))
    data[at] ^= 1
    archive.replace(path, bytes(data))
    assert check(archive, deep=False).problems == []
    found = check(archive).problems
    assert {(problem.path, problem.kind) for problem in found} == {(path, verify.TORN)}


def test_records_of_another_segment_are_found_by_reading(archive: SmallArchive) -> None:
    """Whole batches with a right CRC, at the wrong place."""
    first, second, _ = archive.manifest.segments
    archive.replace(archive.place.segment(second.name), archive.storage.read(archive.place.segment(first.name)))
    texts = [problem.text for problem in check(archive).problems]
    assert any("should lie between 10 and 19" in text for text in texts)


def test_marks_that_point_into_a_batch_are_found_by_reading(archive: SmallArchive) -> None:
    change_segment(archive, marks=[[20, 0, -1], [22, 5, 0]])
    assert "no batch begins at byte 5" in check(archive).problems[0].text


def change_segment(archive: SmallArchive, number: int = 2, /, **changed: Any) -> None:
    path = archive.place.entry(number)
    document = json.loads(archive.storage.read(path))
    document["segment"] |= changed
    archive.replace(path, json.dumps(document).encode())


def change_entry(archive: SmallArchive, number: int, /, **changed: Any) -> None:
    path = archive.place.entry(number)
    archive.replace(path, json.dumps(json.loads(archive.storage.read(path)) | changed).encode())


WRONG: dict[str, tuple[Callable[[SmallArchive], None], str]] = {
    "a hole": (
        lambda archive: change_segment(archive, base=21, marks=[[21, 0, -1]], epochs=[[2, 21]]),
        verify.HOLE,
    ),
    "an overlap": (
        lambda archive: change_segment(archive, base=19, marks=[[19, 0, -1]], epochs=[[2, 19]]),
        verify.OVERLAP,
    ),
    "leader epochs of records that fall": (lambda archive: change_segment(archive, 1, epochs=[[7, 10]]), verify.EPOCHS),
    "epochs of entries that fall": (lambda archive: change_entry(archive, 1, epoch=9), verify.EPOCHS),
    "an entry that is gone": (lambda archive: archive.storage.remove(archive.place.entry(1)), verify.GAP),
    "an entry that is damaged": (lambda archive: archive.replace(archive.place.entry(1), b"{"), verify.MANIFEST),
    "an entry with another number": (lambda archive: change_entry(archive, 1, number=2), verify.MANIFEST),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_the_manifest_must_not_say(archive: SmallArchive, case: str) -> None:
    spoil, kind = WRONG[case]
    spoil(archive)
    assert kinds(check(archive, deep=False)) == [kind]


def test_an_orphan_is_one_only_when_it_is_old(archive: SmallArchive) -> None:
    """A young one is a copy that is under way."""
    segment = archive.copy(30)
    young = check(archive)
    assert (young.problems, young.unnamed) == ([], 2)
    old = check(archive, later_ms=DAY_MS)
    assert kinds(old) == [verify.ORPHAN, verify.ORPHAN]
    assert segment.name in old.problems[0].path


def commit_200(archive: SmallArchive) -> None:
    for number in range(200):
        archive.commit(Start(archive.manifest.start + (number == 150)), 2)


def test_a_manifest_with_snapshots_is_checked_from_the_last_but_one(archive: SmallArchive) -> None:
    commit_200(archive)
    assert check(archive).problems == []
    change_entry(archive, 200, segments=[])
    assert kinds(check(archive)) == [verify.MANIFEST]
    archive.storage.remove(archive.place.entry(100))
    assert kinds(check(archive)) == [verify.GAP]


class Busy:
    """A storage in which, after the first list of the manifest, a leader commits two hundred entries."""

    def __init__(self, archive: SmallArchive) -> None:
        self._archive = archive
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive.storage, name)

    def names(self, path: str) -> list[str]:
        found = self._archive.storage.names(path)
        if path == self._archive.place.manifest and self._is_first:
            self._is_first = False
            commit_200(self._archive)
        return found


def test_what_is_deleted_during_the_check_is_no_problem(archive: SmallArchive) -> None:
    busy: Any = Busy(archive)
    report = verify_partition(busy, archive.place, deep=True, orphan_ms=DAY_MS, now_ms=0)
    assert report.problems == []
    assert report.manifest.next_number == archive.manifest.next_number


def test_an_empty_partition_has_no_problem(storage: Storage, tmp_path: Path) -> None:
    archive = SmallArchive(storage, tmp_path)
    report = verify_partition(storage, archive.place, deep=True, orphan_ms=DAY_MS, now_ms=0)
    assert (report.problems, report.manifest.end) == ([], 0)


def test_a_segment_that_was_never_put_is_missing(archive: SmallArchive) -> None:
    archive.commit(Add(archived_segment(30, 40, 2)), 2)
    assert kinds(check(archive)) == [verify.MISSING, verify.MISSING]


def test_the_topics_of_an_archive_are_found(archive: SmallArchive) -> None:
    (topic,) = archived_topics(archive.storage)
    assert (topic.name, topic.partitions, topic.is_deleted, topic.places) == ("flights", (0,), False, [archive.place])
    directory = archive.place.directory.rpartition("/")[0]
    archive.storage.create(f"{directory}/deleted.json", b"{}")
    archive.replace(f"{directory}/topic.json", b"[")
    (topic,) = archived_topics(archive.storage)
    assert (topic.shown, topic.is_deleted) == ("AAAAAAAAAAAAAAAAAAAABQ", True)
