"""Loads into an Iceberg table whose warehouse is on S3: the catalog commits, the files are objects."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from spark_connector.maintenance import history, rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import Crash, CrashPoint
from tests.support.fake_s3 import FakeS3
from tests.support.table_harness import IcebergWorld, add_catalog, begun, check_whole, load_without_result


@pytest.fixture
def world(s3: FakeS3, tmp_path: Path) -> IcebergWorld:
    catalog = add_catalog(
        tmp_path,
        "s3://lake/warehouse",
        s3__endpoint=s3.url,
        s3__access_key_id="me",
        s3__secret_access_key="hush-hush",
        s3__region="us-east-1",
    )
    return begun(IcebergWorld(catalog, f"group-{tmp_path.name}"[:40]))


def test_loads_follow_each_other_and_are_taken_back(world: IcebergWorld, s3: FakeS3) -> None:
    assert world.load() is not None
    check_whole(world)
    first, second = (entry.record for entry in history(world.target).entries)
    assert rewind(world.target, first.load_id) is not None
    assert len(world.visible()) == first.rows
    again = world.load()
    assert again is not None
    assert again.rows == second.rows
    check_whole(world)
    assert any(map(re.compile(r"warehouse/.*/data/.*\.parquet$").search, s3.keys()))


def test_of_two_loads_of_one_range_one_wins(world: IcebergWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    with pytest.raises(OffsetConflict, match=world.group):
        world.load(rival)
    check_whole(world)


def test_a_crash_right_before_the_commit_is_repaired(world: IcebergWorld) -> None:
    counting = CrashPoint()
    world.load(counting)
    step = next(number for number, one in enumerate(counting.steps, 1) if one.startswith("commit_table"))
    world.grow()
    with pytest.raises(Crash):
        world.load(CrashPoint(step))
    world.grow()
    assert world.load() is not None
    check_whole(world)
