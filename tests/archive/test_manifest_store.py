"""The manifest in a store: one lineage, whoever writes, and whatever the store answers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from broker.archive.manifest import Add, Manifest, Start
from broker.archive.manifest_store import CommitLost, ManifestStore
from broker.storage.storage import open_storage
from tests.support.archived_segments import archived_segment

TOPIC_ID = uuid.UUID(int=7)


@pytest.fixture
def store(tmp_path: Path) -> ManifestStore:
    return ManifestStore(open_storage(str(tmp_path)), "cluster", TOPIC_ID, 3)


def test_what_was_committed_is_loaded(store: ManifestStore) -> None:
    manifest = store.load()
    assert manifest == Manifest()
    for base in range(0, 2500, 10):
        manifest = store.commit(manifest, 1, 0, Add(archived_segment(base, base + 10, 1)))
    loaded = store.load()
    assert loaded == manifest
    assert loaded.end == 2500
    assert store.storage.names(store.place.manifest)[0] == f"{100:020}.json"
    assert manifest == store.refresh(Manifest())
    with pytest.raises(CommitLost) as lost:
        store.commit(Manifest(), 1, 0, Start(5))
    assert lost.value.manifest == manifest
