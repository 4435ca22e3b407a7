"""An Iceberg table as the destination of loads: who may write beside us, what a catalog may answer."""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.iceberg import iceberg_log, iceberg_snapshot
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_files import data_files
from spark_connector.loads.iceberg.iceberg_log import CommitUnknown, IcebergCommitLog, state_of
from spark_connector.loads.iceberg.iceberg_snapshot import Change, FilesGone
from spark_connector.loads.iceberg.iceberg_table import IcebergDestination, storage_of
from spark_connector.loads.record import LoadError, LoadInterrupted, LoadRange
from spark_connector.maintenance import history
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
    assert set(manifests) == world.named_metadata()


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
        output = pickle.loads(pickle.dumps(IcebergDestination.task_output(site, "data/x")))
    with output.open("day=1/a.parquet") as file:
        file.write(b"abc")
    assert storage_of(world.table()).read("data/x/day=1/a.parquet") == b"abc"
    assert "uri" not in repr(output)
