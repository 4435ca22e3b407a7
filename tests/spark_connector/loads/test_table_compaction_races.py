"""Processes that load into one table, Delta or Iceberg, compact it, and are killed, at the same time."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from broker.storage.storage import open_storage
from tests.support.table_harness import CompactionWorld, DeltaWorld, IcebergWorld, add_catalog
from tests.support.waiting import eventually

LOADS = {"delta": 25, "iceberg": 10}

Start = Callable[..., SpawnProcess]


def world_of(kind: str, place: str, group: str) -> CompactionWorld:
    return DeltaWorld(open_storage(place), group) if kind == "delta" else IcebergWorld(place, group)


def keep_loading(kind: str, place: str, group: str) -> None:
    world = world_of(kind, place, group)
    for _ in range(LOADS[kind]):
        world.grow()
        world.load()


def keep_compacting(kind: str, place: str) -> None:
    world = world_of(kind, place, "one")
    while True:
        world.compact()


@pytest.fixture
def start() -> Iterator[Start]:
    context = multiprocessing.get_context("spawn")
    started: list[SpawnProcess] = []

    def begin(function: Callable[..., None], *arguments: str) -> SpawnProcess:
        started.append(context.Process(target=function, args=arguments))
        started[-1].start()
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.join()


@pytest.fixture(params=LOADS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def world(kind: str, tmp_path: Path) -> CompactionWorld:
    """The table of a first load, of the group `zero`."""
    place = str(tmp_path / "table") if kind == "delta" else add_catalog(tmp_path / "c")
    world = world_of(kind, place, "zero")
    world.grow()
    world.load()
    return world


def place_of(world: CompactionWorld) -> str:
    return world.catalog if isinstance(world, IcebergWorld) else world.target.to


def check_rows(world: CompactionWorld, **loads: int) -> None:
    """Each group has all records of so many loads once."""
    rows = Counter(
        (row["load"].rsplit("-", 2)[0], row["partition"], row["offset"])
        for row in world.read().select(["load", "partition", "offset"]).to_pylist()
    )
    assert rows == Counter(
        (group, partition, offset)
        for group, count in loads.items()
        for partition in range(2)
        for offset in range(3 * count)
    )


@pytest.mark.timeout(300)
def test_loads_beside_compactions_that_are_killed_lose_and_double_nothing(
    kind: str, world: CompactionWorld, start: Start
) -> None:
    loaders = [start(keep_loading, kind, place_of(world), group) for group in ("one", "two")]
    kills = 0
    while any(loader.is_alive() for loader in loaders):
        compactor = start(keep_compacting, kind, place_of(world))
        eventually(lambda: bool(world.intents()) or not any(one.is_alive() for one in loaders), 120)
        compactor.kill()
        compactor.join()
        kills += 1
    assert [loader.exitcode for loader in loaders] == [0, 0]
    assert kills
    world_of(kind, place_of(world), "one").compact()
    assert world.left() == []
    assert len(world.files()) < 20
    check_rows(world, zero=1, one=LOADS[kind], two=LOADS[kind])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["delta"])
def test_two_compactors_and_a_loader_end_with_every_row_once(kind: str, world: CompactionWorld, start: Start) -> None:
    loader = start(keep_loading, kind, place_of(world), "one")
    rivals = [start(keep_compacting, kind, place_of(world)) for _ in range(2)]
    loader.join()
    assert loader.exitcode == 0
    assert [rival.exitcode for rival in rivals] == [None, None], "a compactor that loses goes on"
    check_rows(world, zero=1, one=LOADS[kind])
