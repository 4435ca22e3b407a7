"""An archive that is empty is told from one that is not there."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest

from broker.archive.archive_marker import NOTE, ArchiveMarker
from broker.archive.manifest import Manifest, Start
from broker.archive.manifest_store import ManifestStore
from broker.storage.storage import open_storage


def marker(mount: Path, disk: Path) -> ArchiveMarker:
    disk.mkdir(exist_ok=True)
    return ArchiveMarker(open_storage(str(mount)), "cluster", disk)


def test_an_archive_without_its_marker_is_away_for_who_has_seen_it(tmp_path: Path) -> None:
    mount, disk = tmp_path / "mount", tmp_path / "disk"
    marker(mount, disk).check()
    marker(mount, disk).check()
    mount.rename(tmp_path / "unmounted")
    mount.mkdir()
    for _ in range(2):
        with pytest.raises(OSError, match="is it mounted"):
            marker(mount, disk).check()
    assert not list(mount.iterdir())
    mount.rmdir()
    (tmp_path / "unmounted").rename(mount)
    marker(mount, disk).check()


def test_a_broker_with_a_new_disk_takes_the_archive_as_it_is(tmp_path: Path) -> None:
    mount = tmp_path / "mount"
    marker(mount, tmp_path / "disk").check()
    marker(mount, tmp_path / "another").check()
    assert (tmp_path / "another" / NOTE).read_text() == (tmp_path / "disk" / NOTE).read_text()


def test_another_url_is_another_archive(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    marker(tmp_path / "old", disk).check()
    marker(tmp_path / "new", disk).check()
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(OSError, match="is it mounted"):
        marker(tmp_path / "new", disk).check()


def test_an_entry_whose_predecessor_is_gone_is_no_commit(tmp_path: Path) -> None:
    """The mount vanished between two commits."""
    mount = tmp_path / "mount"
    store = ManifestStore(open_storage(str(mount)), "cluster", uuid.UUID(int=7), 0)
    manifest = store.commit(Manifest(), 0, 1, Start(5))
    mount.rename(tmp_path / "unmounted")
    with pytest.raises(OSError, match="is the archive mounted"):
        store.commit(manifest, 0, 1, Start(6))
    shutil.rmtree(mount)
    (tmp_path / "unmounted").rename(mount)
    assert store.commit(manifest, 0, 1, Start(6)) == store.load()
