"""The history of loads into tables: listed, taken back, forgotten; with rivals and crashes at every step."""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
import sqlalchemy
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.history import HistoryEntry, LoadState
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.rewind import plan_rewind, standing
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.maintenance import history, prune, rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import Crash, CrashPoint
from tests.support.table_harness import (
    DatabaseWorld,
    DeltaWorld,
    IcebergWorld,
    TableWorld,
    check_whole,
    delta_world,
    iceberg_world,
    load_without_result,
    rows_of,
    sqlite_world,
    with_load,
)

MAKE: dict[str, Callable[[Path], TableWorld]] = {
    "delta": delta_world,
    "iceberg": iceberg_world,
    "sqlite": sqlite_world,
}


def three_loads(world: TableWorld) -> TableWorld:
    """Numbers 1 to 3, of 3, 3 and 3 offsets of two partitions, and new data."""
    for _ in range(2):
        assert world.load() is not None
        world.grow()
    return world


@pytest.fixture
def delta(tmp_path: Path) -> DeltaWorld:
    world = three_loads(delta_world(tmp_path))
    assert isinstance(world, DeltaWorld)
    return world


@pytest.fixture
def sqlite(tmp_path: Path) -> DatabaseWorld:
    world = three_loads(sqlite_world(tmp_path))
    assert isinstance(world, DatabaseWorld)
    return world


@pytest.fixture(params=["delta", "iceberg", "sqlite"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], TableWorld]:
    return lambda: three_loads(MAKE[request.param](tmp_path))


@pytest.fixture
def world(worlds: Callable[[], TableWorld]) -> TableWorld:
    return worlds()


def entries(world: TableWorld) -> list[HistoryEntry]:
    return history(world.target).entries


def states(world: TableWorld) -> list[LoadState]:
    return [entry.state for entry in entries(world)]


def take_back(world: TableWorld, to: int, crash: CrashPoint | None = None) -> LoadRecord:
    """A rewind to the load with this number, as maintenance.py does it, through a crash point."""
    with world.opened(crash or CrashPoint()) as site:
        site.repair()
        loads = standing(site.log.records())
        (to_load,) = (load.load_id for load in loads if load.id.sequence == to)
        number = site.log.newest().sequence + 1
        plan = plan_rewind(
            loads, site.log.offsets(world.ends), to_load, number=number, delete=isinstance(world, DatabaseWorld)
        )
        site.check_rewind(plan)
        site.commit(plan)
        return plan


def first_rows(count: int) -> list[tuple[str, int, int]]:
    return [("t", partition, offset) for partition in (0, 1) for offset in range(count)]


def test_loads_are_listed_with_what_is_known_of_them(world: TableWorld) -> None:
    found = entries(world)
    assert [entry.state for entry in found] == [LoadState.PUBLISHED] * 3
    assert [(entry.record.id.sequence, entry.record.rows, entry.topics) for entry in found] == [
        (number, 6, ["t"]) for number in (1, 2, 3)
    ]
    if isinstance(world, DeltaWorld):
        assert found[0].files is not None
        assert [file.name for file in found[0].files] == ["part-0.parquet", "part-1.parquet"]
        assert found[0].bytes == sum(file.size for file in found[0].files) > 0
        assert found[0].directory == world.output.url_of(found[0].record.load_id)
    elif isinstance(world, IcebergWorld):
        assert found[0].files is not None
        assert len(found[0].files) == 2
        assert found[0].bytes == sum(file.size for file in found[0].files) > 0
        assert found[0].directory == f"{world.table().location()}/data/{found[0].record.load_id}"
    else:
        assert (found[0].files, found[0].directory) == (None, None)
    assert history(world.target).forgotten == ()


def test_attempts_that_are_left_are_listed(world: TableWorld) -> None:
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        world.write(site, record, site.stage(record))
        staged = entries(world)[-1]
        assert staged.record.load_id == record.load_id
        assert staged.state is (LoadState.RUNNING if world.knows_owners else LoadState.UNFINISHED)
        assert staged.directory is not None
        with world.opened(CrashPoint()) as other:
            sealed = world.plan(other)
            assert sealed is not None
            place = other.stage(sealed)
            sealed, files = world.write(other, sealed, place)
            log: Any = other.log
            log.append(sealed, *([files] if files else ()))  # killed before it can clean up
    assert (record.load_id, LoadState.VOID) in {(entry.record.load_id, entry.state) for entry in entries(world)}


