"""Loads into tables on the stores of others: Delta on the emulators of Azure and S3, Iceberg in a warehouse on S3."""

from __future__ import annotations

import functools
import re
import secrets
from pathlib import Path

import pytest

from broker.storage.storage import open_storage
from spark_connector.maintenance import history, rewind
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import Crash, CrashPoint
from tests.support.fake_s3 import FakeS3
from tests.support.table_harness import (
    CompactionWorld,
    DeltaWorld,
    IcebergWorld,
    add_catalog,
    begun,
    check_whole,
    load_without_result,
)


@pytest.fixture
def iceberg(s3: FakeS3, tmp_path: Path) -> IcebergWorld:
    catalog = add_catalog(
        tmp_path,
        "s3://lake/warehouse",
        s3__endpoint=s3.url,
        s3__access_key_id="me",
        s3__secret_access_key="hush-hush",
        s3__region="us-east-1",
    )
    return begun(IcebergWorld(catalog, f"group-{tmp_path.name}"[:40]))


@pytest.fixture(params=["abfss", "s3", "iceberg"])
def world(request: pytest.FixtureRequest) -> CompactionWorld:
    if request.param == "iceberg":
        world: IcebergWorld = request.getfixturevalue("iceberg")
        return world
    fixture = {"abfss": "azure_options", "s3": "moto_options"}[request.param]
    url = f"{request.param}://lake/{secrets.token_hex(4)}"
    return begun(DeltaWorld(open_storage(url, request.getfixturevalue(fixture)), "group"))


def test_loads_follow_each_other_and_are_taken_back(world: CompactionWorld) -> None:
    assert world.load() is not None
    check_whole(world)
    first, second = (entry.record for entry in history(world.target).entries)
    assert rewind(world.target, first.load_id) is not None
    assert len(world.visible()) == first.rows
    again = world.load()
    assert again is not None
    assert again.rows == second.rows
    check_whole(world)


def test_of_two_loads_of_one_range_one_wins(world: CompactionWorld) -> None:
    rival = CrashPoint(1, before=False, meanwhile=functools.partial(load_without_result, world))
    with pytest.raises(OffsetConflict, match=world.group):
        world.load(rival)
    check_whole(world)


def test_the_files_of_an_iceberg_table_are_objects(iceberg: IcebergWorld, s3: FakeS3) -> None:
    assert any(map(re.compile(r"warehouse/.*/data/.*\.parquet$").search, s3.keys()))


def test_a_crash_right_before_the_commit_is_repaired(iceberg: IcebergWorld) -> None:
    counting = CrashPoint()
    iceberg.load(counting)
    step = next(number for number, one in enumerate(counting.steps, 1) if one.startswith("commit_table"))
    iceberg.grow()
    with pytest.raises(Crash):
        iceberg.load(CrashPoint(step))
    iceberg.grow()
    assert iceberg.load() is not None
    check_whole(iceberg)
