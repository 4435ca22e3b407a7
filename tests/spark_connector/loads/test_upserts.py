"""Upserts into tables: a table holds what a dict says that obeys every event, whatever crashes or competes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.dead_letters import refusal_of
from spark_connector.loads.destination import Destination
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.rewind import plan_rewind
from spark_connector.loads.upsert import Upsert
from spark_connector.maintenance import compact, history, rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import A_KILL, A_RIVAL, Crash, CrashPoint
from tests.support.table_harness import add_catalog, load_without_result
from tests.support.upsert_harness import BY_ID, UpsertIntoDelta, UpsertIntoIceberg, UpsertTopic, UpsertWorld, send_all

NewWorld = Callable[[UpsertTopic], UpsertWorld]


@pytest.fixture(params=["delta", "iceberg"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> NewWorld:
    if request.param == "delta":
        return functools.partial(UpsertIntoDelta, tmp_path)
    return functools.partial(UpsertIntoIceberg, add_catalog(tmp_path))


def filled(new_world: NewWorld) -> UpsertWorld:
    """A table with one load in it, and events to load: an update, an insert, a delete, a delete of nothing."""
    source = UpsertTopic()
    send_all(source, [(key, f"first {key}") for key in range(6)])
    world = new_world(source)
    assert world.load() is not None
    send_all(source, [(1, "second 1"), (7, "new"), (2, None), (9, None), (1, "third 1"), (7, None), (8, "new")])
    return world


def check(world: UpsertWorld, step: object = "") -> None:
    assert world.names() == world.source.rows(), step
    assert world.leftovers() == [], step


def test_the_table_has_the_last_event_of_each_key(new_world: NewWorld) -> None:
    world = filled(new_world)
    loaded = world.load()
    check(world)
    assert world.load() is None
    assert loaded is not None
    assert loaded.rows == 7
    (row,) = [row for row in world.table_rows() if row["id"] == 1]
    assert (row["_topic"], row["_partition"], row["_offset"], row["load"]) == ("customers", 1, 6, loaded.load_id)
    assert len({row["load"] for row in world.table_rows()}) == 2


def test_a_load_without_an_effect_moves_the_offsets(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.load()
    send_all(world.source, [(100, None), (101, "x"), (101, None)])
    assert world.load() is not None
    assert world.load() is None
    check(world)


def test_a_replay_of_an_old_load_does_not_bring_a_deleted_row_back(new_world: NewWorld) -> None:
    """Only offsets of rows would not prevent it: the row is gone, and with it the offset."""
    world = new_world(UpsertTopic(partitions=1))
    send_all(world.source, [(1, "a")])
    held = CrashPoint()
    with world.opened(held) as site:
        record = world.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, files = world.write(site, record, place)
        world.load()
        send_all(world.source, [(1, None)])
        world.load()
        assert world.names() == {}
        with pytest.raises(OffsetConflict):
            site.commit(sealed, files, world.layout)
    check(world)


def test_a_compaction_changes_no_row_and_a_rewind_goes_back_over_it(new_world: NewWorld) -> None:
    world = filled(new_world)
    with world.opened(CrashPoint()) as site:
        first = site.log.newest().load_id
    old = world.names()
    for key in (50, 51):
        world.load()
        send_all(world.source, [(key, "of a file of its own")])
    world.load()
    with world.opened(CrashPoint()) as site:
        done = site.compaction().run(CompactionOptions(rewindable_s=0))
    assert done.files_before > done.files_after == 1
    check(world)
    assert first is not None
    rewind(world.target, first)
    assert world.names() == old
    world.load()
    check(world)


@pytest.mark.timeout(300)
@A_KILL
def test_a_crash_at_any_step_is_repaired_by_the_next_load(new_world: NewWorld, before: bool) -> None:
    counting = CrashPoint()
    filled(new_world).load(counting)
    assert len(counting.steps) >= 3, counting.steps
    for number in range(1, len(counting.steps) + 1):
        world = filled(new_world)
        old = world.names()
        with pytest.raises(Crash):
            world.load(CrashPoint(number, before=before))
        assert world.names() in (old, world.source.rows()), counting.steps[number - 1]
        send_all(world.source, [(2, "again"), (8, None)])
        world.load()
        check(world, counting.steps[number - 1])


@pytest.mark.timeout(300)
@A_RIVAL
def test_a_rival_at_any_step_leaves_one_winner(new_world: NewWorld, before: bool) -> None:
    counting = CrashPoint()
    filled(new_world).load(counting)
    for number, step in enumerate(counting.steps, 1):
        world = filled(new_world)
        slow = CrashPoint(number, before=before, meanwhile=functools.partial(load_without_result, world))
        with contextlib.suppress(OffsetConflict, LoadError):
            world.load(slow)
        assert world.names() == world.source.rows(), step
        send_all(world.source, [(2, "again"), (8, None)])
        world.load()
        check(world, step)


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 7), st.one_of(st.none(), st.sampled_from("abc"))),
    st.tuples(st.just("load"), st.sampled_from([None, 1, 3])),
    st.tuples(st.just("crash"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("rival"), st.integers(1, 4), st.booleans()),
)


@given(st.lists(STEP, max_size=25))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.timeout(300)
def test_any_sequence_of_loads_crashes_and_rivals_ends_in_the_last_events(
    new_world: NewWorld, steps: list[tuple[Any, ...]]
) -> None:
    world = new_world(UpsertTopic(partitions=3))
    for step in steps:
        if step[0] == "send":
            world.source.send(step[1], step[2])
        elif step[0] == "load":
            world.most = step[1]
            world.load()
            world.most = None
            if step[1] is None:
                assert world.names() == world.source.rows()
        elif step[0] == "crash":
            with contextlib.suppress(Crash):
                world.load(CrashPoint(step[1], before=step[2]))
        else:
            rival = functools.partial(load_without_result, world)
            with contextlib.suppress(OffsetConflict, LoadError):
                world.load(CrashPoint(step[1], before=step[2], meanwhile=rival))
    world.load()
    check(world)


def test_a_key_in_two_partitions_is_refused_and_nothing_is_kept(new_world: NewWorld) -> None:
    world = filled(new_world)
    old = world.names()
    world.source.send(1, "elsewhere", partition=0)
    with pytest.raises(LoadError, match="the key id=1 is in two partitions, customers-0 offset .* and customers-1"):
        world.load()
    assert world.names() == old
    assert world.leftovers() == []


def test_a_key_whose_row_another_partition_wrote_is_refused(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.load()
    world.source.send(1, "elsewhere", partition=0)
    with pytest.raises(LoadError, match="id=1 is in two partitions, customers-1 offset 6 in the table, customers-0"):
        world.load()
    assert world.names()[1] == "third 1"
    assert world.leftovers() == []


def test_a_column_orders_the_rows_of_two_partitions(new_world: NewWorld) -> None:
    world = new_world(UpsertTopic(partitions=1))
    world.upsert = Upsert(("id",), order_by="name")
    world.source.send(1, "b", partition=0)
    world.load()
    world.source.send(1, "a", partition=1)
    world.load()
    assert world.names() == {1: "b"}
    world.source.send(1, "c", partition=1)
    world.load()
    assert world.names() == {1: "c"}


@pytest.mark.parametrize(
    ("upsert", "group", "why"),
    [
        (Upsert(("name",)), None, "was made with key=id, not name"),
        (Upsert(("id",), order_by="name"), None, "was made with order_by=None, not name"),
        (BY_ID, "another", "by the loads of group 'group-.*': of two groups nobody could tell"),
    ],
)
def test_a_table_keeps_its_key_and_its_group(new_world: NewWorld, upsert: Upsert, group: str | None, why: str) -> None:
    world = filled(new_world)
    other = filled(new_world)
    other.__dict__.update({name: value for name, value in world.__dict__.items() if name != "upsert"})
    other.upsert, other.group = upsert, group or world.group
    with pytest.raises(ConfigError, match=why):
        other.load()


def test_a_partition_column_outside_of_the_key_is_refused(new_world: NewWorld) -> None:
    world = new_world(UpsertTopic())
    world.partition_by = ("name",)
    world.source.send(1, "a")
    with pytest.raises(ConfigError, match="name, which is not made of the key's columns"):
        world.load()


@pytest.mark.parametrize("partition_by", ["id", "bucket(2, id)", "truncate(2, id)"])
def test_a_table_may_be_partitioned_by_its_key(new_world: NewWorld, partition_by: str) -> None:
    world = new_world(UpsertTopic())
    world.partition_by = (partition_by,)
    if isinstance(world, UpsertIntoDelta) and partition_by != "id":
        world.source.send(1, "a")
        with pytest.raises(ConfigError, match="it takes columns of the key as they are"):
            world.load()
        return
    send_all(world.source, [(1, "a"), (2, "b"), (3, "c")])
    world.load()
    send_all(world.source, [(1, None), (2, "bb"), (4, "d")])
    world.load()
    check(world)


def load_ids(world: UpsertWorld) -> list[str]:
    return [entry.record.load_id for entry in history(world.target).committed]


def test_a_rewind_brings_back_the_rows_of_an_earlier_load(new_world: NewWorld) -> None:
    """Also after another rewind, and again when the rows are loaded once more."""
    world = filled(new_world)
    after_first = world.names()
    world.load()
    after_second = world.names()
    send_all(world.source, [(0, None), (3, "third 3"), (20, "new")])
    world.load()
    first, second, _ = load_ids(world)
    assert rewind(world.target, second) is not None
    assert world.names() == after_second
    assert rewind(world.target, first) is not None
    assert world.names() == after_first
    assert load_ids(world) == [first]
    assert world.load() is not None
    check(world)
    send_all(world.source, [(3, None), (0, "again")])
    world.load()
    check(world)
    assert rewind(world.target, first) is not None
    assert world.names() == after_first
    world.load()
    check(world)


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_rewind_that_is_killed_is_done_or_not(new_world: NewWorld, before: bool) -> None:
    def planned(world: UpsertWorld, site: Destination) -> LoadRecord:
        loads = site.log.records()
        stored = site.log.offsets(world.source.ends)
        return plan_rewind(loads, stored, loads[0].load_id, number=len(loads) + 1, delete=False)

    number, steps = 1, 1
    while number <= steps:
        world = filled(new_world)
        old = world.names()
        world.load()
        crash = CrashPoint(number, before=before)
        with contextlib.suppress(Crash), world.opened(crash) as site:
            site.commit(planned(world, site))
        steps = max(steps, len(crash.steps))
        assert world.names() in (old, world.source.rows()), crash.steps
        send_all(world.source, [(2, "again")])
        world.load()
        check(world, crash.steps)
        number += 1


def test_a_rewind_over_the_rows_of_another_writer_is_refused(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.load()
    world.append_foreign(1000)
    send_all(world.source, [(3, "third 3")])
    world.load()
    now = world.names()
    assert now[1000] == "foreign"
    with pytest.raises(ConfigError, match=r"is of another writer, whose rows would be lost"):
        rewind(world.target, load_ids(world)[0])
    assert world.names() == now


def test_a_rewind_to_what_the_table_has_forgotten_is_refused(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.load()
    first = load_ids(world)[0]
    world.forget()
    with pytest.raises(ConfigError, match="lost files to VACUUM|no load '.*' to rewind to|has expired"):
        rewind(world.target, first)
    assert world.names() == world.source.rows()


def test_a_foreign_row_of_a_key_is_not_overwritten_silently(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.append_foreign(1000)
    world.source.send(1000, "ours")
    with pytest.raises(LoadError, match="id=1000 is in two partitions, a row that no load wrote in the table"):
        world.load()


def test_a_load_over_another_writers_commit_merges_anew(new_world: NewWorld) -> None:
    """The foreign rows come between the look at the table and the commit."""
    world = filled(new_world)
    meddled: list[int] = []

    def meddle() -> None:
        if len(meddled) < 3:
            meddled.append(1000 + len(meddled))
            world.append_foreign(meddled[-1])

    with world.meddled(meddle):
        world.load()
    assert len(meddled) == 3
    assert world.names() == {**world.source.rows(), 1000: "foreign", 1001: "foreign", 1002: "foreign"}
    assert world.leftovers() == []


@pytest.mark.parametrize(
    ("key_type", "key_of"),
    [
        (pa.int32(), int),
        (pa.string(), lambda number: f"'ö\"{number}' -- "),
        (pa.binary(), lambda number: bytes([0, number, 255])),
        (pa.decimal128(20, 2), lambda number: Decimal(number) / 100),
        (pa.date32(), lambda number: date(1969, 12, 28) + timedelta(number)),
        (pa.timestamp("us", "UTC"), lambda number: datetime(1969, 12, 31, 23, 59, 59, 999_999 - number, UTC)),
        (pa.bool_(), bool),
    ],
    ids=["int", "string", "binary", "decimal", "date", "timestamp", "bool"],
)
def test_keys_of_all_types(new_world: NewWorld, key_type: pa.DataType, key_of: Callable[[int], Any]) -> None:
    world = new_world(UpsertTopic(1, key_type=key_type, key_of=key_of))
    send_all(world.source, [(number, f"first {number}") for number in range(6)])
    world.load()
    check(world)
    send_all(world.source, [(1, "second 1"), (7, "new"), (2, None), (9, None), (3, None), (3, "back")])
    world.load()
    check(world)


def test_a_compaction_changes_no_row_and_a_rewind_goes_behind_it(new_world: NewWorld) -> None:
    world = filled(new_world)
    before = world.names()
    for number in range(4):
        send_all(world.source, [(30 + number, "small"), (1, f"again {number}")])
        world.load()
    now = world.names()
    first = load_ids(world)[0]
    compacted = compact(world.target, rewindable="0s")
    if isinstance(world, UpsertIntoIceberg):  # a MERGE of Delta leaves one file here
        assert compacted.files_after < compacted.files_before
    assert world.names() == now == world.source.rows()
    send_all(world.source, [(1, None), (31, "later")])
    world.load()
    check(world)
    assert rewind(world.target, first) is not None
    assert world.names() == before
    world.load()
    assert world.names() == world.source.rows()


@pytest.mark.parametrize("foreign", [False, True], ids=["alone", "beside another writer"])
def test_to_refuse_a_load_that_was_killed_changes_no_row(new_world: NewWorld, foreign: bool) -> None:
    """As the next load does, when the killed one has committed its dead letters only."""
    world = filled(new_world)
    if foreign:
        world.append_foreign(99)
    old = world.table_rows()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        place = site.stage(record)
        sealed, files = world.write(site, record, place)
        site.commit(refusal_of(record.id, site, ("delta:bad",)))
        with pytest.raises(OffsetConflict):
            site.commit(sealed, files, world.layout)
    assert world.table_rows() == old
    world.load()
    assert {**world.source.rows(), **({99: "foreign"} if foreign else {})} == world.names()


class _Narrower(UpsertTopic):
    """Its values no longer have the column `tags`."""

    @property
    def schema(self) -> pa.Schema:
        return super().schema.set(1, pa.field("value", pa.struct([("id", pa.int64()), ("name", pa.string())])))

    def records(self, range_: LoadRange) -> pa.RecordBatch:
        rows = super().records(range_).to_pylist()
        for row in rows:
            (row["value"] or {}).pop("tags", None)
        return pa.RecordBatch.from_pylist(rows, self.schema)


def test_a_column_that_the_records_no_longer_have_keeps_no_old_value(new_world: NewWorld) -> None:
    world = filled(new_world)
    world.source = _Narrower(events=world.source.events)
    world.load()
    found = {row["id"]: row["tags"] for row in world.table_rows()}
    assert (found[0], found[1]) == (["first 0", None], None)


def test_a_table_may_hold_keys_that_the_type_of_the_records_cannot(new_world: NewWorld) -> None:
    world = new_world(UpsertTopic(partitions=1))
    send_all(world.source, [(2**40, "large"), (1, "a")])
    world.load()
    world.source = UpsertTopic(partitions=1, key_type=pa.int32(), events=world.source.events)
    world.source.send(1, "b")
    world.load()
    assert world.names() == {2**40: "large", 1: "b"}
