"""An Iceberg table as the destination of loads: who may write beside us, what a catalog may answer, what expires."""

from __future__ import annotations

import functools
import json
import pickle
import posixpath
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import ManageSnapshots

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.iceberg import iceberg_log, iceberg_snapshot
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_files import data_files
from spark_connector.loads.iceberg.iceberg_log import CommitUnknown, IcebergCommitLog, state_of
from spark_connector.loads.iceberg.iceberg_snapshot import Change, FilesGone, WrittenSnapshot, write_snapshot
from spark_connector.loads.iceberg.iceberg_table import storage_of
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRange
from spark_connector.maintenance import history, prune
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import (
    IcebergWorld,
    check_whole,
    iceberg_world,
    load_without_result,
    rows_of,
    with_load,
)

FOREIGN = TopicPartition("t", 7)


@pytest.fixture
def world(tmp_path: Path) -> IcebergWorld:
    return iceberg_world(tmp_path)


def another(world: IcebergWorld, group: str = "another") -> IcebergWorld:
    """Another group that loads into the same table."""
    return IcebergWorld(world.catalog, group, {TopicPartition("t", 9): 4})


def at_commit(world: IcebergWorld, meanwhile: Callable[[], None], *, before: bool) -> CrashPoint:
    """Something happens just before, or just after, the commit of the catalog in the next load."""
    steps = ["create", "open", "open", "append", "commit_table"]  # of a load of two partitions into a table
    assert len(world.ends) == 2
    return CrashPoint(len(steps), before=before, meanwhile=meanwhile)


def append_foreign(world: IcebergWorld) -> None:
    table = world.table()
    rows = with_load(rows_of(LoadRange("t", FOREIGN.partition, 0, 2, None)), None)
    table.append(rows.cast(table.schema().as_arrow()))


def expire_all(world: IcebergWorld) -> None:
    table = world.table()
    current = table.metadata.current_snapshot_id
    old = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != current]
    table.maintenance.expire_snapshots().by_ids(old).commit()


def own(world: IcebergWorld) -> list[tuple[str, int, int]]:
    return [row for row in world.visible() if row[1] not in (FOREIGN.partition, 9)]


# --- beside other writers


def test_groups_share_a_table(world: IcebergWorld) -> None:
    other = another(world)
    world.load(at_commit(world, functools.partial(load_without_result, other), before=True))
    assert world.visible() == sorted(world.produced() + other.produced())
    for one in (world, other):
        with one.opened(CrashPoint()) as site:
            assert site.log.offsets() == one.ends
            assert site.topics_by_group() == {world.group: {"t"}, "another": {"t"}}
    assert world.leftovers() == []


def test_a_foreign_append_does_not_disturb_a_load(world: IcebergWorld) -> None:
    world.load(at_commit(world, lambda: append_foreign(world), before=True))
    assert own(world) == world.produced()
    assert len(world.visible()) == len(world.produced()) + 2


def test_changed_properties_and_columns_do_not_disturb_a_load(world: IcebergWorld) -> None:
    def alter() -> None:
        table = world.table()
        with table.transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})
        with table.update_schema() as update:
            update.rename_column("value", "payload")

    world.load(at_commit(world, alter, before=True))
    assert world.visible() == world.produced()
    assert world.table().properties["owner"] == "somebody"
    payload = world.table().scan(selected_fields=("payload",)).to_arrow().column("payload")
    assert payload.null_count == 0  # the file that was written before has the column's id, not its name


def test_the_offsets_outlive_every_snapshot(world: IcebergWorld) -> None:
    append_foreign(world)
    expire_all(world)
    assert len(world.table().metadata.snapshots) == 1
    with world.opened(CrashPoint()) as site:
        assert site.log.newest().sequence == 1
        assert site.log.sequences() == [1]  # the property has the newest record
        assert site.log.offsets() == dict.fromkeys(world.ends, 3)
    world.load()
    expire_all(world)
    world.grow()
    world.load()
    assert own(world) == world.produced()
    assert world.leftovers() == []
    found = history(world.target)
    assert ([entry.record.id.sequence for entry in found.entries], found.forgotten) == ([2, 3], ((1, 1),))


def test_a_snapshot_that_expires_in_the_very_moment_is_no_conflict(world: IcebergWorld) -> None:
    world.keep_snapshots = 1
    append_foreign(world)
    world.load(at_commit(world, lambda: expire_all(world), before=True))
    assert own(world) == world.produced()


