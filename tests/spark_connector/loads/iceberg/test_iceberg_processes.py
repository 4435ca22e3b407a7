"""Loads into an Iceberg table by processes that are killed, and by processes that race each other."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT
from tests.support.table_harness import IcebergWorld, check_whole, iceberg_world

_LOAD = """
import os, signal, sys
from broker.protocol.topic_partition import TopicPartition
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import IcebergWorld

_, catalog, group, topic, end, step, before = sys.argv
world = IcebergWorld(catalog, group, {TopicPartition(topic, partition): int(end) for partition in (0, 1)})
world.topic = topic

def wait_or_die():
    if step == "0":
        return
    if before == "wait":  # until the parent says go
        print("ready", flush=True)
        sys.stdin.readline()
    else:
        os.kill(os.getpid(), signal.SIGKILL)

try:
    world.load(CrashPoint(int(step), before=before != "after", meanwhile=wait_or_die))
except OffsetConflict:
    sys.exit(3)
"""
COMMIT = 5  # the step in which the catalog commits: intent, two files, append, commit_table


def start(world: IcebergWorld, step: int, before: str) -> subprocess.Popen[str]:
    end = str(max(world.ends.values()))
    arguments = [world.catalog, world.group, world.topic, end, str(step), before]
    return subprocess.Popen(
        [sys.executable, "-c", _LOAD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


@pytest.mark.parametrize("before", ["before", "after"])
def test_a_process_that_is_killed_at_its_commit_loses_and_doubles_nothing(tmp_path: Path, before: str) -> None:
    """Killed between its files and the commit, and between the commit and all that follows."""
    world = iceberg_world(tmp_path)
    with start(world, COMMIT, before) as process:
        assert process.wait(120) == -signal.SIGKILL
    assert len(world.visible()) == (6 if before == "before" else 12)
    assert len(world.leftovers()) == (3 if before == "before" else 1)  # the intent, and two files that no one names
    world.grow()
    world.load()
    check_whole(world)


def race(first: IcebergWorld, second: IcebergWorld) -> list[int]:
    """Both have written their files before one of them commits."""
    with start(first, COMMIT, "wait") as one, start(second, COMMIT, "wait") as other:
        for process in (one, other):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in (one, other):
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return sorted(process.wait(120) for process in (one, other))


def test_of_two_processes_of_one_group_one_wins(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path)
    assert race(world, world) == [0, 3]
    check_whole(world)


def test_of_two_groups_both_win(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path)
    other = IcebergWorld(world.catalog, "other")
    other.topic = "u"
    other.grow()
    other.load()
    other.grow()
    assert race(world, other) == [0, 0]
    assert world.visible() == sorted(world.produced() + other.produced())
    assert world.leftovers() == other.leftovers() == []
