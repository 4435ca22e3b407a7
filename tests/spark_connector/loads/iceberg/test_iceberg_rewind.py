"""Rewinds of Iceberg tables in which other programs have put the rows of several loads into one file."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.iceberg import iceberg_rewind
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_files import data_file, data_files
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from tests.spark_connector.loads.test_table_history import first_rows, rewrite, take_back, three_loads
from tests.support.crashing import Crash, CrashPoint
from tests.support.table_harness import IcebergWorld, check_whole, iceberg_world, load_without_result


@pytest.fixture
def world(tmp_path: Path) -> IcebergWorld:
    world = three_loads(iceberg_world(tmp_path))
    assert isinstance(world, IcebergWorld)
    return world


def paths(world: IcebergWorld) -> list[str]:
    return [file.file_path.removeprefix("file://") for file in data_files(world.table())]


def test_whole_files_are_removed_and_none_is_read(world: IcebergWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_rewind, "read_files", None)
    before = paths(world)
    take_back(world, 1)
    assert world.visible() == first_rows(3)
    assert set(paths(world)) < set(before)
    assert {row["content"] for row in world.table().inspect.delete_files().to_pylist()} == set()


def test_rows_of_several_loads_in_one_file_are_rewound(world: IcebergWorld) -> None:
    other = IcebergWorld(world.catalog, "another", {TopicPartition("t", 0): 4})
    other.load()
    rewrite(world, "SELECT * FROM rows ORDER BY md5(value)")
    assert len(paths(world)) == 1
    take_back(world, 1)
    assert world.visible() == sorted([*first_rows(3), *(("t", 0, offset) for offset in range(4))])
    world.load()
    assert world.visible() == sorted(world.produced() + other.produced())
    assert world.leftovers() == other.leftovers() == []


def test_a_rewind_that_is_tried_again_leaves_no_copy_of_the_first_try(world: IcebergWorld) -> None:
    other = IcebergWorld(world.catalog, "another", {TopicPartition("t", 0): 4})
    rewrite(world, "SELECT * FROM rows")
    steps = CrashPoint(3, before=True, meanwhile=functools.partial(load_without_result, other))
    take_back(world, 1, steps)
    assert [step.split()[0] for step in steps.steps][:3] == ["create", "append", "commit_table"]
    assert world.visible() == sorted([*first_rows(3), *other.produced()])
    assert world.leftovers() == []


def test_a_rewind_that_is_killed_before_its_commit_leaves_no_copy(world: IcebergWorld) -> None:
    rewrite(world, "SELECT * FROM rows")
    with pytest.raises(Crash):
        take_back(world, 1, CrashPoint(3, before=True))
    assert len(world.leftovers()) == 2  # the intent and the copy
    world.load()
    check_whole(world)


def test_a_file_without_other_rows_is_not_written_anew(world: IcebergWorld) -> None:
    """Its bounds do not tell whose rows it has: it has those of two loads."""
    rewrite(world, "SELECT * FROM rows WHERE load NOT LIKE '%-000001-%'")
    take_back(world, 1)
    assert (world.visible(), paths(world)) == ([], [])


def compact(world: IcebergWorld, **columns: Callable[[pa.Table], pa.Array]) -> None:
    """Put all rows into one file, with more columns of the table: pyiceberg's writer would not keep a NULL list."""
    table = world.table()
    rows = pa.concat_tables(pyarrow.parquet.read_table(path) for path in paths(world))
    for name, make in columns.items():
        rows = rows.append_column(name, make(rows))
    path = f"{table.location()}/data/compacted.parquet"
    with table.io.new_output(path).create() as sink:
        pyarrow.parquet.write_table(rows.cast(schema_to_pyarrow(table.schema())), sink, store_schema=False)
    footer = pyarrow.parquet.read_metadata(path.removeprefix("file://"))
    file = data_file(table.metadata, path, Path(path.removeprefix("file://")).stat().st_size, footer, {}, 0)
    place = IcebergPlace(open_catalog(world.catalog), world.target.iceberg_name)
    change = Change([file], {one.file_path for one in data_files(table)}, Operation.REPLACE)
    assert IcebergCommitLog(place, world.group).replace_files(table, change)
    place.close()


def test_a_copy_keeps_every_value(world: IcebergWorld) -> None:
    """pyiceberg would read an empty list where a list is NULL."""
    type = pa.list_(pa.struct([("name", pa.string())]))
    with world.table().update_schema() as update:
        update.union_by_name(pa.schema([("tags", type)]))
    compact(world, tags=lambda rows: pa.array([[{"name": "a"}], None, []] * (rows.num_rows // 3), type))
    before = pyarrow.parquet.read_table(paths(world)[0]).to_pylist()
    take_back(world, 1)
    after = pyarrow.parquet.read_table(paths(world)[0]).to_pylist()
    assert after == [row for row in before if "-000001-" in row["load"]]
    assert {repr(row["tags"]) for row in after} == {"[{'name': 'a'}]", "None", "[]"}
    world.load()
    check_whole(world)


def test_a_mixed_file_with_delete_files_is_refused(world: IcebergWorld) -> None:
    """Another program has deleted rows by a file beside it, which a copy would bring back."""
    (task, *_) = world.table().scan().plan_files()
    deleted = FileScanTask(task.file, delete_files={task.file})
    with pytest.raises(ConfigError, match="compact the table first"):
        iceberg_rewind._copies(world.table(), deleted, pa.array(["x"]), f"{world.group}-000009-00000000")


def test_a_rewind_waits_for_no_snapshot_to_expire(world: IcebergWorld) -> None:
    """The files of a rewound load go with the last snapshot that has them."""
    world.keep_snapshots = 3
    gone = set(paths(world))
    take_back(world, 1)
    gone -= set(paths(world))
    assert all(Path(path).exists() for path in gone)
    for _ in range(4):
        world.load()
        world.grow()
    assert not any(Path(path).exists() for path in gone)
    assert all(Path(path).exists() for path in paths(world))
    world.load()
    check_whole(world)