def test_a_table_that_lost_its_property_is_not_loaded_again(world: IcebergWorld) -> None:
    with world.table().transaction() as transaction:
        transaction.remove_properties(f"pykafka.load.{world.group}")
    with pytest.raises(LoadError, match=f"has lost the property pykafka.load.{world.group}"):
        world.load()


def test_a_property_that_no_load_has_written_is_told(world: IcebergWorld) -> None:
    for text in ("", "[]", "{}", '{"offsets": {"t": 1}, "record": {}}'):
        with world.table().transaction() as transaction:
            transaction.set_properties({f"pykafka.load.{world.group}": text})
        with pytest.raises(LoadError, match="is not"):
            world.load()


def test_writers_that_are_always_quicker_are_told(world: IcebergWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_log, "_TRIES", 3)
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None

        def meddle(table: Table) -> Change:
            append_foreign(world)
            return Change()

        with pytest.raises(LoadInterrupted, match="were quicker 3 times"):
            site.log.append_change(record, meddle)
    manifests = [name for name in storage_of(world.table()).names("metadata") if name.endswith(".avro")]
    assert set(manifests) == named_metadata(world)


# --- the fence


def test_a_stale_handle_does_not_commit(world: IcebergWorld) -> None:
    """pyiceberg's own commits take the new state and commit to it without a word: rows would be doubled."""
    place = IcebergPlace(open_catalog(world.catalog), world.target.iceberg_name)
    log = IcebergCommitLog(place, world.group)
    stale = world.table()
    assert log.replace_files(stale, Change(operation=Operation.REPLACE))
    assert not log.replace_files(stale, Change(operation=Operation.REPLACE))
    place.close()


def test_of_two_loads_without_rows_one_wins(world: IcebergWorld) -> None:
    """Properties alone would not be fenced: every commit adds a snapshot."""
    before = len(world.table().metadata.snapshots)
    with world.opened(CrashPoint()) as site:
        records = [world.plan(site), world.plan(site)]
        assert records[0] is not None
        assert records[1] is not None
        site.log.append(records[0])
        with pytest.raises(OffsetConflict, match="has committed number 2"):
            site.log.append(records[1])
        assert site.log.offsets() == world.ends
    assert len(world.table().metadata.snapshots) == before + 1
    assert world.visible() == [("t", partition, offset) for partition in (0, 1) for offset in range(3)]


def test_a_table_that_was_made_anew_is_another_table(world: IcebergWorld) -> None:
    def replace() -> None:
        catalog, schema = open_catalog(world.catalog), world.table().schema()
        catalog.drop_table(world.target.iceberg_name.identifier)
        catalog.create_table(world.target.iceberg_name.identifier, schema)

    with pytest.raises(OffsetConflict):
        world.load(at_commit(world, replace, before=True))
    assert world.visible() == []


# --- a catalog that fails


class Answers:
    """A catalog that raises this error, and may have committed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error", [ServerError("bad gateway"), TimeoutError("timed out"), CommitFailedException("changed"), ValueError("no")]
)
def test_an_error_after_the_commit_is_found_to_be_none(world: IcebergWorld, error: Exception) -> None:
    """CommitFailedException: a client's second request, after the first one has committed."""
    snapshots = len(world.table().metadata.snapshots)
    world.load(at_commit(world, Answers(error), before=False))
    assert len(world.table().metadata.snapshots) == snapshots + 1
    check_whole(world)


@pytest.mark.parametrize("error", [ServerError("no answer"), json.JSONDecodeError("an answer in HTML", "<", 0)])
def test_an_unknown_outcome_deletes_nothing_and_the_next_load_finds_out(world: IcebergWorld, error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(CommitUnknown, match="nobody knows whether"):
        world.load(at_commit(world, fail, before=True))
    assert len(world.leftovers()) == 3  # the intent and two files
    world.load()
    check_whole(world)  # the files of the first attempt are gone: its number is taken


def test_a_commit_that_arrives_late_is_fenced(world: IcebergWorld) -> None:
    """The catalog gives no answer, commits nothing, and carries the request out when the next load has come."""
    late: list[Callable[[], Any]] = []
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        sealed, files = world.write(site, record, site.stage(record))
        catalog = site._place.catalog
        commit = catalog.commit_table

        def lose(*arguments: Any) -> None:
            late.append(functools.partial(commit, *arguments))
            raise TimeoutError("timed out")

        site._place = IcebergPlace(_With(catalog, lose), site._place.name)  # type: ignore[arg-type]
        log = IcebergCommitLog(site._place, world.group)
        with pytest.raises(CommitUnknown):
            log.append(sealed, files)
        world.load()
        with pytest.raises(CommitFailedException):
            late[0]()
    check_whole(world)


class _With:
    def __init__(self, catalog: Any, commit_table: Callable[..., Any]) -> None:
        self._catalog = catalog
        self.commit_table = commit_table

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)


