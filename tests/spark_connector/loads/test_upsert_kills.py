"""Processes that upsert are killed with kill -9 at any moment, two rivals at a time; the table has the last events."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from spark_connector.loads.record import LoadError, LoadId
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import add_catalog
from tests.support.upsert_harness import UpsertIntoDelta, UpsertIntoIceberg, UpsertTopic, UpsertWorld

_KEYS = 30
_ROUNDS = 2


def the_world(root: Path, catalog: str | None, source: UpsertTopic) -> UpsertWorld:
    """The table of all processes."""
    if catalog is None:
        return UpsertIntoDelta(root, source, "killed")
    return UpsertIntoIceberg(catalog, source, "killed")


def load_all(root: Path, catalog: str | None, source: UpsertTopic, begun: Event) -> None:
    """Small loads until nothing is new, beside a rival."""
    world, is_done = the_world(root, catalog, source), False
    world.most = 4
    begun.set()
    while not is_done:
        with contextlib.suppress(OffsetConflict, LoadError):
            is_done = world.load() is None


def number_of(world: UpsertWorld) -> int:
    with world.opened(CrashPoint()) as site:
        return site.log.newest().sequence


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_last_event_of_each_key_survives_kills(kind: str, tmp_path: Path) -> None:
    catalog = add_catalog(tmp_path) if kind == "iceberg" else None
    source, chance = UpsertTopic(), random.Random(kind)
    world = the_world(tmp_path, catalog, source)
    spawn = multiprocessing.get_context("spawn")
    kills = 0
    for number in range(_ROUNDS):
        for _ in range(60):
            deleted = chance.random() < 0.3
            source.send(chance.randrange(_KEYS), None if deleted else f"round {number}")
        begun = spawn.Event()
        rivals = [spawn.Process(target=load_all, args=(tmp_path, catalog, source, begun)) for _ in range(2)]
        for rival in rivals:
            rival.start()
        assert begun.wait(120)
        goal = number_of(world) + chance.randrange(1, 4)
        while number_of(world) < goal and rivals[0].is_alive():
            rivals[0].join(timeout=chance.uniform(0, 0.2))  # then any moment of the next load will do
        for rival in rivals:
            kills += rival.is_alive()
            rival.kill()
            rival.join()
    world.load()
    print(f"{kills} processes killed, {number_of(world)} loads")
    left = [LoadId.of(name) for name in world.leftovers() if not name.endswith(".parquet")]
    assert all(load.sequence <= number_of(world) for load in left)
    world.forget()  # who lost its number while it merged, and died then, leaves files that nothing but VACUUM finds
    assert world.names() == source.rows()
    assert [name for name in world.leftovers() if not name.endswith(".parquet")] == []
