"""Loads into a Delta table on S3: faults of the store, processes that are killed, rivals, other writers beside.

A crash and a rival at every step: tests/spark_connector/loads/test_tables.py. With Spark: test_load_object_stores.py.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.errors import ConfigError
from broker.storage import storage
from broker.storage.storage import open_storage
from spark_connector.loads.record import LoadError
from spark_connector.maintenance import history, rewind
from tests.support.crashing import CrashPoint
from tests.support.fake_s3 import FakeS3, Fault
from tests.support.s3_load import start_load
from tests.support.table_harness import DeltaWorld, check_whole, load_without_result, rows_of, s3_world, with_load
from tests.support.waiting import eventually

COMMIT = r"_delta_log/0+2\.json"
"""The second load's. Version 0 is the creation of the table."""


@pytest.fixture
def world(s3: FakeS3) -> DeltaWorld:
    """A table with one load, and new data."""
    storage._probed.clear()
    return s3_world(s3)


def rival_of(world: DeltaWorld, group: str) -> DeltaWorld:
    return DeltaWorld(open_storage(world.output.url, world.output.options), group, world.ends)


def delta(world: DeltaWorld) -> DeltaTable:
    return DeltaTable(world.output.url, storage_options=world.output.object_store_options)


class TestFaults:
    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER, Fault.ERROR])
    @pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_a_commit_whose_answer_is_lost_is_neither_doubled_nor_lost(
        self, world: DeltaWorld, s3: FakeS3, fault: Fault, times: int
    ) -> None:
        s3.fault("PUT", COMMIT, fault, times)
        assert world.load() is not None
        check_whole(world)
        assert delta(world).version() == 2
        world.grow()
        world.load()
        check_whole(world)

    @pytest.mark.slow
    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER, Fault.ERROR])
    def test_so_is_every_other_step(self, world: DeltaWorld, s3: FakeS3, fault: Fault) -> None:
        for method, path in (
            ("PUT", "intent.json"),
            ("PUT", "part-"),
            ("PUT", "_delta_log"),
            ("POST", "delete"),
            ("GET", "_delta_log"),
            ("GET", "list-type"),
        ):
            s3.fault(method, path, fault)
            assert world.load() is not None, path
            check_whole(world, path)
            world.grow()

    @pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.ERROR_AFTER])
    def test_the_creation_of_the_table_may_lose_its_answer(self, s3: FakeS3, fault: Fault) -> None:
        s3.fault("PUT", r"_delta_log/0+0\.json", fault)
        world = s3_world(s3, begin=False)
        world.grow()
        assert world.load() is not None
        check_whole(world)

    def test_a_commit_that_is_denied_is_an_error_without_secrets(
        self, world: DeltaWorld, s3: FakeS3, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "pykafka")
        before = world.visible()
        s3.fault("PUT", COMMIT, Fault.DENIED, 50)
        with pytest.raises(LoadError) as raised:
            world.load()
        assert "hush-hush" not in str(raised.value) + caplog.text
        assert world.visible() == before


class TestKills:
    def test_a_load_that_is_killed_before_its_commit_is_loaded_again(self, world: DeltaWorld, s3: FakeS3) -> None:
        before = world.visible()
        s3.fault("PUT", "part-1", Fault.HELD)
        process = start_load(world)
        s3.wait_for_faults()
        process.kill()
        process.wait()
        assert world.visible() == before
        assert world.load() is not None
        check_whole(world)
        s3.release()

    def test_a_commit_that_arrives_after_its_process_died_counts(self, world: DeltaWorld, s3: FakeS3) -> None:
        s3.fault("PUT", COMMIT, Fault.HELD)
        process = start_load(world)
        s3.wait_for_faults()
        process.kill()
        process.wait()
        s3.release()
        wait_for(s3, "PUT", COMMIT)
        assert world.load() is None
        world.grow()
        world.load()
        check_whole(world)

    def test_a_commit_that_arrives_after_the_next_load_is_refused(self, world: DeltaWorld, s3: FakeS3) -> None:
        s3.fault("PUT", COMMIT, Fault.HELD)
        process = start_load(world)
        s3.wait_for_faults()
        process.kill()
        process.wait()
        assert world.load() is not None
        check_whole(world)
        s3.release()
        wait_for(s3, "PUT", COMMIT, 412)
        check_whole(world)

    def test_of_a_held_commit_and_a_rival_one_wins(self, world: DeltaWorld, s3: FakeS3) -> None:
        s3.fault("PUT", COMMIT, Fault.HELD)
        process = start_load(world)
        s3.wait_for_faults()
        assert world.load() is not None
        s3.release()
        assert process.wait() != 0
        world.grow()
        world.load()
        check_whole(world)


