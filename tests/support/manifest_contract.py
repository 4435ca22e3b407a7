"""What a manifest promises on whichever store. A subclass has the fixture `storage`, an empty one."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from broker.archive.manifest import Add, Manifest, Start, Truncate
from broker.archive.manifest_store import CommitLost, ManifestStore
from broker.storage.storage import Storage
from tests.support.archived_segments import archived_segment

TOPIC_ID = uuid.UUID(int=7)
EACH = 12
"""Segments of each of two writers."""


def store_of(storage: Storage) -> ManifestStore:
    return ManifestStore(storage, "cluster", TOPIC_ID, 3)


class ManifestContract:
    def test_what_was_committed_is_loaded(self, storage: Storage) -> None:
        store = store_of(storage)
        assert store.load() == Manifest()
        manifest = store.commit(Manifest(), 1, 0, Add(archived_segment(0, 10, 1)))
        manifest = store.commit(manifest, 1, 0, Start(4))
        manifest = store.commit(manifest, 2, 1, Truncate(8))
        assert store.load() == store.refresh(manifest) == manifest
        assert (manifest.start, manifest.end, manifest.epoch, manifest.next_number) == (4, 8, 2, 3)

    def test_of_two_commits_with_one_number_one_is_lost(self, storage: Storage) -> None:
        store = store_of(storage)
        manifest = store.commit(Manifest(), 2, 1, Start(4))
        with pytest.raises(CommitLost) as lost:
            store.commit(Manifest(), 2, 0, Start(5))
        assert lost.value.manifest == manifest

    def test_the_same_commit_again_is_done_already(self, storage: Storage) -> None:
        """As after a lost answer, or a put that came late."""
        store = store_of(storage)
        change = Add(archived_segment(0, 10))
        assert store.commit(Manifest(), 0, 1, change) == store.commit(Manifest(), 0, 1, change)
        assert store.load().next_number == 1

    def test_two_writers_at_once_make_one_lineage(self, storage: Storage) -> None:
        """No gap and no overlap: each adds at the end that it knows, and begins again where it lost."""
        together = threading.Barrier(2)

        def write(broker: int) -> set[str]:
            store, manifest, done = store_of(storage), Manifest(), set[str]()
            together.wait()
            while len(done) < EACH:
                segment = archived_segment(manifest.end, manifest.end + 10, broker)
                try:
                    manifest = store.commit(manifest, 1, broker, Add(segment))
                    done.add(segment.name)
                except CommitLost as lost:
                    manifest = lost.manifest
            return done

        with ThreadPoolExecutor(2) as pool:
            one, other = pool.map(write, (0, 0))
        loaded = store_of(storage).load()
        assert {segment.name for segment in loaded.segments} == one | other
        assert [segment.base for segment in loaded.segments] == list(range(0, 20 * EACH, 10))
