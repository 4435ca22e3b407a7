"""Compaction of Iceberg tables: what is not as in Delta's (test_table_compaction.py)."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_table import storage_of
from spark_connector.loads.record import LoadError, LoadInterrupted
from tests.support.crashing import CrashPoint
from tests.support.randomness import seeded
from tests.support.table_harness import COMPACT_ALL, IcebergWorld, add_catalog, check_whole, iceberg_world


@pytest.fixture
def world(tmp_path: Path) -> IcebergWorld:
    """A table with four loads of two files each."""
    world = iceberg_world(tmp_path)
    world.load_more()
    return world


def test_a_compaction_replaces_files_and_keeps_the_properties_and_offsets(world: IcebergWorld) -> None:
    properties = dict(world.table().properties)
    done = world.compact()
    snapshot = world.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "replace"
    assert snapshot.summary.additional_properties["total-records"] == str(done.rows)
    noted = {name: value for name, value in world.table().properties.items() if not name.startswith("pykafka.compac")}
    assert noted == properties


def test_files_whose_snapshots_have_expired_are_as_old_as_the_storage_says(tmp_path: Path) -> None:
    world = IcebergWorld(add_catalog(tmp_path / "c"), "g", keep_snapshots=1)
    for _ in range(4):
        world.grow()
        world.load()
    assert len(world.table().snapshots()) == 2
    assert world.compact(CompactionOptions(rewindable_s=3600)) == CompactionResult()
    old = time.time() - 7200
    for path in world.files():
        os.utime(path.removeprefix("file://"), (old, old))
    assert world.compact(CompactionOptions(rewindable_s=3600)).files_before == 4, "two snapshots tell their own time"
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
    before, partitions = world.rows(), {str(task.file.partition) for task in table.scan().plan_files()}
    world.compact()
    assert world.rows() == before
    assert len(world.files()) == len(partitions)
    assert {str(task.file.partition) for task in world.table().scan().plan_files()} == partitions
    assert world.table().scan(row_filter="id = 7").to_arrow().num_rows == 3


def test_files_from_before_a_column_was_added_are_null_in_it(world: IcebergWorld) -> None:
    with world.table().update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("value", "content")
    before = world.rows()
    assert world.compact().files_after == 1
    assert world.rows() == before


def test_the_commit_of_the_catalog_is_one_of_the_steps_that_tests_crash(world: IcebergWorld) -> None:
    counting = CrashPoint()
    world.compact(crash=counting)
    assert any("commit_table" in step for step in counting.steps)


def test_an_answer_that_is_lost_deletes_nothing(world: IcebergWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is made, and the compaction cannot find out."""
    whole = world.rows()
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
            site.compaction().run(COMPACT_ALL)
        monkeypatch.undo()
    assert world.rows() == whole
    assert len(world.files()) == 1
    for _ in range(2):
        world.load()
        world.grow()
    world.compact()
    assert world.left() == []
    assert world.visible() == sorted(set(world.visible()))


def test_vacuum_sweeps_what_can_no_longer_be_committed_and_no_named_file(world: IcebergWorld) -> None:
    storage = storage_of(world.table())
    with world.opened(CrashPoint()) as site:
        newest = site.log.newest().sequence
    dead, running = f"{world.group}-{newest:06d}-0000dead", f"{world.group}-{newest + 1:06d}-00009999"
    for name in (f"data/{dead}/part-0.parquet", f"data/{running}/part-0.parquet", "data/other-000001-00001111/x"):
        with storage.open_output(name) as file:
            file.write(b"no snapshot names it")
    before = world.rows()
    assert world.compact(replace(COMPACT_ALL, vacuum=True)).vacuumed == 1
    names = storage.tree_sizes("data")
    assert f"{dead}/part-0.parquet" not in names
    assert f"{running}/part-0.parquet" in names
    assert "other-000001-00001111/x" in names
    named = world.table().inspect.all_data_files().column("file_path").to_pylist()
    assert all(storage.exists(path.removeprefix(world.table().location() + "/")) for path in named)
    assert world.rows() == before


def test_there_is_nothing_to_compact_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="no longer exists"):
        iceberg_world(tmp_path, begin=False).compact()


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
    done = world.compact()
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
    world.compact()
    check_whole(world)
    assert len(world.files()) == 1
