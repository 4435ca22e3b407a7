"""The manifest in a store: one lineage, whoever writes, and whatever the store answers. HDFS: tests/hdfs."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker.archive.manifest import Add, BrokenManifest, Entry, Manifest, Snapshot, Start, Truncate
from broker.archive.manifest_json import decode_entry
from broker.archive.manifest_store import CommitLost, ManifestStore
from broker.storage.storage import Storage, open_storage
from tests.support.archived_segments import archived_segment
from tests.support.fake_s3 import FakeS3, Fault
from tests.support.manifest_contract import ManifestContract, store_of


@pytest.fixture
def store() -> ManifestStore:
    """In memory: hundreds of entries."""
    return store_of(open_storage(f"memory://archive/{uuid.uuid4()}"))


class TestLocalDisk(ManifestContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return open_storage(str(tmp_path))


class TestS3(ManifestContract):
    @pytest.fixture
    def storage(self, s3: FakeS3) -> Storage:
        return open_storage("s3://archive/kafka", s3.options)

    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER, Fault.ERROR])
    def test_a_put_with_a_lost_answer_is_done(self, storage: Storage, s3: FakeS3, fault: Fault) -> None:
        store = store_of(storage)
        s3.fault("PUT", "manifest/", fault)
        manifest = store.commit(Manifest(), 1, 0, Add(archived_segment(0, 10)))
        s3.wait_for_faults()
        assert manifest == store.load()

    def test_an_error_is_raised_and_nothing_is_committed(self, storage: Storage, s3: FakeS3) -> None:
        store = store_of(storage)
        s3.fault("PUT", "manifest/", Fault.DENIED)
        with pytest.raises(OSError, match=r"[Dd]enied"):
            store.commit(Manifest(), 1, 0, Start(5))
        assert store.load() == Manifest()
        assert store.commit(Manifest(), 1, 0, Start(5)).start == 5


def commit_many(store: ManifestStore, manifest: Manifest, count: int) -> Manifest:
    for _ in range(count):
        manifest = store.commit(manifest, 1, 0, Add(archived_segment(manifest.end, manifest.end + 10, 1)))
    return manifest


def entry_numbers(store: ManifestStore) -> list[int]:
    return [int(name.removesuffix(".json")) for name in store.storage.names(store.place.manifest)]


def test_every_hundredth_entry_is_a_snapshot_and_older_than_two_are_deleted(store: ManifestStore) -> None:
    manifest = commit_many(store, Manifest(), 205)
    assert entry_numbers(store) == list(range(100, 207))
    kinds = [type(decode_entry(store.storage.read(store.place.entry(number))).change) for number in (100, 101, 200)]
    assert kinds == [Snapshot, Add, Snapshot]
    assert store.load() == manifest
    assert len(manifest.segments) == 205
    assert store.refresh(Manifest()) == manifest, "of a reader who knows entries that are deleted"


def test_who_slept_through_two_snapshots_commits_nothing(store: ManifestStore) -> None:
    """Its number is free again."""
    asleep = commit_many(store, Manifest(), 5)
    manifest = commit_many(store, asleep, 200)
    with pytest.raises(CommitLost) as lost:
        store.commit(asleep, 1, 0, Add(archived_segment(asleep.end, asleep.end + 10, 1)))
    assert lost.value.manifest == store.load() == manifest
    assert 5 in entry_numbers(store)
    commit_many(store, manifest, 100)
    assert entry_numbers(store)[0] == 200, "and what it left is deleted with the next"


class Reading(ManifestStore):
    """Between its first list and its first read others commit and delete."""

    others: Manifest | None = None
    count = 0

    def _entries(self, numbers: range) -> list[Entry]:
        others, self.others = self.others, None
        if others is not None:
            commit_many(store_of(self.storage), others, self.count)
        return super()._entries(numbers)


@pytest.mark.parametrize("count", [1, 100, 250])
def test_a_reader_that_lists_while_entries_are_deleted_finds_a_manifest(store: ManifestStore, count: int) -> None:
    reader = Reading(store.storage, "cluster", store.place.topic_id, store.place.partition)
    reader.others = commit_many(store, Manifest(), 150)
    reader.count = count
    found = reader.load()
    assert found.end in {1500, 1500 + 10 * count}
    assert [segment.base for segment in found.segments] == list(range(0, found.end, 10))


def test_a_new_leader_fences_the_older_ones(store: ManifestStore) -> None:
    old = commit_many(store, Manifest(), 2)
    new = store.commit(old, 2, 9, Truncate(old.end))
    assert (new.end, new.segments) == (old.end, old.segments)
    for known in (old, new):
        with pytest.raises(CommitLost) as lost:
            store.commit(known, 1, 0, Start(10))
        assert lost.value.manifest == new


def test_an_entry_that_is_gone_is_told(store: ManifestStore) -> None:
    manifest = commit_many(store, Manifest(), 4)
    store.storage.remove(store.place.entry(2))
    with pytest.raises(BrokenManifest, match="gap"):
        store.load()
    store.storage.remove(store.place.entry(3))
    with pytest.raises(BrokenManifest, match="has none after 1"):
        store.refresh(manifest)


def test_an_entry_that_is_damaged_is_told_with_its_name(store: ManifestStore) -> None:
    commit_many(store, Manifest(), 2)
    path = store.place.entry(1)
    store.storage.remove(path)
    store.storage.create(path, b"{}")
    with pytest.raises(BrokenManifest, match=f"{path}: "):
        store.load()
    store.storage.remove(path)
    store.storage.create(path, store.storage.read(store.place.entry(0)))
    with pytest.raises(BrokenManifest, match="says that it is entry 0"):
        store.load()