# --- what expires


def named_metadata(world: IcebergWorld) -> set[str]:
    """The manifests and manifest lists that snapshots name."""
    table = world.table()
    lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
    manifests = {one.manifest_path for snapshot in table.metadata.snapshots for one in snapshot.manifests(table.io)}
    return {posixpath.basename(path) for path in lists | manifests}


def test_each_commit_lets_the_oldest_snapshots_expire(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path, begin=False)
    world.keep_snapshots = 3
    for _ in range(28):
        world.grow(partitions=1, count=1)
        world.load()
    assert len(world.table().metadata.snapshots) == 3
    check_whole(world)
    names = storage_of(world.table()).names("metadata")
    assert {name for name in names if name.endswith(".avro")} == named_metadata(world)
    assert sum(name.endswith(".json") for name in names) <= 21  # the newest, and 20 before
    assert [entry.record.id.sequence for entry in history(world.target).entries] == [26, 27, 28]


def test_many_manifests_become_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_snapshot, "_MERGED", 4)
    world = iceberg_world(tmp_path, begin=False)
    for _ in range(12):
        world.grow(partitions=1, count=1)
        world.load()
        table = world.table()
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(table.io)) <= 5
    check_whole(world)
    added = [entry["snapshot_id"] for entry in table.inspect.entries().to_pylist()]
    assert len(set(added)) == 12  # each file is still of the snapshot that added it


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
    monkeypatch.setattr(iceberg_snapshot, "_MANY", 5)
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


# --- for compactions, upserts and readers


def test_one_state_of_the_table_tells_snapshot_and_offsets(world: IcebergWorld) -> None:
    record = world.load()
    metadata = world.table().metadata
    state = state_of(metadata, world.group, "x")
    assert record is not None
    assert state.record is not None
    assert (state.snapshot_id, state.number, state.record.load_id) == (
        metadata.current_snapshot_id,
        2,
        record.load_id,
    )
    assert (state.offsets, state.topic_ids) == (world.ends, {})
    assert state_of(metadata, "nobody", "x").number == 0


def test_files_are_replaced_beside_loads(world: IcebergWorld) -> None:
    """As a compaction does it: of the files that it names none may be gone, and the offsets stay."""
    world.load()
    place = IcebergPlace(open_catalog(world.catalog), world.target.iceberg_name)
    log, table = IcebergCommitLog(place, world.group), world.table()
    first = next(data_files(table))
    assert first.content == DataFileContent.DATA
    assert log.replace_files(table, Change((), {first.file_path}, Operation.REPLACE))
    assert len(world.visible()) == len(world.produced()) - 3
    snapshot = world.table().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    assert snapshot.summary["total-records"] == "9"
    with pytest.raises(FilesGone, match="1 files are no longer in the table"):
        log.replace_files(world.table(), Change((), {first.file_path}, Operation.REPLACE))
    assert log.offsets() == world.ends
    place.close()


def test_a_load_may_remove_files_in_its_commit(world: IcebergWorld) -> None:
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None

        def all_of(table: Table) -> Change:
            return Change((), {file.file_path for file in data_files(table)}, Operation.OVERWRITE)

        site.log.append_change(record, all_of)
        assert site.log.offsets() == world.ends
    assert world.visible() == []


def test_executors_write_where_the_table_is(world: IcebergWorld) -> None:
    with world.opened(CrashPoint()) as site:
        output = pickle.loads(pickle.dumps(super(type(site), site).task_output("data/x")))
    with output.open("day=1/a.parquet") as file:
        file.write(b"abc")
    assert storage_of(world.table()).read("data/x/day=1/a.parquet") == b"abc"
    assert "uri" not in repr(output)
