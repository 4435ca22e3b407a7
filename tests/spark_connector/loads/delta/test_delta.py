"""A Delta table as the destination of loads: what the log holds, who may write beside us, what is refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.schema import PrimitiveType

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.delta import delta_log
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_table import open_delta
from spark_connector.loads.record import LoadRange
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import (
    SCHEMA,
    DeltaWorld,
    delta_world,
    load_without_result,
    rows_of,
    with_load,
)


@pytest.fixture
def delta(tmp_path: Path) -> DeltaWorld:
    return delta_world(tmp_path)


def test_groups_share_a_table(delta: DeltaWorld) -> None:
    other = DeltaWorld(delta.output, "another", {TopicPartition("t", 9): 4})
    delta.load(CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, other)))  # no conflict
    assert delta.visible() == sorted(delta.produced() + [("t", 9, offset) for offset in range(4)])
    with other.opened(CrashPoint()) as site:
        assert site.log.offsets() == other.ends


def test_other_writers_do_not_disturb(delta: DeltaWorld) -> None:
    def write() -> None:
        write_deltalake(delta.output.url, rows_of_partition_7(), mode="append")

    delta.load(CrashPoint(1, before=False, meanwhile=write))
    assert [row for row in delta.visible() if row[1] != 7] == delta.produced()


def test_the_position_outlives_the_log(delta: DeltaWorld) -> None:
    delta.load()
    write_deltalake(delta.output.url, rows_of_partition_7(), mode="append")
    table = DeltaTable(delta.output.url)
    table.create_checkpoint()
    for version in range(table.version()):
        delta.output.remove(f"_delta_log/{version:020d}.json")
    log = DeltaCommitLog(delta.output, delta.group)
    assert log.offsets(delta.ends) == delta.ends
    newest = log.newest()
    assert (newest.sequence, newest.load_id) == (2, None)  # the record went with the log, the number did not
    delta.grow()
    assert delta.load() is not None
    assert [row for row in delta.visible() if row[1] != 7] == delta.produced()


def test_offsets_are_found_behind_the_commits_of_others(delta: DeltaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream may commit to the table many times between two loads."""
    monkeypatch.setattr(delta_log, "_NEAR", 1)
    write_deltalake(delta.output.url, rows_of_partition_7(), mode="append")
    assert DeltaCommitLog(delta.output, delta.group).offsets() == dict.fromkeys(delta.ends, 3)


def test_offsets_set_by_another_program_void_a_load(delta: DeltaWorld) -> None:
    def meddle() -> None:
        table = DeltaTable(delta.output.url)
        moved = CommitProperties(app_transactions=[Transaction(f"{delta.group}/t/0", 4)])
        table.create_write_transaction([], "append", table.schema(), commit_properties=moved)

    with pytest.raises(OffsetConflict, match=r"stored offset is 4, expected 3"):
        delta.load(CrashPoint(1, before=False, meanwhile=meddle))
    assert delta.leftovers() == []


def test_files_carry_their_bounds(delta: DeltaWorld) -> None:
    delta.load()
    actions = DeltaTable(delta.output.url).get_add_actions(flatten=True)
    found = {(row["min.partition"], row["min.offset"], row["max.offset"]) for row in _as_rows(actions)}
    assert found == {(0, 0, 2), (1, 0, 2), (0, 3, 5), (1, 3, 5)}
    assert {row["num_records"] for row in _as_rows(actions)} == {3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.alter.add_constraint({"few": "offset < 1000"}), r"delta\.constraints\.few"),
        (
            lambda table: table.alter.set_table_properties(
                {"delta.setTransactionRetentionDuration": "interval 30 days"}, raise_if_not_exists=False
            ),
            "would forget how far the loads are",
        ),
        (None, "has no column 'headers'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    delta: DeltaWorld, change: Callable[[DeltaTable], None] | None, message: str
) -> None:
    if change is not None:
        change(DeltaTable(delta.output.url))
    names = SCHEMA.names if change else ["headers", *SCHEMA.names[1:]]
    schema = pa.schema([(name, field.type) for name, field in zip(names, SCHEMA, strict=True)])
    with delta.opened(CrashPoint()) as site:
        record = delta.plan(site)
        assert record is not None
        with pytest.raises(ConfigError, match=message):
            site.file_layout(record, FileLayout(schema, TableColumns.of((), schema), record.load_id))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("load", None, r"has no column 'load', in which a load writes its id to every row: add it \(ALTER TABLE"),
        ("load", "integer", "has a column 'load' of its own, of type integer: .* Rename that column"),
        ("Load", "string", "has a column 'Load', which is 'load' to Spark: rename it"),
    ],
)
def test_a_table_of_the_user_whose_load_is_another_is_refused(
    tmp_path: Path, name: str, kind: str | None, message: str
) -> None:
    fields = [*Schema.from_arrow(SCHEMA).fields, *([] if kind is None else [Field(name, PrimitiveType(kind))])]
    world = DeltaWorld(open_storage(str(tmp_path)), "g")
    DeltaTable.create(world.output.url, Schema(fields))
    world.grow()
    with pytest.raises(ConfigError, match=message):
        world.load()
    if kind is None:
        DeltaTable(world.output.url).alter.add_columns(Field("load", PrimitiveType("string"), nullable=True))
        record = world.load()
        assert record is not None
        table = DeltaTable(world.output.url).to_pyarrow_table(columns=["load"])
        assert table.column("load").unique().to_pylist() == [record.load_id]


def test_a_directory_of_files_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "_offsets" / "g").mkdir(parents=True)
    with pytest.raises(ConfigError, match="holds loads into files"):
        open_delta(open_storage(str(tmp_path)), "g")


def rows_of_partition_7() -> pa.Table:
    return with_load(rows_of(LoadRange("t", 7, 0, 3, None)), None)


def _as_rows(actions: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(actions).to_pylist()
    return rows


@pytest.mark.parametrize("name", ["a#b", "a%20b", "a?b", "a[b", "a\\b"])
def test_a_directory_that_deltalake_takes_for_another_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot hold a"):
        open_delta(open_storage(str(tmp_path / name)), "g")
    assert open_delta(open_storage(str(tmp_path / "a b=ä")), "g").log.newest().sequence == 0
