"""Compaction of Delta tables: the rows stay, whatever is killed and whoever commits at the same time."""

from __future__ import annotations

import functools
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
from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.delta.delta_compaction import DeltaCompaction
from spark_connector.loads.history import LoadState
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.maintenance import rewind
from tests.support.crashing import A_KILL, Crash, CrashPoint
from tests.support.table_harness import DeltaWorld, check_whole, delta_world, load_without_result

NOW = CompactionOptions(rewindable_s=0)


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    """A table with four loads of two files each."""
    world = delta_world(tmp_path)
    for _ in range(3):
        world.load()
        world.grow()
    return world


def compact(world: DeltaWorld, options: CompactionOptions = NOW, crash: CrashPoint | None = None) -> CompactionResult:
    with world.opened(crash or CrashPoint()) as site:
        return site.compaction().run(options)


def once_at_sync(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """`act` comes right before the sync of this number, counted from 0."""
    sync, counter = storage._sync, itertools.count()

    def synced(path: str) -> None:
        if next(counter) == number:
            patch.undo()
            act()
        sync(path)

    patch.setattr(storage, "_sync", synced)


def rows(world: DeltaWorld) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(world.output.url).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def files(world: DeltaWorld) -> int:
    return len(DeltaTable(world.output.url).file_uris())


def left(world: DeltaWorld) -> list[str]:
    """The intents of compactions, and directories that no version of the table has named."""
    committed = str(DeltaTable(world.output.url).history())
    return [
        *world.output.names("_staging/compaction"),
        *(name for name in world.output.names("compacted") if name not in committed),
    ]


def test_small_files_become_one_and_every_row_stays(world: DeltaWorld) -> None:
    before = rows(world)
    done = compact(world)
    assert (done.files_before, done.files_after, done.rows) == (8, 1, len(before))
    assert files(world) == 1
    assert rows(world) == before
    assert left(world) == []
    world.load()
    check_whole(world)
    assert compact(world).files_before == 3
    assert compact(world) == CompactionResult()
    check_whole(world)


def test_loads_that_may_be_rewound_keep_their_files(world: DeltaWorld) -> None:
    done = compact(world, CompactionOptions(rewindable_s=1e12))
    assert done == CompactionResult()
    assert files(world) == 8


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
    read = functools.partial(DeltaTable(world.output.url).to_pyarrow_table)
    before = sorted(map(str, read().to_pylist()))
    assert compact(world).files_after == len(values)
    assert files(world) == len(values)
    assert sorted(map(str, DeltaTable(world.output.url).to_pyarrow_table().to_pylist())) == before
    found = DeltaTable(world.output.url).to_pyarrow_table(filters=[("name", "=", "%41")])
    assert sorted(found.column("id").to_pylist()) == [0, 1, 2]


def test_files_from_before_a_column_was_added_are_null_in_it(world: DeltaWorld) -> None:
    table = pa.table({"topic": ["t"], "partition": pa.array([7], pa.int32()), "note": ["n"]})
    write_deltalake(world.output.url, table, mode="append", schema_mode="merge")
    before = sorted(map(str, DeltaTable(world.output.url).to_pyarrow_table().to_pylist()))
    assert compact(world).files_after == 1
    assert sorted(map(str, DeltaTable(world.output.url).to_pyarrow_table().to_pylist())) == before


@A_KILL
def test_a_crash_at_any_step_leaves_the_rows_and_the_next_compaction_sweeps(
    world: DeltaWorld, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_connector.loads.history.Owner.is_alive", lambda owner: False)
    counting = CrashPoint()
    whole = rows(world)
    compact(world, crash=counting)
    for number in range(1, len(counting.steps) + 1):
        for _ in range(3):
            world.load()
            world.grow()
        whole = rows(world)
        with pytest.raises(Crash):
            compact(world, crash=CrashPoint(number, before=before))
        assert rows(world) == whole
        compact(world)
        assert rows(world) == whole
        assert left(world) == [], counting.steps[number - 1]


def test_a_load_beside_a_compaction_loses_nothing(world: DeltaWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    done = compact(world, crash=rival)
    assert done.dropped is None
    assert files(world) == 3
    check_whole(world)


def test_of_two_compactions_one_wins_and_the_other_leaves_nothing(world: DeltaWorld) -> None:
    whole = rows(world)
    first: list[CompactionResult] = []
    rival = CrashPoint(1, before=False, meanwhile=lambda: first.append(compact(world)))
    second = compact(world, crash=rival)
    assert first[0].dropped is None
    assert second.dropped == "another compaction of the group was quicker"
    assert first[0].swept != ()
    assert rows(world) == whole
    assert left(world) == []


def test_a_compaction_whose_files_the_winner_sweeps_at_any_time_gives_way(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner comes before one of the loser's syncs, which lie around all that it writes."""
    wins: list[CompactionResult] = []
    at, given_way = 0, 0
    while True:
        for _ in range(3):
            world.load()
            world.grow()
        whole, before = rows(world), len(wins)
        with monkeypatch.context() as patch:
            once_at_sync(patch, at, lambda: wins.append(compact(world)))
            done = compact(world)
        assert rows(world) == whole
        assert left(world) == [], at
        if len(wins) == before:
            break
        assert (done.dropped is None) != (wins[-1].dropped is None and wins[-1].files_before > 0), at
        given_way += done.dropped is not None
        at += 1
    assert given_way > 5


@pytest.mark.parametrize(
    "rival", [lambda url: DeltaTable(url).optimize.compact(), lambda url: DeltaTable(url).delete("offset = 0")]
)
def test_files_that_another_program_has_replaced_are_not_added_again(
    world: DeltaWorld, rival: Callable[[str], Any]
) -> None:
    done = compact(world, crash=CrashPoint(1, before=False, meanwhile=lambda: rival(world.output.url)))
    assert "another writer has replaced" in str(done.dropped)
    whole = rows(world)
    assert len({(row["partition"], row["offset"]) for row in whole}) == len(whole)
    assert left(world) == []


def test_the_group_goes_on_and_its_history_stays(world: DeltaWorld) -> None:
    compact(world)
    with world.opened(CrashPoint()) as site:
        history = site.history()
        assert [entry.state for entry in history.entries] == [LoadState.PUBLISHED] * 4
        assert site.unknown_loads(history) == ([], [])
        held = list(site.held(history.entries, lambda: pytest.fail("no Spark")))
    for entry, found in held:
        assert found.problems == found.notes == ()
        assert found.offsets is not None
        assert sum(map(len, found.offsets.values())) == entry.record.rows


def test_a_compacted_load_is_taken_back_row_by_row(world: DeltaWorld) -> None:
    with world.opened(CrashPoint()) as site:
        loads = [record.load_id for record in site.log.records()]
    compact(world)
    rewind(world.target, loads[1])
    assert {row["load"] for row in rows(world)} == set(loads[:2])
    world.load()
    check_whole(world)


def test_a_file_with_fewer_rows_than_the_table_counts_is_refused(world: DeltaWorld) -> None:
    table = DeltaTable(world.output.url)
    log = Path(world.output.url.removeprefix("file://"), "_delta_log", f"{table.version():020d}.json")
    log.write_text(log.read_text().replace('numRecords\\":3', 'numRecords\\":4'))
    with pytest.raises(LoadError, match="rows, but the table counts"):
        compact(world)
    assert left(world) == []
    check = rows(world)
    assert len(check) == 24


def test_the_replaced_files_stay_until_they_are_old(world: DeltaWorld) -> None:
    names = set(world.output.tree_sizes("."))
    assert compact(world, replace(NOW, vacuum=True)).vacuumed == 0
    assert names < set(world.output.tree_sizes("."))
    DeltaTable(world.output.url).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 hours"})
    before = rows(world)
    running = "not-committed-000009-aaaaaaaa/part-0.parquet"
    world.output.create(running, b"of a load that is running")
    assert compact(world, replace(NOW, vacuum=True)).vacuumed == 8
    assert world.output.exists(running)
    assert rows(world) == before


def test_there_is_nothing_to_compact_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no Delta table"):
        compact(delta_world(tmp_path, begin=False))


def test_a_compaction_notes_itself_in_the_log(world: DeltaWorld) -> None:
    compact(world)
    newest = DeltaTable(world.output.url).history(1)[0]
    assert json.loads(newest["userMetadata"])["pykafka.compaction"].startswith(f"{world.group}-000001-")


def test_files_of_a_compaction_of_which_nobody_knows_any_more_stay(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, commit = rows(world), DeltaCompaction.commit

    def lose(self: DeltaCompaction, *arguments: Any) -> bool:
        commit(self, *arguments)
        return False

    monkeypatch.setattr(DeltaCompaction, "commit", lose)
    monkeypatch.setattr(DeltaCompaction, "is_winner", lambda *_: None)  # the log has been cleaned up
    with pytest.raises(LoadInterrupted, match="no longer tells"):
        compact(world)
    assert rows(world) == before
