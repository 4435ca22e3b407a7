"""Compaction of Iceberg tables: the rows stay, whatever is killed and whoever commits at the same time."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestamptzType

from spark_connector.loads import compaction
from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.history import LoadState
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_table import storage_of
from spark_connector.loads.record import LoadError, LoadInterrupted
from spark_connector.maintenance import rewind
from tests.support.crashing import A_KILL, Crash, CrashPoint
from tests.support.randomness import seeded
from tests.support.table_harness import IcebergWorld, add_catalog, check_whole, iceberg_world, load_without_result

NOW = CompactionOptions(rewindable_s=0)


@pytest.fixture
def world(tmp_path: Path) -> IcebergWorld:
    """A table with four loads of two files each."""
    world = iceberg_world(tmp_path)
    for _ in range(3):
        world.load()
        world.grow()
    return world


def compact(world: IcebergWorld, options: CompactionOptions = NOW, crash: CrashPoint | None = None) -> CompactionResult:
    with world.opened(crash or CrashPoint()) as site:
        return site.compaction().run(options)


def rows(world: IcebergWorld) -> list[tuple[Any, ...]]:
    found = world.table().scan().to_arrow()  # noqa: F841 - duckdb finds it by its name
    return duckdb.connect().execute("SELECT * FROM found ORDER BY ALL").fetchall()


def files(world: IcebergWorld) -> list[str]:
    return [task.file.file_path for task in world.table().scan().plan_files()]


def left(world: IcebergWorld) -> list[str]:
    """Intents of compactions, and new files that no snapshot names."""
    table = world.table()
    storage, named = storage_of(table), set(table.inspect.all_data_files().column("file_path").to_pylist())
    written = storage.tree_sizes("data/compacted")
    return [
        *storage.names("_staging/compaction"),
        *(name for name in written if f"{table.location()}/data/compacted/{name}" not in named),
    ]


def test_small_files_become_one_and_every_row_and_offset_stays(world: IcebergWorld) -> None:
    before, properties = rows(world), dict(world.table().properties)
    done = compact(world)
    assert (done.files_before, done.files_after, done.rows) == (8, 1, len(before))
    assert len(files(world)) == 1
    assert rows(world) == before
    assert left(world) == []
    snapshot = world.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary.additional_properties["total-records"] == str(len(before))
    noted = {name: value for name, value in world.table().properties.items() if not name.startswith("pykafka.compac")}
    assert noted == properties
    world.load()
    check_whole(world)
    assert compact(world, CompactionOptions(rewindable_s=3600)) == CompactionResult()


def test_files_whose_snapshots_have_expired_are_as_old_as_the_storage_says(tmp_path: Path) -> None:
    world = IcebergWorld(add_catalog(tmp_path / "c"), "g", keep_snapshots=1)
    for _ in range(4):
        world.grow()
        world.load()
    assert len(world.table().snapshots()) == 2
    assert compact(world, CompactionOptions(rewindable_s=3600)) == CompactionResult()
    old = time.time() - 7200
    for path in files(world):
        os.utime(path.removeprefix("file://"), (old, old))
    assert compact(world, CompactionOptions(rewindable_s=3600)).files_before == 4, "two snapshots tell their own time"
    check_whole(world)


def test_partition_values_are_never_mixed(tmp_path: Path) -> None:
    catalog = open_catalog(name := add_catalog(tmp_path / "c"))
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "at", TimestamptzType(), required=False),
        NestedField(3, "load", StringType(), required=False),
    )
    spec = PartitionSpec(
        PartitionField(2, 1000, DayTransform(), "day"), PartitionField(1, 1001, BucketTransform(2), "bucket")
    )
    table = catalog.create_table("lake.rows", schema, partition_spec=spec)
    at = [0, 86_400_000_000, None] * 4
    part = pa.table(
        {"id": pa.array(range(12), pa.int64()), "at": pa.array(at, pa.timestamp("us", "UTC")), "load": ["x"] * 12}
    )
    for _ in range(3):
        table.append(part)
    world = IcebergWorld(name, "g")
    before, partitions = rows(world), {str(task.file.partition) for task in table.scan().plan_files()}
    compact(world)
    assert rows(world) == before
    assert len(files(world)) == len(partitions)
    assert {str(task.file.partition) for task in world.table().scan().plan_files()} == partitions
    assert world.table().scan(row_filter="id = 7").to_arrow().num_rows == 3


def test_files_from_before_a_column_was_added_are_null_in_it(world: IcebergWorld) -> None:
    with world.table().update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("value", "content")
    before = rows(world)
    assert compact(world).files_after == 1
    assert rows(world) == before


@pytest.mark.timeout(300)
@A_KILL
def test_a_crash_at_any_step_leaves_the_rows_and_the_next_compaction_sweeps(
    world: IcebergWorld, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_connector.loads.history.Owner.is_alive", lambda owner: False)
    counting = CrashPoint()
    compact(world, crash=counting)
    assert any("commit_table" in step for step in counting.steps)
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


def test_a_load_beside_a_compaction_loses_nothing(world: IcebergWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    done = compact(world, crash=rival)
    assert done.dropped is None
    assert len(files(world)) == 3
    check_whole(world)


def test_of_two_compactions_one_wins_and_the_other_leaves_nothing(world: IcebergWorld) -> None:
    whole, first = rows(world), list[CompactionResult]()
    second = compact(world, crash=CrashPoint(2, before=False, meanwhile=lambda: first.append(compact(world))))
    assert first[0].dropped is None
    assert second.dropped == "another compaction of the group was quicker"
    assert len(first[0].swept) == 1
    assert rows(world) == whole
    assert left(world) == []


def test_a_file_that_another_program_has_rewritten_is_not_added_again(world: IcebergWorld) -> None:
    delete = functools.partial(world.table().delete, "offset = 0")
    done = compact(world, crash=CrashPoint(2, before=False, meanwhile=delete))
    assert "another writer has replaced" in str(done.dropped)
    assert len(rows(world)) == 22
    assert left(world) == []


def test_an_answer_that_is_lost_deletes_nothing(world: IcebergWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is made, and the compaction cannot find out."""
    whole = rows(world)
    with world.opened(CrashPoint()) as site:
        place = site.log._place
        commit = place.catalog.commit_table

        def lose(*arguments: Any) -> Any:
            commit(*arguments)
            monkeypatch.setattr(IcebergPlace, "table", unreachable)
            raise OSError("the connection was reset")

        def unreachable(place: IcebergPlace) -> Any:
            raise LoadInterrupted("the catalog does not answer")

        monkeypatch.setattr(place.catalog, "commit_table", lose, raising=False)
        with pytest.raises(LoadInterrupted, match="nobody knows"):
            site.compaction().run(NOW)
        monkeypatch.undo()
    assert rows(world) == whole
    assert len(files(world)) == 1
    for _ in range(2):
        world.load()
        world.grow()
    compact(world)
    assert left(world) == []
    assert world.visible() == sorted(set(world.visible()))


