"""Dead letters in a table: with a kill, a rival or a rewind at every step each record is in one table, once.

No Spark and no broker: real tables, rows as tasks write them.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.record import LoadError
from spark_connector.loads.rewind import standing
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import A_KILL, A_RIVAL, Crash, CrashPoint
from tests.support.dead_letter_harness import DeadLetterWorld, IcebergSite, dead_letter_world

_numbers = itertools.count(1000)

Worlds = Callable[[], DeadLetterWorld]


def _worlds(root: Path, kinds: str) -> Worlds:
    """Of the kind of the loads' place and that of the table of dead letters, as `delta to iceberg`."""
    numbers = itertools.count()
    kind, _, bad_kind = kinds.partition(" to ")

    def make() -> DeadLetterWorld:
        number = next(numbers)
        return dead_letter_world(root, f"g-{number}", kind=kind, bad_kind=bad_kind, bad=f"bad-{number}")

    return make


def _slow(kinds: str) -> Any:
    return pytest.param(kinds, marks=pytest.mark.slow)


@pytest.fixture(params=["parquet to delta", _slow("delta to delta")])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Worlds:
    return _worlds(tmp_path, request.param)


@pytest.fixture(params=["parquet to delta", "delta to iceberg", _slow("delta to delta"), _slow("iceberg to iceberg")])
def all_worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Worlds:
    return _worlds(tmp_path, request.param)


def steps_of(act: Callable[[CrashPoint], object]) -> list[str]:
    counting = CrashPoint()
    act(counting)
    return counting.steps


def test_good_rows_and_dead_letters_are_all_records(all_worlds: Worlds) -> None:
    world = all_worlds()
    for _ in range(3):
        record = world.load()
        assert record is not None
        assert record.rows + (record.bad_rows or 0) == sum(range.size for range in record.ranges)
        world.check_whole()
        world.grow(partitions=3)


@pytest.mark.timeout(300)  # hundreds of commits
@A_KILL
def test_a_kill_at_any_step_is_settled_by_the_next_load(all_worlds: Worlds, before: bool) -> None:
    steps = steps_of(all_worlds().load)
    appends = [step for step in steps if step.startswith("append")]
    assert len(appends) == 2, steps
    for number, step in enumerate(steps, 1):
        world = all_worlds()
        first = world.good_rows(), world.bad_rows()
        with pytest.raises(Crash):
            world.load(CrashPoint(number, before=before))
        for now, then in zip((world.good_rows(), world.bad_rows()), first, strict=True):
            assert len(set(now)) == len(now), step
            assert set(then) <= set(now), step
        world.grow(count=2)  # the next load covers more
        world.load()
        world.check_whole(step)


def test_the_next_load_may_cover_less_and_other_records(worlds: Worlds) -> None:
    steps = steps_of(worlds().load)
    for number, step in enumerate(steps, 1):
        world = worlds()
        with pytest.raises(Crash):
            world.load(CrashPoint(number))
        world.load(most=1)
        assert len(set(world.bad_rows())) == len(world.bad_rows()), step
        world.load()
        world.check_whole(step)


def test_a_kill_of_the_settling_is_settled_too(worlds: Worlds) -> None:
    def begin() -> DeadLetterWorld:
        """Killed between the two commits."""
        world = worlds()
        steps = steps_of(worlds().load)
        first = next(number for number, step in enumerate(steps, 1) if step.startswith("append"))
        with pytest.raises(Crash):
            world.load(CrashPoint(first, before=False))
        assert world.bad_rows() == world.produced(bad=True)
        assert world.good_rows() != world.produced(bad=False)
        return world

    steps = steps_of(begin().load)
    assert len([step for step in steps if step.startswith("append")]) == 4, steps
    for number, step in enumerate(steps, 1):
        world = begin()
        with pytest.raises(Crash):
            world.load(CrashPoint(number))
        world.load()
        world.check_whole(step)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_is_dropped_between_the_two_commits_is_told_with_a_way_on(tmp_path: Path, kind: str) -> None:
    world = dead_letter_world(tmp_path, "g", kind=kind, begin=False)
    counted = dead_letter_world(tmp_path, "other", kind=kind, bad="elsewhere", begin=False)
    steps = steps_of(counted.load)
    first = next(number for number, step in enumerate(steps, 1) if step.startswith("append"))
    with pytest.raises(Crash):
        world.load(CrashPoint(first, before=False))
    if isinstance(world.loads, IcebergSite):
        open_catalog(world.loads.catalog).drop_table(world.loads.name.removeprefix("iceberg:"))
    else:
        shutil.rmtree(tmp_path / "loads-g")
    with pytest.raises(ConfigError, match="no longer exists.*another table of dead letters"):
        world.load()
    world.bad = counted.bad
    assert world.load() is not None
    world.check_whole()


@A_RIVAL
def test_a_rival_at_any_step_leaves_one_winner(worlds: Worlds, before: bool) -> None:
    steps = steps_of(worlds().load)
    for number, step in enumerate(steps, 1):
        world = worlds()

        def rival(world: DeadLetterWorld = world) -> None:
            with contextlib.suppress(OffsetConflict):
                world.load()

        slow = CrashPoint(number, before=before, meanwhile=rival)
        with contextlib.suppress(OffsetConflict, LoadError):
            world.load(slow)
        assert len(set(world.bad_rows())) == len(world.bad_rows()), step
        world.grow()
        world.load()
        world.check_whole(step)


