"""The files store: the contract, the format on disk, races."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore
from spark_connector.storage import open_storage
from tests.support.offset_store_contract import A0, A1, ComparingStoreContract


@pytest.fixture
def store(tmp_path: Path) -> FilesOffsetStore:
    return FilesOffsetStore(open_storage(str(tmp_path)))


class TestContract(ComparingStoreContract):
    pass


class TestInMemoryOfAnObjectStore(ComparingStoreContract):
    @pytest.fixture
    def store(self) -> FilesOffsetStore:
        return FilesOffsetStore(open_storage("memory://bucket/offsets"))


def test_an_entry_is_a_numbered_file_with_all_offsets(store: FilesOffsetStore, tmp_path: Path) -> None:
    store.commit("g", {A0: 1})
    store.commit("g", {A1: 2})
    assert sorted(path.name for path in (tmp_path / "g").iterdir()) == [f"{1:020}.json", f"{2:020}.json"]
    assert json.loads((tmp_path / "g" / f"{2:020}.json").read_text()) == {
        "version": 1,
        "group": "g",
        "sequence": 2,
        "offsets": {"a": {"0": 1, "1": 2}},
    }


def test_history_stays_readable(store: FilesOffsetStore) -> None:
    for offset in (1, 2, 3):
        store.commit("g", {A0: offset})
    assert [store.entry("g", sequence).offsets for sequence in store.sequences("g")] == [{A0: 1}, {A0: 2}, {A0: 3}]


def test_a_commit_that_changes_nothing_adds_no_entry(store: FilesOffsetStore) -> None:
    store.commit("g", {A0: 1})
    store.commit("g", {A0: 1})
    assert store.sequences("g") == [1]


def test_a_taken_number_conflicts(store: FilesOffsetStore) -> None:
    store.append(FilesEntry("g", 1, {A0: 1}))
    with pytest.raises(OffsetConflict, match="commit 1"):
        store.append(FilesEntry("g", 1, {A0: 2}))
    assert store.read("g") == {A0: 1}


def test_of_two_commits_with_the_same_expectation_exactly_one_wins(store: FilesOffsetStore) -> None:
    store.commit("g", {A0: 0})
    start = threading.Barrier(4)
    outcomes: list[int | None] = []

    def commit(offset: int) -> None:
        start.wait()
        try:
            store.commit("g", {A0: offset}, expected={A0: 0})
        except OffsetConflict:
            outcomes.append(None)
        else:
            outcomes.append(offset)

    threads = [threading.Thread(target=commit, args=(offset,)) for offset in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [offset for offset in outcomes if offset is not None]
    assert [store.read("g")[A0]] == winners


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 2}', '{"version": 1, "group": "g", "sequence": 1}'])
def test_a_damaged_entry_is_named_in_the_error(store: FilesOffsetStore, tmp_path: Path, content: str) -> None:
    path = tmp_path / "g" / f"{7:020}.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(OffsetStoreError, match=path.name):
        store.read("g")


def test_hidden_and_foreign_files_are_not_entries(store: FilesOffsetStore, tmp_path: Path) -> None:
    store.commit("g", {A0: 1})
    for name in (f".{9:020}.json.ab.tmp", "notes.txt", f"{9:020}.json.bak"):
        (tmp_path / "g" / name).write_text("x")
    assert store.read("g") == {A0: 1}
