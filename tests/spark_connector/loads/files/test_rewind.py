"""Rewinding a group: what is taken back, and a crash or a rival at every step of it, in both commit logs."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import open_storage
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
from spark_connector.loads.record import LoadError, LoadRange, LoadRecord
from spark_connector.loads.rewind import REWOUND, plan_rewind, standing
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore
from tests.support.crashing import Crash, CrashPoint
from tests.support.load_harness import World

_counter = itertools.count()
_STORAGE = ("create", "rename", "remove")
_LOG = ("append", "mark_published")


class KeptOpen(ZooKeeperCommitLog):
    """All worlds share one session."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def shared_store(zookeeper: str) -> Iterator[ZooKeeperOffsetStore]:
    store = ZooKeeperOffsetStore(f"{zookeeper}/load-rewind-tests")
    yield store
    store.close()


@pytest.fixture(params=["files", "zookeeper"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path, shared_store: ZooKeeperOffsetStore) -> Worlds:
    return Worlds(request.param, tmp_path, shared_store)


class Worlds:
    """Makes worlds with three loads, of which the third brought a partition of its own."""

    def __init__(self, kind: str, root: Path, store: ZooKeeperOffsetStore) -> None:
        self._kind, self._root, self._store = kind, root, store

    def fresh(self) -> World:
        number = next(_counter)
        output, group = open_storage(str(self._root / f"output-{number}")), f"group-{number}"

        def open_log() -> CommitLog:
            return FilesCommitLog(output, group) if self._kind == "files" else KeptOpen(self._store, group)

        world = World(output, open_log, group)
        for partitions in (2, 2, 3):
            world.grow(partitions=partitions)
            assert world.load() is not None
        return world


def rewind(world: World, number: int, crash: CrashPoint | None = None, *, delete: bool = False) -> LoadRecord:
    """Back to the load with this number, as upkeep.rewind does it."""
    crash = crash or CrashPoint()
    log = crash.guard(world.open_log(), _LOG)
    site = FilesDestination(crash.guard(world.output, _STORAGE), log, world.group)
    site.repair()
    loads = standing(record for record in map(log.record, log.sequences()) if record)
    (to_load,) = (load.load_id for load in loads if load.id.sequence == number)
    plan = plan_rewind(loads, log.offsets(), to_load, number=log.newest().sequence + 1, delete=delete)
    site.commit(plan)
    return plan


def repair(world: World) -> list[str]:
    return FilesDestination(world.output, world.open_log(), world.group).repair()


def visible_numbers(world: World) -> list[int]:
    return sorted(int(name.split("-")[-2]) for name in world.output.names("") if name.startswith("load="))


def steps_of_a_rewind(worlds: Worlds, *, delete: bool) -> list[str]:
    counting = CrashPoint()
    rewind(worlds.fresh(), 1, counting, delete=delete)
    return counting.steps


@pytest.mark.parametrize("delete", [False, True], ids=["aside", "deleted"])
def test_later_loads_are_taken_back_and_loaded_again(worlds: Worlds, delete: bool) -> None:
    world = worlds.fresh()
    plan = rewind(world, 1, delete=delete)
    assert visible_numbers(world) == [1]
    log = world.open_log()
    assert {tp: log.offsets()[tp] for tp in world.ends} == {
        TopicPartition("t", 0): 3,
        TopicPartition("t", 1): 3,
        TopicPartition("t", 2): 0,
    }
    assert len(world.output.names(f"{REWOUND}/{plan.load_id}")) == (1 if delete else 3), "the manifest always"
    again = world.load()
    assert again is not None
    assert again.id.sequence == 5
    assert world.visible() == world.produced()


def test_a_rewind_can_be_followed_by_another_but_not_to_what_was_taken_back(worlds: Worlds) -> None:
    world = worlds.fresh()
    rewind(world, 2)
    world.load()
    with pytest.raises(ValueError, match="not enough values"):
        rewind(world, 3)
    rewind(world, 1)
    assert visible_numbers(world) == [1]
    world.load()
    assert world.visible() == world.produced()


@pytest.mark.parametrize(("before", "delete"), [(True, False), (False, True)], ids=["before, aside", "after, deleted"])
def test_a_crash_at_any_step_is_finished_or_has_done_nothing(worlds: Worlds, before: bool, delete: bool) -> None:
    steps = steps_of_a_rewind(worlds, delete=delete)
    commit = next(i for i, step in enumerate(steps, 1) if step.startswith("append"))
    for number in range(1, len(steps) + 1):
        world = worlds.fresh()
        with pytest.raises(Crash):
            rewind(world, 1, CrashPoint(number, before=before), delete=delete)
        seen = visible_numbers(world)
        assert seen == list(range(1, len(seen) + 1)), "what is visible is what some load had left"
        done = number > commit or (number == commit and not before)
        repair(world)
        assert visible_numbers(world) == ([1] if done else [1, 2, 3]), steps[number - 1]
        world.grow()
        world.load()
        assert world.visible() == world.produced(), steps[number - 1]
        assert world.leftovers() == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_of_a_rewind_and_a_load_one_wins_or_both_follow_each_other(worlds: Worlds, before: bool) -> None:
    def load_meanwhile(world: World) -> None:
        world.grow()
        world.load()

    for number in range(1, len(steps_of_a_rewind(worlds, delete=False)) + 1):
        world = worlds.fresh()
        slow = CrashPoint(number, before=before, meanwhile=functools.partial(load_meanwhile, world))
        with contextlib.suppress(OffsetConflict):
            rewind(world, 1, slow)
        world.grow()
        world.load()
        assert world.visible() == world.produced()


def test_a_rewind_in_the_middle_of_a_load_voids_it(worlds: Worlds) -> None:
    world = worlds.fresh()
    world.grow()

    def rewind_meanwhile() -> None:
        rewind(world, 1)

    rival = CrashPoint(1, before=False, meanwhile=rewind_meanwhile)  # after the intent is written
    with contextlib.suppress(OffsetConflict, FileNotFoundError, FileExistsError):
        world.load(rival)
    assert visible_numbers(world) == [1]
    world.load()
    assert world.visible() == world.produced()
    assert world.leftovers() == []


def test_one_who_slept_through_a_rewind_and_pruning_cannot_commit(worlds: Worlds) -> None:
    """The offsets are again what the sleeper remembers, and its number is free again."""
    world = worlds.fresh()
    rewind(world, 2)
    world.grow()

    def others() -> None:
        world.load()
        rewind(world, 2)
        world.open_log().prune(1)

    steps = CrashPoint()
    probe = worlds.fresh()
    probe.grow()
    probe.load(steps)
    commit = next(i for i, step in enumerate(steps.steps, 1) if step.startswith("append"))
    with pytest.raises(OffsetConflict):
        world.load(CrashPoint(commit, before=True, meanwhile=others))
    assert visible_numbers(world) == [1, 2]
    world.load()
    assert world.visible() == world.produced()


def test_pruning_keeps_the_newest_and_loads_go_on(worlds: Worlds) -> None:
    world = worlds.fresh()
    log = world.open_log()
    assert log.prune(2) == [1]
    assert log.prune(1) == [2]
    assert log.prune(1) == []
    assert log.sequences() == [3]
    assert log.record(1) is None
    world.grow()
    world.load()
    assert log.prune(1) == [3]
    assert repair(world) == []
    assert world.visible() == world.produced()


def test_a_directory_that_is_gone_is_passed_over_and_one_in_the_way_is_told(worlds: Worlds) -> None:
    world = worlds.fresh()
    (third,) = (name for name in world.output.names("") if "-000003-" in name)
    world.output.remove(third)
    rewind(world, 2)
    assert visible_numbers(world) == [1, 2]

    world = worlds.fresh()
    steps = CrashPoint()
    rewind(worlds.fresh(), 2, steps)
    commit = next(i for i, step in enumerate(steps.steps, 1) if step.startswith("append"))
    with pytest.raises(Crash):
        rewind(world, 2, CrashPoint(commit, before=False))
    (third,) = (name for name in world.output.names("") if "-000003-" in name)
    load_id = world.open_log().newest().load_id
    world.output.create(f"{REWOUND}/{load_id}/{third}/in the way", b"")
    with pytest.raises(LoadError, match="both exist: remove the wrong one"):
        repair(world)


def a_load(number: int, start: int, end: int, stored: int | None, rerun_of: str | None = None) -> LoadRecord:
    ranges = (LoadRange("t", 0, start, end, stored, end - start),)
    return LoadRecord(f"g-{number:06d}-{number:08x}", "file:///o", "json", "files", 0, ranges, rerun_of)


def test_a_rewind_is_read_back_as_it_was_written() -> None:
    plan = plan_rewind(
        [a_load(1, 0, 3, None), a_load(2, 3, 9, 3)],
        {TopicPartition("t", 0): 9},
        "g-000001-00000001",
        number=3,
        delete=True,
    )
    assert LoadRecord.from_bytes(plan.to_bytes(), "here") == plan
    assert plan.committed == {TopicPartition("t", 0): 3}
    assert plan.expected == {TopicPartition("t", 0): 9}
    assert (plan.rows, plan.id.sequence) == (0, 3)
    assert [load.load_id for load in standing([a_load(1, 0, 3, None), a_load(2, 3, 9, 3), plan])] == [
        "g-000001-00000001"
    ]


def test_a_rerun_that_left_the_offsets_alone_does_not_move_them() -> None:
    loads = [a_load(1, 0, 9, None), a_load(2, 0, 9, 9, "g-000001-00000001")]
    assert plan_rewind(loads, {TopicPartition("t", 0): 9}, loads[0].load_id, number=3, delete=False).ranges == ()
    ids = [replace(load, topic_ids={"t": id_}) for load, id_ in zip([*loads, a_load(3, 0, 5, 9)], "aab", strict=True)]
    plan = plan_rewind(ids, {TopicPartition("t", 0): 5}, loads[0].load_id, number=4, delete=False)
    assert (plan.committed, plan.topic_ids) == ({TopicPartition("t", 0): 0}, {"t": "b"})


@pytest.mark.parametrize(
    ("to_load", "message"),
    [("g-000009-00000009", "the newest that stands is g-000002"), ("g-000002-00000002", "is the newest load")],
)
def test_a_rewind_to_nowhere_is_refused(to_load: str, message: str) -> None:
    loads = [a_load(1, 0, 3, None), a_load(2, 3, 9, 3)]
    with pytest.raises(ConfigError, match=message):
        plan_rewind(loads, {}, to_load, number=3, delete=False)
    with pytest.raises(ConfigError, match="there is none that stands"):
        plan_rewind([], {}, to_load, number=3, delete=False)