def test_a_load_that_commits_during_a_verification_is_no_stranger(world: TableWorld) -> None:
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, files = world.write(site, record, place)
        known = site.history()
        assert known.entries[-1].record.load_id == record.load_id
        site.commit(sealed, files)
        assert site.unknown_loads(known) == ([], [])


def test_what_the_log_of_a_delta_table_has_lost_is_said(delta: DeltaWorld) -> None:
    table = DeltaTable(delta.output.url)
    table.create_checkpoint()
    for version in range(table.version()):
        delta.output.remove(f"_delta_log/{version:020d}.json")
    found = history(delta.target)
    assert [entry.record.id.sequence for entry in found.entries] == [3]
    assert found.forgotten == ((1, 2),)
    assert found.describe_forgotten() == "The commit log has forgotten what loads number 1 to 2 were."
    with pytest.raises(ConfigError, match="there is no load"):
        rewind(delta.target, f"{delta.group}-000001-00000000")


def test_a_rewind_takes_rows_and_offsets_back_and_loads_go_on(world: TableWorld) -> None:
    plan = take_back(world, 1)
    assert world.visible() == first_rows(3)
    assert states(world) == [LoadState.PUBLISHED, LoadState.REWOUND, LoadState.REWOUND, LoadState.REWIND]
    assert plan.committed == {TopicPartition("t", 0): 3, TopicPartition("t", 1): 3}
    world.load()
    check_whole(world)
    assert take_back(world, 1).id.sequence == 6
    world.load()
    check_whole(world)


def test_a_rewind_through_the_door(world: TableWorld) -> None:
    if not world.keeps_rows:
        pytest.skip("no rows to delete")
    first = entries(world)[0].record.load_id
    is_database = isinstance(world, DatabaseWorld)
    with pytest.raises(ConfigError, match="set delete" if is_database else "not (by )?--delete"):
        rewind(world.target, first, delete=not is_database)
    assert rewind(world.target, first, delete=is_database, confirm=lambda plan: False) is None
    assert states(world) == [LoadState.PUBLISHED] * 3
    assert rewind(world.target, first, delete=is_database) is not None
    assert world.visible() == first_rows(3)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_rewind_that_is_killed_at_any_step_happened_or_did_not(
    worlds: Callable[[], TableWorld], before: bool
) -> None:
    world, counting = worlds(), CrashPoint()
    if isinstance(world, DatabaseWorld) and not before:
        return  # before the next statement is after this one
    take_back(world, 1, counting)
    for number in range(1, len(counting.steps) + 1):
        world = worlds()
        with pytest.raises(Crash):
            take_back(world, 1, CrashPoint(number, before=before))
        happened = LoadState.REWIND in states(world)
        assert world.visible() == first_rows(3 if happened else 9), counting.steps[number - 1]
        world.load()
        check_whole(world, counting.steps[number - 1])


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_load_that_races_a_rewind_leaves_one_winner(worlds: Callable[[], TableWorld], before: bool) -> None:
    world = worlds()
    is_database = isinstance(world, DatabaseWorld)
    # In a database another load would wait within the transaction: the question and the answer are before it.
    for number in (1,) if is_database else (1, 2):
        world = worlds()
        rival = functools.partial(load_without_result, world)
        with contextlib.suppress(OffsetConflict, LoadError):
            take_back(world, 1, CrashPoint(number, before=before or is_database, meanwhile=rival))
        assert world.visible() in (world.produced(), first_rows(3))
        world.grow()
        world.load()
        check_whole(world)


def test_a_load_that_slept_through_a_rewind_is_refused(world: TableWorld) -> None:
    """It has planned the very offsets that the group stands at again."""
    with world.opened(CrashPoint()) as site:
        take_back(world, 2)
        record = world.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, files = world.write(site, record, place)
        world.load()
        take_back(world, 2)
        with pytest.raises(OffsetConflict):
            site.commit(sealed, files)
    world.load()
    check_whole(world)


