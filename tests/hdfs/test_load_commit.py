"""The commit protocol on a real HDFS: crashes and rivals at its steps.

All steps of the protocol are gone through in tests/spark_connector/loads/files/test_directory.py; here those that move
the commit, and in the slow set every one. (A file takes hdfs-native half a second: its first question whether the
NameNode knows the block comes too early, and it waits before the second.)
"""

from __future__ import annotations

import contextlib
import itertools

import pytest

from broker.storage.storage import open_storage
from spark_connector.loads.files.directory import FilesCommitLog
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import Crash, CrashPoint
from tests.support.hdfs import MiniHdfs
from tests.support.load_harness import World, check_manifests

pytestmark = pytest.mark.hdfs

_counter = itertools.count()


def fresh(hdfs: MiniHdfs) -> World:
    """An empty directory, and something to load."""
    output = open_storage(f"{hdfs.uri}/commit-{next(_counter)}", hdfs.client_options)
    world = World(output, lambda: FilesCommitLog(output, "g"), "g")
    world.grow(partitions=1)
    return world


def steps_of_a_load(hdfs: MiniHdfs) -> list[str]:
    counting = CrashPoint()
    fresh(hdfs).load(counting)
    return counting.steps


def check_a_crash_is_repaired(hdfs: MiniHdfs, step: int, *, before: bool) -> None:
    world = fresh(hdfs)
    with pytest.raises(Crash):
        world.load(CrashPoint(step, before=before))
    assert set(world.visible()) <= set(world.committed())
    world.grow(partitions=1)
    world.load()
    assert world.visible() == world.committed() == world.produced()
    assert world.leftovers() == []
    check_manifests(world)


@pytest.mark.parametrize("call", ["append", "rename"])
def test_a_crash_after_the_commit_is_repaired_by_the_next_load(hdfs: MiniHdfs, call: str) -> None:
    steps = steps_of_a_load(hdfs)
    (number,) = (number for number, step in enumerate(steps, 1) if step.startswith(call))
    check_a_crash_is_repaired(hdfs, number, before=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_crash_at_any_step_is_repaired_by_the_next_load(hdfs: MiniHdfs, before: bool) -> None:
    for number in range(1, len(steps_of_a_load(hdfs)) + 1):
        check_a_crash_is_repaired(hdfs, number, before=before)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_rival_at_any_step_leaves_one_winner_of_every_range(hdfs: MiniHdfs) -> None:
    for number in range(1, len(steps_of_a_load(hdfs)) + 1):
        world = fresh(hdfs)

        def run_rival(world: World = world) -> None:
            world.load()

        with contextlib.suppress(OffsetConflict):
            world.load(CrashPoint(number, before=True, meanwhile=run_rival))
        assert world.visible() == world.committed() == world.produced()
        world.grow(partitions=1)
        world.load()
        assert world.visible() == world.committed() == world.produced()
        assert world.leftovers() == []
