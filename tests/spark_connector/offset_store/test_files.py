"""The files store: the contract, the format on disk, races."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage import storage
from broker.storage.storage import LocalStorage, open_storage
from spark_connector.offset_store.base import OffsetConflict, OffsetStoreError, open_store
from spark_connector.offset_store.files import FilesEntry, FilesOffsetStore
from tests.support.fake_s3 import FakeS3, Fault
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


class TestOnS3(ComparingStoreContract):
    @pytest.fixture
    def store(self, s3: FakeS3) -> FilesOffsetStore:
        return FilesOffsetStore(open_storage("s3://lake/offsets", s3.options))

    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER, Fault.ERROR])
    def test_a_commit_whose_answer_is_lost_is_one_entry(
        self, store: FilesOffsetStore, s3: FakeS3, fault: Fault
    ) -> None:
        store.commit("g", {A0: 1})
        s3.fault("PUT", "offsets/g", fault)
        store.commit("g", {A0: 2})
        store.commit("g", {A0: 3})
        assert [store.entry("g", sequence).offsets for sequence in store.sequences("g")] == [{A0: 1}, {A0: 2}, {A0: 3}]

    def test_of_many_writers_each_commit_has_its_number(self, store: FilesOffsetStore, s3: FakeS3) -> None:
        def commit(partition: int) -> None:
            own = FilesOffsetStore(open_storage("s3://lake/offsets", s3.options))
            for offset in range(5):
                own.commit("g", {TopicPartition("a", partition): offset})

        threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.sequences("g") == list(range(1, 21))
        assert store.read("g") == {TopicPartition("a", number): 4 for number in range(4)}

    def test_it_is_found_by_the_options_of_a_reader(self, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        opened = open_store("files", {"offsetStore.path": "s3a://lake/offsets"})
        opened.commit("g", {A0: 1})
        assert opened.read("g") == {A0: 1}
        assert s3.keys() == [f"lake/offsets/g/{1:020}.json"]

    def test_a_store_that_overwrites_is_refused(self, store: FilesOffsetStore, s3: FakeS3) -> None:
        s3.reset(ignores_conditions=True)
        storage._probed.clear()
        with pytest.raises(ConfigError, match="ignores the condition"):
            store.commit("g", {A0: 1})
        assert s3.keys() == []


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


def test_the_newest_hundred_entries_are_kept(store: FilesOffsetStore) -> None:
    for offset in range(1, 131):
        store.commit("g", {A0: offset})
    assert store.sequences("g") == list(range(31, 131))
    assert store.read("g") == {A0: 130}


def inherit(path: Path, count: int, details: Mapping[str, Any] | None = None) -> None:
    """What an older version left, an entry per micro-batch, or loads, whose entries have details."""
    (path / "g").mkdir()
    for number in range(1, count + 1):
        (path / "g" / f"{number:020}.json").write_bytes(FilesEntry("g", number, {A0: number}, details or {}).to_bytes())


def test_a_full_directory_is_listed_once_and_emptied_little_by_little(
    store: FilesOffsetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherit(tmp_path, 1000)
    listed, listing = [], LocalStorage.names

    def names(storage: LocalStorage, path: str) -> list[str]:
        listed.append(path)
        return listing(storage, path)

    monkeypatch.setattr(LocalStorage, "names", names)
    store.commit("g", {A1: 1})
    left = [len(list((tmp_path / "g").iterdir()))]
    for offset in range(2, 20):
        store.commit("g", {A1: offset})
        left.append(len(list((tmp_path / "g").iterdir())))
    assert listed == ["g"]
    assert left[:2] == [901, 802]
    assert left[-1] == 100
    assert store.read("g") == {A0: 1000, A1: 19}


def test_commits_of_loads_are_noted_aside_and_those_of_a_stream_behind_them_go(
    store: FilesOffsetStore, tmp_path: Path
) -> None:
    note = {"load": {"id": 1}}
    store.append(FilesEntry("g", 1, {A0: 1}, note))
    store.commit("g", {A0: 2})
    store.append(FilesEntry("g", 3, {A0: 3}, note))
    for offset in range(4, 301):
        store.commit("g", {A0: offset})
    assert store.sequences("g") == list(range(201, 301)), "without a gap in which a sleeper could commit"
    assert store.sequences("g", noted=True) == [1, 3, *range(201, 301)]
    assert len(list((tmp_path / "g").iterdir())) == 102
    assert store.recall("g", 3) == FilesEntry("g", 3, {A0: 3}, note)
    assert store.find("g", 3) is None
    store.forget("g", 3)
    assert store.recall("g", 3) is None


def test_a_stream_that_goes_on_from_a_thousand_loads_looks_at_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inherit(tmp_path, 1000, {"load": {}})
    read, reading = [], LocalStorage.read

    def count(storage: LocalStorage, path: str) -> bytes:
        read.append(path)
        return reading(storage, path)

    monkeypatch.setattr(LocalStorage, "read", count)
    reads = []
    for run in range(20):  # each a stream that was started anew
        read.clear()
        FilesOffsetStore(open_storage(str(tmp_path))).commit("g", {A1: run})
        reads.append(len(read))
    assert max(reads) <= 102
    assert reads[-1] <= 2
    store = FilesOffsetStore(open_storage(str(tmp_path)))
    assert len(store.sequences("g")) == 100
    assert len(store.sequences("g", noted=True)) == 1020


def test_a_commit_that_slept_while_others_pruned_its_place_comes_last(tmp_path: Path) -> None:
    slow, fast = (FilesOffsetStore(open_storage(str(tmp_path))) for _ in range(2))
    slow.commit("g", {A0: 1})
    for offset in range(1, 151):
        fast.commit("g", {A1: offset})
    slow.commit("g", {A0: 2})
    assert FilesOffsetStore(open_storage(str(tmp_path))).read("g") == {A0: 2, A1: 150}
    slow.commit("g", {A0: 3})
    assert fast.read("g") == {A0: 3, A1: 150}
    assert len(fast.sequences("g")) == 100


def test_the_same_offsets_again_win_over_those_another_stored_in_between(tmp_path: Path) -> None:
    one, other = (FilesOffsetStore(open_storage(str(tmp_path))) for _ in range(2))
    one.commit("g", {A0: 1})
    other.commit("g", {A0: 2})
    one.commit("g", {A0: 1})
    assert other.read("g") == {A0: 1}


def test_what_cannot_be_removed_is_told_and_stops_no_commit(
    store: FilesOffsetStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in range(1, 101):
        store.commit("g", {A0: offset})

    def refuse(storage: LocalStorage, path: str) -> None:
        if path.endswith(".json"):
            raise PermissionError(path)

    monkeypatch.setattr(LocalStorage, "remove", refuse)
    with caplog.at_level(logging.WARNING, "pykafka.spark"):
        store.commit("g", {A0: 101})
    assert store.read("g") == {A0: 101}
    assert "Old offsets of group 'g'" in caplog.text
