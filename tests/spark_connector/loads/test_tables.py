"""Loads into tables: a crash at every step, a rival at every step, in Delta, on S3, Iceberg, SQLite and PostgreSQL.

Invariants after every crash: no row is visible that is not committed, none twice; and after the next load everything
produced is visible exactly once and nothing else is left. No Spark: rows are written as its tasks write them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.record import LoadError
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import A_KILL, A_RIVAL, Crash, CrashPoint
from tests.support.table_harness import (
    DatabaseWorld,
    TableWorld,
    begun,
    check_whole,
    delta_world,
    iceberg_world,
    load_without_result,
    s3_world,
    sqlite_world,
)

_counter = itertools.count()

Worlds = Callable[[], TableWorld]
World = TypeVar("World", bound=TableWorld)


@pytest.fixture
def postgres_world(postgres: str) -> Callable[[], DatabaseWorld]:
    def make() -> DatabaseWorld:
        number = next(_counter)
        return begun(DatabaseWorld(DatabaseAddress.parse(postgres, f"rows_{number}"), f"group-{number}"))

    return make


@pytest.fixture(params=["delta", "s3", "iceberg", "sqlite", "postgres"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Worlds:
    if request.param == "delta":
        return lambda: delta_world(tmp_path)
    if request.param == "s3":
        s3 = request.getfixturevalue("s3")
        return lambda: s3_world(s3)
    if request.param == "iceberg":
        return lambda: iceberg_world(tmp_path)
    if request.param == "sqlite":
        return lambda: sqlite_world(tmp_path)
    made: Worlds = request.getfixturevalue("postgres_world")
    return made


def steps_of_a_load(world: TableWorld) -> list[str]:
    counting = CrashPoint()
    world.load(counting)
    return counting.steps


def next_world(world: TableWorld, worlds: Worlds) -> TableWorld:
    """A whole table with something new to load. A database goes on with the one it has: a new one is a third load."""
    if not isinstance(world, DatabaseWorld):
        return worlds()
    world.grow()
    return world


# On S3 a step is some requests to a server. The kills of tests/faults/test_table_kills.py have an S3, too.
EACH_STEP = pytest.mark.parametrize(
    "worlds",
    ["delta", pytest.param("s3", marks=pytest.mark.slow), "iceberg", "sqlite", "postgres"],
    indirect=True,
)


def test_loads_follow_each_other_without_gap(worlds: Worlds) -> None:
    world = worlds()
    for _ in range(3):
        assert world.load() is not None
        check_whole(world)
        world.grow(partitions=3)
    assert world.load() is not None
    assert world.load() is None


@pytest.mark.timeout(300)  # hundreds of transactions
@EACH_STEP
@A_KILL
def test_a_crash_at_any_step_is_repaired_by_the_next_load(worlds: Worlds, before: bool) -> None:
    world = worlds()
    if isinstance(world, DatabaseWorld) and before:
        return  # before a statement is after the one before it
    steps = steps_of_a_load(world)
    assert len(steps) >= world.least_steps, steps
    for number in range(1, len(steps) + 1):
        world = next_world(world, worlds)
        first = world.visible()
        with pytest.raises(Crash):
            world.load(CrashPoint(number, before=before))
        visible = world.visible()
        assert len(set(visible)) == len(visible), steps[number - 1]
        assert set(first) <= set(visible), steps[number - 1]
        world.grow()
        world.load()
        check_whole(world, steps[number - 1])


@pytest.mark.timeout(300)  # hundreds of transactions
@EACH_STEP
@A_RIVAL
def test_a_rival_at_any_step_leaves_one_winner(worlds: Worlds, before: bool) -> None:
    world = worlds()
    if isinstance(world, DatabaseWorld) and not before:
        return
    steps = steps_of_a_load(world)
    for number, step in enumerate(steps, 1):
        world = next_world(world, worlds)
        if isinstance(world, DatabaseWorld) and _holds_a_lock(steps, number):
            continue  # the rival would wait for us, and we for it
        slow = CrashPoint(number, before=before, meanwhile=functools.partial(load_without_result, world))
        with contextlib.suppress(OffsetConflict, LoadError):
            world.load(slow)
        assert world.visible() == world.produced(), step
        world.grow()
        world.load()
        check_whole(world, step)


def _holds_a_lock(steps: list[str], number: int) -> bool:
    """Whether the step is within a transaction: there is a change between it and the commit before it."""
    begin = number - 1
    while begin > 0 and steps[begin - 1] != "COMMIT":
        begin -= 1
    return number - 1 > begin


def test_of_two_loads_of_one_range_one_wins_and_the_other_is_told(worlds: Worlds) -> None:
    world = worlds()
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    with pytest.raises(OffsetConflict, match=world.group):
        world.load(rival)
    check_whole(world)


def test_a_commit_that_is_made_again_does_nothing(worlds: Worlds) -> None:
    world = worlds()
    record = world.load()
    assert record is not None
    with world.opened(CrashPoint()) as site:
        site.log.append(record)
        assert site.log.newest().load_id == record.load_id
    assert world.visible() == world.produced()


def test_a_load_that_lost_its_number_knows_it(worlds: Worlds) -> None:
    world = worlds()
    with world.opened(CrashPoint()) as site:
        record = world.plan(site)
        assert record is not None
        assert not site.log.is_overtaken(record)
        world.load()
        assert site.log.is_overtaken(record)


def test_the_log_tells_records_and_numbers(worlds: Worlds) -> None:
    world = worlds()
    second = world.load()
    assert second is not None
    with world.opened(CrashPoint()) as site:
        assert site.log.sequences() == [1, 2]
        record = site.log.record(2)
        assert record is not None
        assert (record.load_id, record.rows, record.ranges) == (second.load_id, 6, second.ranges)
        assert site.log.record(3) is None
        assert site.log.offsets() == world.ends