def test_a_delta_table_that_was_rewritten_is_rewound(delta: DeltaWorld) -> None:
    """OPTIMIZE has put the rows of all loads, and of another group, into one file."""
    other = DeltaWorld(delta.output, "another", {TopicPartition("t", 0): 4})
    other.load()
    other.ends[TopicPartition("t", 0)] = 7
    other.load()
    DeltaTable(delta.output.url).optimize.compact()
    take_back(delta, 1)
    assert delta.visible() == sorted([*first_rows(3), *(("t", 0, offset) for offset in range(7))])
    delta.load()
    assert delta.visible() == sorted(delta.produced() + other.produced())
    take_back(other, 1)
    assert delta.visible() == sorted([*delta.produced(), *(("t", 0, offset) for offset in range(4))])


def test_rows_that_do_not_name_their_load_are_not_loaded_twice(world: TableWorld) -> None:
    """The table had no column `load` when they were written, or a program has rewritten them without it."""
    if not world.keeps_rows:
        pytest.skip("no rows to delete")
    second = entries(world)[1].record.load_id
    set_load(world, f"load = '{second}'", "CAST(NULL AS VARCHAR)")
    refused = f"load {second} has written 6 rows, of which the table has 0, and 6 rows of its offsets have no load"
    with pytest.raises(ConfigError, match=refused):
        take_back(world, 1)
    assert states(world) == [LoadState.PUBLISHED] * 3
    take_back(world, 2)
    set_load(world, "load IS NULL", f"'{second}'")
    take_back(world, 1)
    assert world.visible() == first_rows(3)
    world.load()
    check_whole(world)


def set_load(world: TableWorld, where: str, value: str) -> None:
    if isinstance(world, DeltaWorld):
        DeltaTable(world.output.url).update(predicate=where, updates={"load": value})
    elif isinstance(world, IcebergWorld):
        rewrite(world, f"SELECT * REPLACE (CASE WHEN {where} THEN {value} ELSE load END AS load) FROM rows")
    else:
        assert isinstance(world, DatabaseWorld)
        execute(world, f"UPDATE rows SET load = {value} WHERE {where}")


def rewrite(world: IcebergWorld, query: str) -> None:
    """Another program puts the rows that a query of `rows` gives in place of all rows, in one file."""
    table = world.table()
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.register("rows", table.scan().to_arrow())
    table.overwrite(connection.sql(query).to_arrow_table().cast(table.schema().as_arrow()))


def test_loads_whose_rows_are_all_gone_are_rewound(world: TableWorld) -> None:
    """There is nothing to delete, but the offsets still go back."""
    if not world.keeps_rows:
        pytest.skip("no rows to delete")
    if isinstance(world, DeltaWorld):
        DeltaTable(world.output.url).delete('"offset" >= 3')
    elif isinstance(world, IcebergWorld):
        world.table().delete("offset >= 3")
    else:
        assert isinstance(world, DatabaseWorld)
        execute(world, 'DELETE FROM rows WHERE "offset" >= 3')
    take_back(world, 1)
    world.load()
    check_whole(world)


def meddle_before_commits(patch: pytest.MonkeyPatch, meddle: Callable[[], None]) -> None:
    """Another program is quicker each time: the commit is against a state that is no longer the newest."""
    commit = DeltaCommitLog._commit

    def late(log: DeltaCommitLog, table: DeltaTable, record: LoadRecord, files: Sequence[WrittenFile]) -> None:
        meddle()
        commit(log, table, record, files)

    patch.setattr(DeltaCommitLog, "_commit", late)


