"""The commit protocol: a crash at every step, a rival at every step, in both commit logs.

Invariants after every crash: nothing is visible that is not committed, nothing twice; and after the next load
everything produced is visible exactly once.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import LocalStorage, open_storage
from spark_connector.loads.commit import CommitLog
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.files.zookeeper_log import ZooKeeperCommitLog
from spark_connector.loads.history import MANIFEST
from spark_connector.loads.record import LoadError
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.offset_store.files import FilesOffsetStore
from spark_connector.offset_store.zookeeper import ZooKeeperOffsetStore
from tests.support.crashing import Crash, CrashPoint
from tests.support.load_harness import World, check_manifests

_counter = itertools.count()


@pytest.fixture(scope="module")
def shared_store(zookeeper: str) -> Iterator[ZooKeeperOffsetStore]:
    store = ZooKeeperOffsetStore(f"{zookeeper}/load-commit-tests")
    yield store
    store.close()


class Crowded(ZooKeeperOffsetStore):
    """Two partitions are as many for one request as thousands are in truth."""

    max_request = 900


@pytest.fixture(scope="module")
def crowded_store(zookeeper: str) -> Iterator[ZooKeeperOffsetStore]:
    store = Crowded(f"{zookeeper}/crowded-commit-tests")
    yield store
    store.close()


class KeptOpen(ZooKeeperCommitLog):
    """Hundreds of short loads share one session."""

    def close(self) -> None:
        pass


class Worlds:
    """Makes fresh worlds of one kind of commit log."""

    def __init__(self, kind: str, root: Path, store: ZooKeeperOffsetStore) -> None:
        self.kind, self._root, self._store = kind, root, store

    def fresh(self) -> World:
        """An output directory with one good load in it, and new data to load."""
        number = next(_counter)
        output = open_storage(str(self._root / f"output-{number}"))
        group = f"group-{number}"

        def open_log() -> CommitLog:
            return FilesCommitLog(output, group) if self.kind == "files" else KeptOpen(self._store, group)

        world = World(output, open_log, group)
        world.grow()
        assert world.load() is not None
        world.grow()
        return world


KINDS = ["files", "zookeeper"]


@pytest.fixture(params=KINDS)
def worlds(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    shared_store: ZooKeeperOffsetStore,
    crowded_store: ZooKeeperOffsetStore,
) -> Worlds:
    kind = request.param.split()[-1]
    return Worlds(kind, tmp_path, crowded_store if request.param.startswith("crowded") else shared_store)


def steps_of_a_load(worlds: Worlds) -> list[str]:
    counting = CrashPoint()
    worlds.fresh().load(counting)
    return counting.steps


def load_without_result(world: World) -> None:
    world.load()


@pytest.mark.parametrize("worlds", [*KINDS, "crowded zookeeper"], indirect=True)
def test_loads_follow_each_other_without_gap(worlds: Worlds) -> None:
    world = worlds.fresh()
    for _ in range(3):
        assert world.load() is not None
        assert world.visible() == world.committed() == world.produced()
        assert world.leftovers() == []
        world.grow(partitions=3)
    assert world.load() is not None
    assert world.load() is None
    check_manifests(world)


@pytest.mark.parametrize("worlds", [*KINDS, "crowded zookeeper"], indirect=True)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_crash_at_any_step_is_repaired_by_the_next_load(worlds: Worlds, before: bool) -> None:
    steps = steps_of_a_load(worlds)
    assert len(steps) >= 8, steps
    for number in range(1, len(steps) + 1):
        world = worlds.fresh()
        with pytest.raises(Crash):
            world.load(CrashPoint(number, before=before))
        visible = world.visible()
        assert len(set(visible)) == len(visible), steps[number - 1]
        assert set(visible) <= set(world.committed()), steps[number - 1]
        world.grow()
        world.load()
        assert world.visible() == world.committed() == world.produced(), steps[number - 1]
        assert world.leftovers() == [], steps[number - 1]
        check_manifests(world)


def test_a_crash_of_the_repair_is_repaired_too(worlds: Worlds) -> None:
    steps = steps_of_a_load(worlds)
    for number in range(1, len(steps) + 1):
        for second in range(1, 5):
            world = worlds.fresh()
            with pytest.raises(Crash):
                world.load(CrashPoint(number, before=False))
            with contextlib.suppress(Crash):
                world.load(CrashPoint(second, before=bool(second % 2)))
            assert set(world.visible()) <= set(world.committed())
            world.grow()
            world.load()
            assert world.visible() == world.committed() == world.produced(), (steps[number - 1], second)
            assert world.leftovers() == []


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_rival_at_any_step_leaves_one_winner_of_every_range(worlds: Worlds, before: bool) -> None:
    steps = steps_of_a_load(worlds)
    for number in range(1, len(steps) + 1):
        world = worlds.fresh()
        slow = CrashPoint(number, before=before, meanwhile=functools.partial(load_without_result, world))
        with contextlib.suppress(OffsetConflict):
            world.load(slow)
        assert world.visible() == world.committed() == world.produced(), steps[number - 1]
        world.grow()
        world.load()
        assert world.visible() == world.committed() == world.produced(), steps[number - 1]
        assert world.leftovers() == [], steps[number - 1]
        check_manifests(world)


def test_of_two_loads_of_one_range_one_wins_and_the_other_is_told(worlds: Worlds) -> None:
    world = worlds.fresh()
    winner = []
    rival = CrashPoint(1, before=False, meanwhile=lambda: winner.append(world.load()))  # after the intent is written
    with pytest.raises(OffsetConflict, match=world.group):
        world.load(rival)
    assert winner[0] is not None
    assert world.visible() == world.committed() == world.produced()
    assert world.leftovers() == []


def test_a_load_that_lost_its_number_knows_it(worlds: Worlds) -> None:
    world = worlds.fresh()
    log = world.open_log()
    site = FilesDestination(world.output, log, world.group)
    record = world._plan(log)
    assert record is not None
    assert not site.log.is_overtaken(record)
    world.load()
    assert site.log.is_overtaken(record)


def test_offsets_moved_by_another_program_void_a_sealed_load(
    tmp_path: Path, shared_store: ZooKeeperOffsetStore
) -> None:
    worlds = Worlds("zookeeper", tmp_path, shared_store)
    seal = next(i for i, step in enumerate(steps_of_a_load(worlds), 1) if step.endswith("_manifest.json"))
    world = worlds.fresh()
    with pytest.raises(Crash):
        world.load(CrashPoint(seal, before=False))
    shared_store.commit(world.group, {TopicPartition("t", 0): 4})
    world.load()
    assert world.leftovers() == []
    assert ("t", 0, 3) not in world.visible()  # skipped by that program, not by us
    assert len(set(world.visible())) == len(world.visible())


def test_a_stream_that_commits_to_the_same_files_group_is_respected(worlds: Worlds) -> None:
    if worlds.kind != "files":
        pytest.skip("entries that are no loads exist in the files store only")
    world = worlds.fresh()
    FilesOffsetStore(world.output.below("_offsets")).commit(world.group, {TopicPartition("other", 0): 5})
    assert world.load() is not None
    assert world.visible() == world.committed() == world.produced()


def test_a_load_killed_before_it_was_published_is_not_lost_to_a_stream_that_commits_then(
    tmp_path: Path, shared_store: ZooKeeperOffsetStore
) -> None:
    worlds = Worlds("files", tmp_path, shared_store)
    commit = next(i for i, step in enumerate(steps_of_a_load(worlds), 1) if step.startswith("append"))
    world = worlds.fresh()
    with pytest.raises(Crash):
        world.load(CrashPoint(commit, before=False))
    FilesOffsetStore(world.output.below("_offsets")).commit(world.group, {TopicPartition("other", 0): 5})
    world.grow()
    world.load()
    assert world.visible() == world.committed() == world.produced()
    assert world.leftovers() == []


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_sealed_load_whose_files_are_not_all_there_is_not_committed(worlds: Worlds, damage: str) -> None:
    seal = next(i for i, step in enumerate(steps_of_a_load(worlds), 1) if step.endswith("_manifest.json"))
    world = worlds.fresh()
    with pytest.raises(Crash):
        world.load(CrashPoint(seal, before=False))
    (left,) = world.leftovers()
    part = f"_staging/{worlds.kind}/{left}/data/part-t-0.json"
    world.output.remove(part)
    if damage == "short":
        world.output.create(part, b"[]")
    world.load()
    assert world.visible() == world.committed() == world.produced()
    assert world.leftovers() == []


def test_committed_data_that_cannot_be_found_stops_the_next_load(worlds: Worlds) -> None:
    commit = next(i for i, step in enumerate(steps_of_a_load(worlds), 1) if step.startswith("append"))
    world = worlds.fresh()
    with pytest.raises(Crash):
        world.load(CrashPoint(commit, before=False))
    world.output.remove("_staging")
    with pytest.raises(LoadError, match="is committed, but its data is neither in"):
        world.load()


def test_published_data_may_be_moved_away(worlds: Worlds) -> None:
    world = worlds.fresh()
    world.load()
    for name in world.output.names(""):
        if name.startswith("load="):
            world.output.remove(name)
    world.grow()
    record = world.load()
    assert record is not None
    assert all(range.start == 6 for range in record.ranges)


def test_a_load_of_another_directory_must_be_published_there_first(
    tmp_path: Path, shared_store: ZooKeeperOffsetStore
) -> None:
    """A repair touches its own directory: what the record says is no reason to touch another."""
    worlds = Worlds("zookeeper", tmp_path, shared_store)
    commit = next(i for i, step in enumerate(steps_of_a_load(worlds), 1) if step.startswith("append"))
    first = worlds.fresh()
    with pytest.raises(Crash):
        first.load(CrashPoint(commit, before=False))
    second = World(open_storage(str(tmp_path / "elsewhere")), first.open_log, first.group, first.ends)
    second.grow()
    with pytest.raises(LoadError, match=f"its data belongs to {first.output.url}, .*recover"):
        second.load()
    assert FilesDestination(first.output, first.open_log(), first.group).repair() != []
    second.load()
    assert sorted(first.visible() + second.visible()) == first.produced()


@pytest.mark.parametrize("there", [True, False])
def test_a_seal_that_fails_discards_only_what_nobody_can_have_committed(
    worlds: Worlds, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the last step may be lost on the way: a repair elsewhere sees a complete load and commits it."""
    world = worlds.fresh()

    def lose(storage: LocalStorage, path: str, data: bytes) -> None:
        if there or not path.endswith(MANIFEST):
            create(storage, path, data)
        if path.endswith(MANIFEST):
            raise OSError("connection reset")

    create = LocalStorage.create
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "create", lose)
        with pytest.raises(OSError, match="connection reset"):
            world.load()
    assert (world.output.names(f"_staging/{worlds.kind}") != []) is there
    world.load()
    assert world.visible() == world.produced()