@pytest.mark.timeout(300)  # hundreds of commits
def test_a_rival_that_dies_while_it_settles_harms_no_load_that_lives(worlds: Worlds) -> None:
    """The slow load has committed its dead letters, the rival takes them for those of a dead one, and dies itself."""
    steps = steps_of(worlds().load)
    gap = next(number for number, step in enumerate(steps, 1) if step.startswith("append"))
    for at in range(1, 2 * len(steps)):
        world = worlds()

        def rival(world: DeadLetterWorld = world, at: int = at) -> None:
            with contextlib.suppress(Crash, OffsetConflict):
                world.load(CrashPoint(at))

        with contextlib.suppress(OffsetConflict, LoadError):
            world.load(CrashPoint(gap, before=False, meanwhile=rival))
        assert len(set(world.bad_rows())) == len(world.bad_rows()), at
        world.load()
        world.check_whole(at)


def test_a_rival_without_bad_records_leaves_one_winner(worlds: Worlds) -> None:
    steps = steps_of(worlds().load)
    for number, step in enumerate(steps, 1):
        world = worlds()

        def rival(world: DeadLetterWorld = world) -> None:
            with contextlib.suppress(OffsetConflict):
                world.load(most=0)

        with contextlib.suppress(OffsetConflict, LoadError):
            world.load(CrashPoint(number, meanwhile=rival))
        world.load()
        world.check_whole(step)


def test_a_rewind_takes_the_dead_letters_back_wherever_it_is_killed(worlds: Worlds) -> None:
    def begin() -> DeadLetterWorld:
        world = worlds()
        world.load()
        world.grow()
        world.load()
        return world

    steps = steps_of(lambda crash: begin().rewind(1, crash))
    assert len([step for step in steps if step.startswith("append")]) == 2, steps
    for number, step in enumerate(steps, 1):
        world = begin()
        with pytest.raises(Crash):
            world.rewind(1, CrashPoint(number))
        world.grow()
        world.load()
        world.check_whole(step)
    world = begin()
    world.rewind(1)
    assert {row[2] for row in world.bad_rows()} == {1}
    world.load()
    world.check_whole()


@pytest.mark.timeout(300)  # hundreds of commits
def test_a_load_beside_a_rewind_loses_and_doubles_nothing(worlds: Worlds) -> None:
    def begin() -> DeadLetterWorld:
        world = worlds()
        world.load()
        world.grow()
        return world

    for act in (DeadLetterWorld.load, lambda world, crash: world.rewind(1, crash)):
        steps = steps_of(lambda crash, act=act: act(begin(), crash))  # type: ignore[misc]
        for number, step in enumerate(steps, 1):
            world = begin()

            def rival(world: DeadLetterWorld = world, act: object = act) -> None:
                with contextlib.suppress(OffsetConflict):
                    world.rewind(1) if act is DeadLetterWorld.load else world.load()

            with contextlib.suppress(OffsetConflict, LoadError):
                act(world, CrashPoint(number, meanwhile=rival))
            world.load()
            world.check_whole(step)


def test_the_first_load_of_all_may_be_killed_at_any_step(tmp_path: Path) -> None:
    def begin(number: int) -> DeadLetterWorld:
        return dead_letter_world(tmp_path, f"g-{number}", bad=f"bad-{number}", begin=False)

    steps = steps_of(begin(0).load)
    for number, step in enumerate(steps, 1):
        world = begin(number)
        with pytest.raises(Crash):
            world.load(CrashPoint(number))
        world.grow()
        world.load()
        world.check_whole(step)


def test_groups_and_tables_share_a_table_of_dead_letters(tmp_path: Path) -> None:
    one, other = (dead_letter_world(tmp_path, group) for group in ("a", "b"))
    for world in (one, other, one):
        world.load()
        world.check_whole()
        world.grow()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_happens_in_whatever_order_counts_add_up(tmp_path: Path, data: st.DataObject) -> None:
    """Loads, kills, rivals and rewinds at random: after the next load rows and dead letters are the records."""
    number = next(_numbers)
    world = dead_letter_world(tmp_path, f"g-{number}", bad=f"bad-{number}", begin=False)
    for _ in range(data.draw(st.integers(1, 5), "acts")):
        step = data.draw(st.integers(1, 16), "step")
        match data.draw(st.sampled_from(["grow", "load", "kill", "rival", "rewind"]), "act"):
            case "grow":
                world.grow(data.draw(st.integers(1, 3), "partitions"), data.draw(st.integers(0, 3), "count"))
            case "load":
                world.load(most=data.draw(st.integers(0, 4), "most"))
            case "kill":
                with contextlib.suppress(Crash):
                    world.load(CrashPoint(step, before=data.draw(st.booleans(), "before")))
            case "rival":
                with contextlib.suppress(OffsetConflict, LoadError):
                    world.load(CrashPoint(step, meanwhile=lambda: _rival(world)))
            case "rewind":
                with contextlib.suppress(Crash, StopIteration, ConfigError):
                    world.rewind(data.draw(st.integers(1, 3), "to"), CrashPoint(step))
        for rows in (world.good_rows(), world.bad_rows()):
            assert len(set(rows)) == len(rows)
    world.load()
    world.load()
    world.check_whole()
    with world.opened(CrashPoint()) as (site, _):
        for load in standing(site.log.records()):
            for range_ in load.ranges:
                assert (range_.rows or 0) + (range_.bad or 0) == range_.size


def _rival(world: DeadLetterWorld) -> None:
    with contextlib.suppress(OffsetConflict):
        world.load()