def test_a_delta_table_rewritten_in_the_very_moment_is_rewound(
    delta: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try fails, because the files have changed; the next one deletes the rows where they are now."""

    def compact() -> None:
        DeltaTable(delta.output.url).optimize.compact()

    with monkeypatch.context() as patch:
        meddle_before_commits(patch, compact)
        take_back(delta, 1)
    assert delta.visible() == first_rows(3)
    delta.load()
    assert delta.visible() == delta.produced()


def test_other_writers_do_not_disturb_a_rewind_of_a_delta_table(
    delta: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a stream adds rows before every try."""
    row = with_load(rows_of(LoadRange("u", 0, 0, 1, None)), None)
    with monkeypatch.context() as patch:
        meddle_before_commits(patch, lambda: write_deltalake(delta.output.url, row, mode="append"))
        take_back(delta, 1)
    assert [row for row in delta.visible() if row[0] == "t"] == first_rows(3)


def test_a_load_that_commits_in_the_very_moment_stops_a_rewind(
    delta: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = iter([True])
    with monkeypatch.context() as patch:
        meddle_before_commits(patch, lambda: load_without_result(delta) if next(once, False) else None)
        with pytest.raises(OffsetConflict):
            take_back(delta, 1)
    check_whole(delta)


def test_an_append_only_delta_table_cannot_be_rewound(delta: DeltaWorld) -> None:
    DeltaTable(delta.output.url).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(ConfigError, match=r"has appendOnly \(delta\.appendOnly is true\), with which a rewind cannot"):
        take_back(delta, 1)


def execute(world: DatabaseWorld, statement: str) -> None:
    with open_engine(world.address.url).begin() as connection:
        connection.execute(sqlalchemy.text(statement))


def test_only_the_rows_of_the_loads_are_deleted(sqlite: DatabaseWorld) -> None:
    """Another group has rows of the same offsets, before the rewind is planned and after; a person has some, too."""
    other = DatabaseWorld(sqlite.address, "other", {TopicPartition("t", 1): 5})
    other.load()
    execute(sqlite, "INSERT INTO rows (topic, partition, \"offset\") VALUES ('t', 0, 4)")
    other.grow(count=2)
    first = entries(sqlite)[0].record.load_id
    assert rewind(sqlite.target, first, delete=True, confirm=lambda plan: other.load() is not None) is not None
    assert sqlite.visible() == sorted([*first_rows(3), *other.produced(), ("t", 0, 4)])
    execute(sqlite, "DELETE FROM rows WHERE load IS NULL OR load LIKE 'other-%'")
    sqlite.load()
    check_whole(sqlite)


def test_rows_that_were_copied_by_hand_are_deleted_with_their_load(sqlite: DatabaseWorld) -> None:
    execute(sqlite, 'INSERT INTO rows SELECT * FROM rows WHERE partition = 0 AND "offset" = 4')
    execute(sqlite, 'DELETE FROM rows WHERE partition = 0 AND "offset" = 5')
    take_back(sqlite, 1)
    assert sqlite.visible() == first_rows(3)


def test_a_table_without_the_column_is_not_rewound(sqlite: DatabaseWorld) -> None:
    execute(sqlite, "ALTER TABLE rows DROP COLUMN load")
    with pytest.raises(ConfigError, match="cannot be deleted: table rows has no column load"):
        take_back(sqlite, 1)


def test_a_database_is_pruned_and_loads_go_on(sqlite: DatabaseWorld) -> None:
    assert prune(sqlite.target, 1) == [1, 2]
    found = history(sqlite.target)
    assert ([entry.record.id.sequence for entry in found.entries], found.forgotten) == ([3], ((1, 2),))
    third = found.entries[0].record.load_id
    sqlite.load()
    check_whole(sqlite)
    assert rewind(sqlite.target, third, delete=True) is not None
    assert prune(sqlite.target, 1) == [3, 4]
    with pytest.raises(ConfigError, match="there is no load"):
        rewind(sqlite.target, third, delete=True)
    sqlite.load()
    check_whole(sqlite)


def test_a_delta_table_prunes_itself(delta: DeltaWorld) -> None:
    with pytest.raises(ConfigError, match="prunes its log itself"):
        prune(delta.target, 1)


def test_a_table_without_loads_is_told(tmp_path: Path) -> None:
    for make in (delta_world, iceberg_world, sqlite_world):
        world = make(tmp_path, begin=False)
        with pytest.raises(ConfigError, match="holds no loads, of group"):
            rewind(world.target, "g-000001-00000000", delete=True)


def test_loads_and_rewinds_at_once_in_postgresql(postgres: str) -> None:
    """Real transactions that wait for each other: whoever is first, rows and offsets agree."""
    name = f"raced_{secrets.token_hex(4)}"
    world = DatabaseWorld(DatabaseAddress.parse(postgres, name), name)
    for _ in range(2):
        world.grow()
        world.load()

    def load() -> str:
        world.load()
        return "load"

    def back() -> str:
        take_back(world, 1)
        return "rewind"

    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            world.grow()
            won = []
            for done in [pool.submit(act) for act in (load, back, load)]:
                with contextlib.suppress(OffsetConflict, LoadError, ConfigError):
                    won.append(done.result())
            assert won
            with world.opened(CrashPoint()) as site:
                stood = site.log.offsets()
            assert world.visible() == [(*tp, offset) for tp in sorted(stood) for offset in range(stood[tp])]
    world.load()
    check_whole(world)
