"""Loads into a Delta table on stores that others wrote: Azure's emulator, whose condition is another, and moto."""

from __future__ import annotations

import functools
import secrets

import pytest

from broker.storage.storage import open_storage
from spark_connector.maintenance import history, rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import DeltaWorld, begun, check_whole, load_without_result


@pytest.fixture(params=["abfss", "s3"])
def world(request: pytest.FixtureRequest) -> DeltaWorld:
    fixture = {"abfss": "azure_options", "s3": "moto_options"}[request.param]
    url = f"{request.param}://lake/{secrets.token_hex(4)}"
    return begun(DeltaWorld(open_storage(url, request.getfixturevalue(fixture)), "group"))


def test_loads_follow_each_other_and_are_taken_back(world: DeltaWorld) -> None:
    assert world.load() is not None
    check_whole(world)
    first, second = (entry.record for entry in history(world.target).entries)
    assert rewind(world.target, first.load_id) is not None
    assert len(world.visible()) == first.rows
    again = world.load()
    assert again is not None
    assert again.rows == second.rows
    check_whole(world)


def test_of_two_loads_of_one_range_one_wins(world: DeltaWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    with pytest.raises(OffsetConflict, match=world.group):
        world.load(rival)
    check_whole(world)