def test_the_history_stays_and_a_compacted_load_is_taken_back_row_by_row(world: IcebergWorld) -> None:
    compact(world)
    with world.opened(CrashPoint()) as site:
        history = site.history()
        assert [entry.state for entry in history.entries] == [LoadState.PUBLISHED] * 4
        assert site.unknown_loads(history) == ([], [])
        for entry, held in site.held(history.entries, lambda: pytest.fail("no Spark")):
            assert held.problems == held.notes == ()
            assert held.offsets is not None
            assert sum(map(len, held.offsets.values())) == entry.record.rows
        loads = [entry.record.load_id for entry in history.entries]
    rewind(world.target, loads[1])
    found = world.table().scan(selected_fields=("load",)).to_arrow().column("load").unique().to_pylist()
    assert set(found) == set(loads[:2])
    world.load()
    check_whole(world)


def test_vacuum_sweeps_what_can_no_longer_be_committed_and_no_named_file(world: IcebergWorld) -> None:
    storage = storage_of(world.table())
    with world.opened(CrashPoint()) as site:
        newest = site.log.newest().sequence
    dead, running = f"{world.group}-{newest:06d}-0000dead", f"{world.group}-{newest + 1:06d}-00009999"
    for name in (f"data/{dead}/part-0.parquet", f"data/{running}/part-0.parquet", "data/other-000001-00001111/x"):
        with storage.open_output(name) as file:
            file.write(b"no snapshot names it")
    before = rows(world)
    assert compact(world, replace(NOW, vacuum=True)).vacuumed == 1
    names = storage.tree_sizes("data")
    assert f"{dead}/part-0.parquet" not in names
    assert f"{running}/part-0.parquet" in names
    assert "other-000001-00001111/x" in names
    named = world.table().inspect.all_data_files().column("file_path").to_pylist()
    assert all(storage.exists(path.removeprefix(world.table().location() + "/")) for path in named)
    assert rows(world) == before


