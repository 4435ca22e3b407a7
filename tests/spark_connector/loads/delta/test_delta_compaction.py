"""Compaction of Delta tables: what is not as in Iceberg's (test_table_compaction.py)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from broker.storage import storage
from spark_connector.loads.compaction import CompactionResult
from spark_connector.loads.delta.delta_compaction import DeltaCompaction
from spark_connector.loads.record import LoadError, LoadInterrupted
from tests.support.crashing import CrashPoint
from tests.support.table_harness import COMPACT_ALL, DeltaWorld, delta_world


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    """A table with four loads of two files each."""
    world = delta_world(tmp_path)
    world.load_more()
    return world


def once_at_sync(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """`act` comes right before the sync of this number, counted from 0."""
    sync, counter = storage._sync, itertools.count()

    def synced(path: str) -> None:
        if next(counter) == number:
            patch.undo()
            act()
        sync(path)

    patch.setattr(storage, "_sync", synced)


def test_partition_values_are_never_mixed_and_keep_their_type(tmp_path: Path) -> None:
    world = delta_world(tmp_path, begin=False)
    values = ["a b", "%41", "ü=/", None]
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("name", pa.string()), ("load", pa.string())])
    for number in range(3):
        for name in values:
            row = {"id": number, "day": None if name is None else 20_000, "name": name, "load": "x"}
            write_deltalake(
                world.output.url, pa.Table.from_pylist([row], schema), mode="append", partition_by=["day", "name"]
            )
    before = world.rows()
    assert world.compact().files_after == len(values)
    assert len(world.files()) == len(values)
    assert world.rows() == before
    found = DeltaTable(world.output.url).to_pyarrow_table(filters=[("name", "=", "%41")])
    assert sorted(found.column("id").to_pylist()) == [0, 1, 2]


def test_files_from_before_a_column_was_added_are_null_in_it(world: DeltaWorld) -> None:
    table = pa.table({"topic": ["t"], "partition": pa.array([7], pa.int32()), "note": ["n"]})
    write_deltalake(world.output.url, table, mode="append", schema_mode="merge")
    before = world.rows()
    assert world.compact().files_after == 1
    assert world.rows() == before


def test_a_compaction_whose_files_the_winner_sweeps_at_any_time_gives_way(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner comes before one of the loser's syncs, which lie around all that it writes."""
    wins: list[CompactionResult] = []
    at, given_way = 0, 0
    while True:
        world.load_more()
        whole, before = world.rows(), len(wins)
        with monkeypatch.context() as patch:
            once_at_sync(patch, at, lambda: wins.append(world.compact()))
            done = world.compact()
        assert world.rows() == whole
        assert world.left() == [], at
        if len(wins) == before:
            break
        assert (done.dropped is None) != (wins[-1].dropped is None and wins[-1].files_before > 0), at
        given_way += done.dropped is not None
        at += 1
    assert given_way > 5


def test_files_that_delta_itself_has_compacted_are_not_added_again(world: DeltaWorld) -> None:
    def rival() -> None:
        DeltaTable(world.output.url).optimize.compact()

    whole = world.rows()
    done = world.compact(crash=CrashPoint(1, before=False, meanwhile=rival))
    assert "another writer has replaced" in str(done.dropped)
    assert world.rows() == whole
    assert world.left() == []


def test_a_file_with_fewer_rows_than_the_table_counts_is_refused(world: DeltaWorld) -> None:
    table = DeltaTable(world.output.url)
    log = Path(world.output.url.removeprefix("file://"), "_delta_log", f"{table.version():020d}.json")
    log.write_text(log.read_text().replace('numRecords\\":3', 'numRecords\\":4'))
    with pytest.raises(LoadError, match="rows, but the table counts"):
        world.compact()
    assert world.left() == []
    assert len(world.rows()) == 24


def test_the_replaced_files_stay_until_they_are_old(world: DeltaWorld) -> None:
    names = set(world.output.tree_sizes("."))
    assert world.compact(replace(COMPACT_ALL, vacuum=True)).vacuumed == 0
    assert names < set(world.output.tree_sizes("."))
    DeltaTable(world.output.url).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    before = world.rows()
    running = "not-committed-000009-aaaaaaaa/part-0.parquet"
    world.output.create(running, b"of a load that is running")
    assert world.compact(replace(COMPACT_ALL, vacuum=True)).vacuumed == 8
    assert world.output.exists(running)
    assert world.rows() == before


def test_there_is_nothing_to_compact_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Delta table"):
        delta_world(tmp_path, begin=False).compact()


def test_a_compaction_notes_itself_in_the_log(world: DeltaWorld) -> None:
    world.compact()
    newest = DeltaTable(world.output.url).history(1)[0]
    assert json.loads(newest["userMetadata"])["pykafka.compaction"].startswith(f"{world.group}-000001-")


def test_files_of_a_compaction_of_which_nobody_knows_any_more_stay(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, commit = world.rows(), DeltaCompaction.commit

    def lose(self: DeltaCompaction, *arguments: Any) -> bool:
        commit(self, *arguments)
        return False

    monkeypatch.setattr(DeltaCompaction, "commit", lose)
    monkeypatch.setattr(DeltaCompaction, "is_winner", lambda *_: None)  # the log has been cleaned up
    with pytest.raises(LoadInterrupted, match="no longer tells"):
        world.compact()
    assert world.rows() == before
