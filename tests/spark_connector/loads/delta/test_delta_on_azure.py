"""Loads into a Delta table on Azure's emulator: the same commits as on S3, by another condition."""

from __future__ import annotations

import functools
import secrets

import pytest

from spark_connector.maintenance import history, rewind
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import open_storage
from tests.support.crashing import CrashPoint
from tests.support.table_harness import DeltaWorld, begun, check_whole, load_without_result


@pytest.fixture
def world(azure_options: dict[str, str]) -> DeltaWorld:
    return begun(DeltaWorld(open_storage(f"abfss://lake/{secrets.token_hex(4)}", azure_options), "group"))


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
