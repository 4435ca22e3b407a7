"""`prune` deletes what interrupted copies left, and nothing that a reader or a copy may still need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.archive.manifest import BrokenManifest, Start
from broker.archive.prune import delete, leftovers
from broker.archive.verify import verify_partition
from broker.storage.storage import open_storage
from tests.support.small_archive import SmallArchive

NEVER, ALWAYS = 0, 1 << 50


@pytest.fixture
def archive(tmp_path: Path) -> SmallArchive:
    """On a local disk, where writers leave temporary files, too."""
    archive = SmallArchive(open_storage(str(tmp_path / "archive")), tmp_path)
    archive.add()
    archive.add()
    return archive


def test_only_what_no_manifest_names_is_deleted(archive: SmallArchive) -> None:
    orphan = archive.copy(20)
    archive.commit(Start(10))
    kept = archive.manifest.segments[0].name
    root = Path(archive.storage.url.removeprefix("file://"))
    temporary = [f"{archive.place.manifest}/.{1:020}.json.aa.tmp", f"{archive.place.directory}/.x.log.bb.tmp"]
    for path in (*temporary, f"{archive.place.directory}/notes.txt"):
        (root / path).write_bytes(b"")

    assert leftovers(archive.storage, archive.place, NEVER).orphans == []
    found = leftovers(archive.storage, archive.place, ALWAYS)
    delete(archive.storage, found.orphans)

    assert {path for path, _ in found.orphans} >= {
        archive.place.segment(orphan.name),
        archive.place.aux(orphan.name),
        *temporary,
    }
    assert archive.storage.names(archive.place.directory) == [
        f"{kept}.aux",
        f"{kept}.log",
        "manifest",
        "notes.txt",
    ]
    report = verify_partition(archive.storage, archive.place, deep=True, orphan_ms=0, now_ms=ALWAYS)
    assert report.problems == []


def test_what_was_named_until_a_moment_ago_is_no_leftover_however_old_it_is(archive: SmallArchive) -> None:
    """Readers have plans that name it; the leader deletes it when they have not."""
    made_old = 1_000_000_000
    root = Path(archive.storage.url.removeprefix("file://")) / archive.place.directory
    for path in root.glob("*.*"):
        os.utime(path, (made_old, made_old))
    archive.commit(Start(10))
    before_ms = made_old * 1000 + 1
    found = leftovers(archive.storage, archive.place, before_ms)
    assert (found.orphans, found.young) == ([], 2)
    report = verify_partition(archive.storage, archive.place, deep=False, orphan_ms=0, now_ms=before_ms)
    assert (report.problems, report.unnamed) == ([], 2)
    os.utime(root / "manifest" / f"{archive.manifest.next_number - 1:020}.json", (made_old, made_old))
    assert len(leftovers(archive.storage, archive.place, before_ms).orphans) == 2


def test_without_a_manifest_nothing_is_deleted(archive: SmallArchive) -> None:
    archive.storage.remove(archive.place.manifest)
    found = leftovers(archive.storage, archive.place, ALWAYS)
    assert (found.orphans, found.young, found.has_manifest) == ([], 4, False)


def test_with_a_broken_manifest_nothing_is_deleted(archive: SmallArchive) -> None:
    archive.replace(archive.place.entry(0), b"{}")
    with pytest.raises(BrokenManifest):
        leftovers(archive.storage, archive.place, ALWAYS)
