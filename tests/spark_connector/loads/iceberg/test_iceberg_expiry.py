"""Old snapshots of an Iceberg table: which a load lets expire, what stays, and who may set a tag in the very moment."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableRequest, CommitTableResponse, Namespace, StaticTable, Table, TableIdentifier
from pyiceberg.table.update.snapshot import ManageSnapshots

from broker.errors import ConfigError
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.iceberg import iceberg_expiry, iceberg_log
from spark_connector.loads.iceberg.iceberg_snapshot import WrittenSnapshot, write_snapshot
from spark_connector.loads.iceberg.iceberg_table import storage_of
from spark_connector.maintenance import history, prune
from tests.support.crashing import CrashPoint
from tests.support.table_harness import IcebergWorld, check_whole, iceberg_world


@pytest.fixture
def world(tmp_path: Path) -> IcebergWorld:
    """A table with one load, and more to load."""
    return iceberg_world(tmp_path)


def test_each_commit_lets_the_oldest_snapshots_expire(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path, begin=False)
    world.keep_snapshots = 3
    for _ in range(28):
        world.grow(partitions=1, count=1)
        world.load()
    assert len(world.table().metadata.snapshots) == 3
    check_whole(world)
    names = storage_of(world.table()).names("metadata")
    assert {name for name in names if name.endswith(".avro")} == world.named_metadata()
    assert sum(name.endswith(".json") for name in names) <= 21  # the newest, and 20 before
    assert [entry.record.id.sequence for entry in history(world.target).entries] == [26, 27, 28]


def test_what_a_branch_or_tag_needs_stays(world: IcebergWorld) -> None:
    table = world.table()
    first = table.metadata.current_snapshot_id
    assert first is not None
    table.manage_snapshots().create_tag(first, "before").commit()
    world.keep_snapshots = 1
    for _ in range(3):
        world.load()
        world.grow()
    snapshots = world.table().metadata.snapshots
    assert len(snapshots) == 3  # and the newest, and the one before
    assert world.table().scan(snapshot_id=first).count() == 6


def compacted(world: IcebergWorld) -> None:
    with world.opened(CrashPoint()) as site:
        assert site.compaction().run(CompactionOptions(rewindable_s=0)).files_after == 1


def tag(world: IcebergWorld, manage: Callable[[ManageSnapshots, int], ManageSnapshots]) -> int:
    table = world.table()
    head = table.metadata.current_snapshot_id
    assert head is not None
    manage(table.manage_snapshots(), head).commit()
    return head


def loaded(world: IcebergWorld, times: int) -> None:
    for _ in range(times):
        world.load()
        world.grow()


def test_the_files_of_a_tag_stay_when_snapshots_after_it_expire(world: IcebergWorld) -> None:
    loaded(world, 2)
    tagged = tag(world, lambda manage, head: manage.create_tag(head, "closing"))
    rows = world.table().scan(snapshot_id=tagged).to_arrow()
    loaded(world, 1)
    compacted(world)
    world.keep_snapshots = 1
    loaded(world, 4)
    assert len(world.table().metadata.snapshots) == 5  # three of the tag, the newest, and the one before
    assert world.table().scan(snapshot_id=tagged).to_arrow() == rows


def test_a_snapshot_stays_that_a_tag_is_moved_to_in_the_very_moment(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded(world, 1)
    first, second = (snapshot.snapshot_id for snapshot in world.table().metadata.snapshots)
    tag(world, lambda manage, head: manage.create_tag(first, "closing"))
    loaded(world, 1)

    def written(table: Table, *rest: Any) -> WrittenSnapshot:
        monkeypatch.undo()
        world.table().manage_snapshots().create_tag(second, "closing").commit()
        return write_snapshot(table, *rest)

    world.keep_snapshots = 1
    monkeypatch.setattr(iceberg_log, "write_snapshot", written)
    world.load()
    assert world.table().scan().use_ref("closing").to_arrow().num_rows == 12


def test_a_file_that_another_writer_brings_back_stays(world: IcebergWorld) -> None:
    loaded(world, 2)
    paths = [task.file.file_path for task in world.table().scan().plan_files()]
    compacted(world)
    table = world.table()
    table.delete("true")
    table.add_files(paths)
    loaded(world, 1)
    rows = world.table().scan().count()
    world.keep_snapshots = 1
    loaded(world, 6)
    assert world.table().scan().to_arrow().num_rows > rows


def test_files_that_other_tables_may_have_stay(world: IcebergWorld) -> None:
    loaded(world, 1)
    with world.table().transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    world.keep_snapshots = 1
    loaded(world, 3)
    assert len(world.table().metadata.snapshots) == 5
    with world.opened(CrashPoint()) as site, pytest.raises(ConfigError, match=r"gc\.enabled = false"):
        site.compaction().run(CompactionOptions(vacuum=True))


def test_a_table_with_very_many_snapshots_loses_more_at_once(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_expiry, "_MANY", 5)
    for _ in range(8):
        world.load()
        world.grow()
    world.keep_snapshots = 2
    world.load()
    assert len(world.table().metadata.snapshots) == 2
    assert world.visible() == world.produced()


def test_an_iceberg_table_prunes_itself(world: IcebergWorld) -> None:
    with pytest.raises(ConfigError, match="keep_snapshots"):
        prune(world.target, 1)


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_snapshot_stays_on_which_a_ref_is_set_in_the_very_moment(world: IcebergWorld, kind: str) -> None:
    loaded(world, 2)
    first = world.table().metadata.snapshots[0].snapshot_id
    rows = world.table().scan(snapshot_id=first).to_arrow()
    world.keep_snapshots = 1
    world.load(at_commit(lambda: set_ref(world, kind, first)))
    assert world.table().scan().use_ref("closing").to_arrow() == rows
    check_whole(world)


def test_a_tag_that_a_rest_catalog_removes_is_told_and_its_files_stay(
    world: IcebergWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded(world, 2)
    compacted(world)
    first = world.table().metadata.snapshots[0].snapshot_id
    rows = world.table().scan(snapshot_id=first).to_arrow()
    world.keep_snapshots = 1
    monkeypatch.setattr(SqlCatalog, "commit_table", as_rest(SqlCatalog.commit_table))
    world.load()  # nobody is there
    assert not caplog.records
    second = world.table().metadata.snapshots[0].snapshot_id
    kept = world.table().scan(snapshot_id=second).to_arrow()
    world.grow()
    world.load(at_commit(lambda: set_ref(world, "tag", second)))
    assert "closing" not in world.table().refs()
    (told,) = caplog.messages
    assert re.search(f"'closing' was set on snapshot {second}.*register_table", told)
    metadata = told.rpartition(" ")[2]
    assert StaticTable.from_metadata(metadata).scan().use_ref("closing").to_arrow() == kept
    assert rows.num_rows < kept.num_rows


def test_what_the_table_says_of_its_snapshots_holds(world: IcebergWorld) -> None:
    world.keep_snapshots = 1
    set_property(world, "history.expire.min-snapshots-to-keep", "5")
    loaded(world, 6)
    assert len(world.table().metadata.snapshots) == 5
    set_property(world, "history.expire.max-snapshot-age-ms", "3600000")
    loaded(world, 2)
    assert len(world.table().metadata.snapshots) == 7
    set_property(world, "history.expire.max-snapshot-age-ms", "0")
    loaded(world, 2)
    assert len(world.table().metadata.snapshots) == 5
    set_property(world, "history.expire.min-snapshots-to-keep", "five")
    with pytest.raises(ConfigError, match="min-snapshots-to-keep of the table must be a number, not 'five'"):
        world.load()


def test_what_the_main_branch_says_goes_before_the_table(world: IcebergWorld) -> None:
    world.keep_snapshots = 1
    set_property(world, "history.expire.min-snapshots-to-keep", "2")
    head = world.table().metadata.snapshots[-1].snapshot_id
    with world.table().transaction() as transaction:
        transaction._stage(*transaction._set_ref_snapshot(head, "main", "branch", min_snapshots_to_keep=4))
    loaded(world, 6)
    assert len(world.table().metadata.snapshots) == 4


def as_rest(commit: Callable[..., CommitTableResponse]) -> Callable[..., CommitTableResponse]:
    """A commit as a REST catalog gets it: what is required, and the answer, go through JSON."""

    def sent(catalog: SqlCatalog, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        name = TableIdentifier(namespace=Namespace(list(table.name()[:-1])), name=table.name()[-1])
        request = CommitTableRequest(identifier=name, requirements=requirements, updates=updates)
        got = CommitTableRequest.model_validate_json(request.model_dump_json())
        answer = commit(catalog, table, got.requirements, got.updates)
        return CommitTableResponse.model_validate_json(answer.model_dump_json(by_alias=True))

    return sent


def set_ref(world: IcebergWorld, kind: str, snapshot: int) -> None:
    manage = world.table().manage_snapshots()
    (manage.create_tag if kind == "tag" else manage.create_branch)(snapshot, "closing").commit()


def set_property(world: IcebergWorld, name: str, value: str) -> None:
    with world.table().transaction() as transaction:
        transaction.set_properties({name: value})


def at_commit(meanwhile: Callable[[], None]) -> CrashPoint:
    """Something happens just before the commit of the catalog in the next load, of two partitions."""
    return CrashPoint(5, before=True, meanwhile=meanwhile)  # after an intent, two files, and the append
