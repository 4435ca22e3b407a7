"""Loads over a file system that forgets what was not synced: what is committed is whole, and the next load goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.storage.storage import open_storage
from spark_connector.loads.files.directory import FilesCommitLog
from tests.support.load_harness import World, check_manifests
from tests.support.power_loss import PowerLoss


def world_in(root: Path) -> World:
    output = open_storage(str(root / "new" / "output"))
    return World(output, lambda: FilesCommitLog(output, "g"), "g")


def test_power_that_fails_after_any_sync_loses_and_doubles_no_row(tmp_path: Path) -> None:
    cut = syncs = 0
    while cut <= syncs:
        root = tmp_path / str(cut)
        root.mkdir()
        world = world_in(root)
        with PowerLoss(root) as power:
            world.grow()
            world.load()
            world.grow()
            world.load()
            syncs = power.syncs
            power.cut(cut)
        assert set(world.visible()) <= set(world.committed()), cut
        world.grow()
        world.load()
        assert world.visible() == world.committed() == world.produced(), cut
        check_manifests(world)
        assert world.leftovers() == [], cut
        cut += 1
    assert syncs > 10


def test_power_that_fails_when_a_load_is_done_loses_nothing_of_it(tmp_path: Path) -> None:
    world = world_in(tmp_path)
    with PowerLoss(tmp_path) as power:
        world.grow()
        assert world.load() is not None
        power.cut()
    assert world.visible() == world.committed() == world.produced()


@pytest.mark.parametrize("synced", [True, False])
def test_the_file_system_of_these_tests_forgets(tmp_path: Path, synced: bool) -> None:
    storage = open_storage(str(tmp_path))
    with PowerLoss(tmp_path) as power:
        with storage.open_output("a/b") as file:
            file.write(b"x")
        if synced:
            storage.sync("a")
        power.cut()
    assert [path.name for path in tmp_path.rglob("*")] == (["a", "b"] if synced else ["a"])