def wait_for(s3: FakeS3, method: str, path: str, status: int = 200) -> None:
    eventually(lambda: any(m == method and re.search(path, p) and code == status for m, p, code in s3.requests()))


class TestRivals:
    def test_of_many_loads_of_one_group_one_commits_each_number(self, world: DeltaWorld) -> None:
        processes = [start_load(world) for _ in range(3)]
        codes = [process.wait() for process in processes]
        assert 0 in codes
        world.load()
        check_whole(world)

    def test_loads_of_two_groups_both_commit(self, world: DeltaWorld) -> None:
        other = rival_of(world, "other")
        crash = CrashPoint(4, meanwhile=functools.partial(load_without_result, other))
        assert world.load(crash) is not None
        rows = world.visible()
        assert rows == sorted([*world.produced(), *other.produced()])

    def test_other_writers_append_and_optimize_meanwhile(self, world: DeltaWorld) -> None:
        record = world.load()
        assert record is not None
        world.grow()

        def others() -> None:
            table = delta(world)
            options = world.output.object_store_options
            rows = with_load(rows_of(record.ranges[0]), None)
            write_deltalake(table, rows, mode="append", storage_options=options)
            delta(world).optimize.compact()

        assert world.load(committing(world, others)) is not None
        rows = delta(world).to_pyarrow_table()
        ours = rows.filter(pa.compute.is_valid(rows.column("load")))
        assert rows.num_rows - ours.num_rows == record.ranges[0].size
        found = ours.select(["topic", "partition", "offset"]).to_pylist()
        assert sorted(tuple(row.values()) for row in found) == world.produced()


def committing(world: DeltaWorld, meanwhile: Any) -> CrashPoint:
    """Runs `meanwhile` right before the commit of the world's next load, whose steps a load of a copy counts."""
    return CrashPoint(_step_of_append(), meanwhile=meanwhile)


@functools.cache
def _step_of_append() -> int:
    with FakeS3() as s3:
        counting = CrashPoint()
        s3_world(s3).load(counting)
        return next(number for number, step in enumerate(counting.steps, 1) if step.startswith("append"))


class TestProbe:
    def test_a_store_that_overwrites_is_refused_before_a_row_is_written(self, s3: FakeS3) -> None:
        s3.reset(ignores_conditions=True)
        storage._probed.clear()
        world = s3_world(s3, begin=False)
        world.grow()
        with pytest.raises(ConfigError, match="ignores the condition"):
            world.load()
        assert s3.keys() == []

    def test_who_only_looks_writes_nothing(self, world: DeltaWorld, s3: FakeS3) -> None:
        storage._probed.clear()
        before = len(s3.requests())
        assert len(history(world.target).entries) == 1
        assert {method for method, _, _ in s3.requests()[before:]} <= {"GET", "HEAD"}

    def test_a_rewind_asks_too(self, world: DeltaWorld, s3: FakeS3) -> None:
        record = world.load()
        assert record is not None
        first = history(world.target).entries[0].record
        storage._probed.clear()
        assert rewind(world.target, first.load_id) is not None
        assert any("_probe-" in path for method, path, _ in s3.requests() if method == "PUT")
        assert len(world.visible()) == first.rows
        assert world.load() is not None
        check_whole(world)


def test_no_object_holds_a_secret(world: DeltaWorld, s3: FakeS3) -> None:
    world.load()
    filesystem = world.output._fs
    for key in sorted(s3.keys()):
        assert b"hush-hush" not in filesystem.cat_file(key), key
    assert "hush-hush" not in repr(world.target)
