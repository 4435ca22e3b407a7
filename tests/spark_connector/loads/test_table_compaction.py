"""Compaction of tables, Delta or Iceberg: the rows stay, whatever is killed and whoever commits at the same time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.history import LoadState
from spark_connector.maintenance import rewind
from tests.support.crashing import A_KILL, Crash, CrashPoint
from tests.support.table_harness import (
    CompactionWorld,
    check_whole,
    delta_world,
    iceberg_world,
    load_without_result,
)

MAKE: dict[str, Callable[[Path], CompactionWorld]] = {"delta": delta_world, "iceberg": iceberg_world}


@pytest.fixture(params=MAKE)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> CompactionWorld:
    """A table with four loads of two files each."""
    world = MAKE[request.param](tmp_path)
    world.load_more()
    return world


def test_small_files_become_one_and_every_row_stays(world: CompactionWorld) -> None:
    before = world.rows()
    done = world.compact()
    assert (done.files_before, done.files_after, done.rows) == (8, 1, len(before))
    assert len(world.files()) == 1
    assert world.rows() == before
    assert world.left() == []
    world.load()
    check_whole(world)
    assert world.compact().files_before == 3
    assert world.compact() == CompactionResult()
    check_whole(world)


def test_loads_that_may_be_rewound_keep_their_files(world: CompactionWorld) -> None:
    assert world.compact(CompactionOptions(rewindable_s=1e12)) == CompactionResult()
    assert len(world.files()) == 8


@pytest.mark.timeout(300)
@A_KILL
def test_a_crash_at_any_step_leaves_the_rows_and_the_next_compaction_sweeps(
    world: CompactionWorld, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_connector.loads.history.Owner.is_alive", lambda owner: False)
    counting = CrashPoint()
    world.compact(crash=counting)
    for number, step in enumerate(counting.steps, start=1):
        world.load_more()
        whole = world.rows()
        with pytest.raises(Crash):
            world.compact(crash=CrashPoint(number, before=before))
        assert world.rows() == whole
        world.compact()
        assert world.rows() == whole
        assert world.left() == [], step


def test_a_load_beside_a_compaction_loses_nothing(world: CompactionWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    assert world.compact(crash=rival).dropped is None
    assert len(world.files()) == 3
    check_whole(world)


def right_before_commit(world: CompactionWorld, act: Callable[[], None]) -> CrashPoint:
    return CrashPoint(world.last_step_before_commit, before=False, meanwhile=act)


def test_of_two_compactions_one_wins_and_the_other_leaves_nothing(world: CompactionWorld) -> None:
    whole = world.rows()
    first: list[CompactionResult] = []
    second = world.compact(crash=right_before_commit(world, lambda: first.append(world.compact())))
    assert first[0].dropped is None
    assert second.dropped == "another compaction of the group was quicker"
    assert len(first[0].swept) == 1
    assert world.rows() == whole
    assert world.left() == []


def test_a_file_that_another_program_has_rewritten_is_not_added_again(world: CompactionWorld) -> None:
    done = world.compact(crash=right_before_commit(world, lambda: world.delete("offset = 0")))
    assert "another writer has replaced" in str(done.dropped)
    assert len(set(world.rows())) == len(world.rows()) == 22
    assert world.left() == []


def test_the_history_stays_and_a_compacted_load_is_taken_back_row_by_row(world: CompactionWorld) -> None:
    world.compact()
    with world.opened(CrashPoint()) as site:
        history = site.history()
        assert [entry.state for entry in history.entries] == [LoadState.PUBLISHED] * 4
        assert site.unknown_loads(history) == ([], [])
        for entry, held in site.held(history.entries, lambda: pytest.fail("no Spark")):
            assert held.problems == held.notes == ()
            assert held.offsets is not None
            assert sum(map(len, held.offsets.values())) == entry.record.rows
        loads = [entry.record.load_id for entry in history.entries]
    rewind(world.target, loads[1])
    assert set(world.read().column("load").to_pylist()) == set(loads[:2])
    world.load()
    check_whole(world)
