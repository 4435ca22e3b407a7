"""Processes that load into one Iceberg table, compact it, and are killed, at the same time."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from pathlib import Path

import pytest

from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.iceberg.iceberg_table import storage_of
from tests.support.crashing import CrashPoint
from tests.support.table_harness import IcebergWorld, add_catalog
from tests.support.waiting import eventually

NOW = CompactionOptions(rewindable_s=0)
LOADS = 10


def keep_loading(catalog: str, group: str) -> None:
    world = IcebergWorld(catalog, group)
    for _ in range(LOADS):
        world.grow()
        world.load()


def keep_compacting(catalog: str, group: str) -> None:
    while True:
        with IcebergWorld(catalog, group).opened(CrashPoint()) as site:
            site.compaction().run(NOW)


@pytest.mark.timeout(300)
def test_loads_beside_compactions_that_are_killed_lose_and_double_nothing(tmp_path: Path) -> None:
    catalog, context = add_catalog(tmp_path / "c"), multiprocessing.get_context("spawn")
    world = IcebergWorld(catalog, "zero")
    world.grow()
    world.load()
    storage = storage_of(world.table())
    loaders = [context.Process(target=keep_loading, args=(catalog, group)) for group in ("one", "two")]
    for loader in loaders:
        loader.start()
    try:
        while any(loader.is_alive() for loader in loaders):
            compactor = context.Process(target=keep_compacting, args=(catalog, "one"))
            compactor.start()
            eventually(
                lambda: bool(storage.names("_staging/compaction")) or not any(one.is_alive() for one in loaders), 120
            )
            compactor.kill()
            compactor.join()
    finally:
        for loader in loaders:
            loader.join(120)
            loader.kill()
    assert [loader.exitcode for loader in loaders] == [0, 0]
    with IcebergWorld(catalog, "one").opened(CrashPoint()) as site:
        site.compaction().run(NOW)
    table = world.table()
    found = table.scan(selected_fields=("load", "partition", "offset")).to_arrow().to_pylist()
    rows = Counter((row["load"].rsplit("-", 2)[0], row["partition"], row["offset"]) for row in found)
    assert set(rows.values()) == {1}
    assert Counter(group for group, _, _ in rows) == {"zero": 6, "one": 6 * LOADS, "two": 6 * LOADS}
    assert storage.names("_staging/compaction") == []
    named = table.inspect.all_data_files().column("file_path").to_pylist()
    assert all(storage.exists(path.removeprefix(table.location() + "/")) for path in named)