def test_there_is_nothing_to_compact_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no longer exists"):
        compact(iceberg_world(tmp_path, begin=False))


@pytest.mark.parametrize("most_bytes", [1 << 30, 2000], ids=["one run", "many runs"])
def test_files_are_sorted_as_the_table_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """By columns and transforms, nulls and NaN where the order has them; and the file says by which order."""
    monkeypatch.setattr(compaction, "MOST_WAITING", most_bytes)
    catalog = open_catalog(name := add_catalog(tmp_path / "c"))
    schema = Schema(
        NestedField(1, "text", StringType(), required=False),
        NestedField(2, "x", DoubleType(), required=False),
        NestedField(3, "id", LongType(), required=False),
    )
    order = SortOrder(
        SortField(1, TruncateTransform(1), SortDirection.DESC, NullOrder.NULLS_FIRST),
        SortField(2, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_LAST),
        SortField(3, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST),
    )
    table = catalog.create_table("lake.rows", schema, sort_order=order)
    dice = seeded(7)
    values = [
        (dice.choice([None, "a1", "a2", "b", "é"]), dice.choice([None, float("nan"), -1.5, 0.5, 2.0]), number)
        for number in range(300)
    ]
    for part in (values[:100], values[100:200], values[200:]):
        columns = zip(*part, strict=True)
        types = (pa.string(), pa.float64(), pa.int64())
        arrays = [pa.array(list(column), type) for column, type in zip(columns, types, strict=True)]
        table.append(pa.table(arrays, ["text", "x", "id"]))
    world = IcebergWorld(name, "g")
    done = compact(world)
    assert (done.files_before, done.files_after) == (3, 1)
    (task,) = catalog.load_table("lake.rows").scan().plan_files()
    assert task.file.sort_order_id == 1
    found = pyarrow.parquet.read_table(task.file.file_path.removeprefix("file://"))

    def rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
        text, x, number = row
        letter = (0, 0) if text is None else (1, -ord(text[0]))
        return letter, (2, 0) if x is None else (1, 0) if x != x else (0, x), -number

    assert found.column("id").to_pylist() == [row[2] for row in sorted(values, key=rank)]


def test_a_partition_field_that_was_dropped_in_format_version_1(tmp_path: Path) -> None:
    """It stays in the spec as `void`, which is null in new files: loads and compactions write beside it."""
    columns = iceberg_world(tmp_path).table().schema()
    catalog = open_catalog(name := add_catalog(tmp_path / "c"))
    dropped = PartitionField(columns.find_field("offset").field_id, 1000, BucketTransform(2), "dropped")
    spec, version = PartitionSpec(dropped), {"format-version": "1"}
    old = catalog.create_table("lake.rows", columns, partition_spec=spec, properties=version)
    with old.update_spec() as update:
        update.remove_field("dropped")
    world = IcebergWorld(name, "g")
    assert [str(field.transform) for field in world.table().spec().fields] == ["void"]
    for _ in range(2):
        world.grow()
        world.load()
    check_whole(world)
    compact(world)
    check_whole(world)
    assert len(files(world)) == 1
