"""Processes that load into one Delta table, compact it, and are killed, at the same time."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from broker.storage.storage import open_storage
from spark_connector.loads.compaction import CompactionOptions
from tests.support.crashing import CrashPoint
from tests.support.table_harness import DeltaWorld, delta_world
from tests.support.waiting import eventually

NOW = CompactionOptions(rewindable_s=0)
LOADS = 25


def keep_loading(url: str, group: str) -> None:
    world = DeltaWorld(open_storage(url), group)
    for _ in range(LOADS):
        world.grow()
        world.load()


def keep_compacting(url: str, group: str) -> None:
    world = DeltaWorld(open_storage(url), group)
    while True:
        with world.opened(CrashPoint()) as site:
            site.compaction().run(NOW)


@pytest.fixture
def processes() -> Any:
    context = multiprocessing.get_context("spawn")
    started: list[SpawnProcess] = []

    def start(function: Callable[..., None], *arguments: Any) -> SpawnProcess:
        process = _process(context, function, arguments)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def _process(context: SpawnContext, function: Callable[..., None], arguments: tuple[Any, ...]) -> SpawnProcess:
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


@pytest.mark.timeout(300)
def test_loads_beside_compactions_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, processes: Callable[..., SpawnProcess]
) -> None:
    world = delta_world(tmp_path, begin=False)
    url = world.output.url
    world.grow()
    world.load()
    loaders = [processes(keep_loading, url, group) for group in ("one", "two")]
    kills = 0
    while any(loader.is_alive() for loader in loaders):
        compactor = processes(keep_compacting, url, "one")
        eventually(
            lambda: bool(world.output.names("_staging/compaction")) or not any(one.is_alive() for one in loaders), 120
        )
        compactor.kill()
        compactor.join()
        kills += 1
    assert [loader.exitcode for loader in loaders] == [0, 0]
    assert kills
    with DeltaWorld(world.output, "one").opened(CrashPoint()) as site:
        site.compaction().run(NOW)
    assert world.output.names("_staging/compaction") == []
    table = DeltaTable(url)
    assert len(table.file_uris()) < 20
    found = table.to_pyarrow_table().select(["load", "partition", "offset"]).to_pylist()
    per_group: dict[str, list[tuple[int, int]]] = {}
    for row in found:
        per_group.setdefault(row["load"].rsplit("-", 2)[0], []).append((row["partition"], row["offset"]))
    expected = [(partition, offset) for partition in range(2) for offset in range(3 * LOADS)]
    assert sorted(per_group["one"]) == sorted(per_group["two"]) == expected
    named = str(table.history())
    assert [name for name in world.output.names("compacted") if name not in named] == []


@pytest.mark.timeout(300)
def test_two_compactors_and_a_loader_end_with_every_row_once(
    tmp_path: Path, processes: Callable[..., SpawnProcess]
) -> None:
    world = delta_world(tmp_path, begin=False)
    loader = processes(keep_loading, world.output.url, "one")
    eventually(lambda: DeltaTable.is_deltatable(world.output.url), 60)
    rivals = [processes(keep_compacting, world.output.url, "one") for _ in range(2)]
    loader.join()
    assert loader.exitcode == 0
    assert [rival.exitcode for rival in rivals] == [None, None], "a compactor that loses goes on"
    found = DeltaTable(world.output.url).to_pyarrow_table().select(["partition", "offset"]).to_pylist()
    expected = [(partition, offset) for partition in range(2) for offset in range(3 * LOADS)]
    assert sorted((row["partition"], row["offset"]) for row in found) == expected
