"""Loads into a table of a REST catalog, whose server checks what a commit requires and may lose its answer."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.iceberg.iceberg_listing import list_tables
from spark_connector.loads.iceberg.iceberg_log import CommitUnknown
from tests.support.crashing import CrashPoint
from tests.support.iceberg_rest import RestCatalog, RestFault, rest_catalog
from tests.support.table_harness import IcebergWorld, begun, check_whole, load_without_result


@pytest.fixture
def rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path / "server") as server:
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__URI", server.uri)
        open_catalog("rest").create_namespace("lake")
        yield server


def test_a_load_is_fenced_by_the_server(rest: RestCatalog) -> None:
    world, other = IcebergWorld("rest", "g"), IcebergWorld("rest", "h")
    other.topic = "u"
    for one in (world, other):
        begun(one)
    world.load(CrashPoint(5, before=True, meanwhile=functools.partial(load_without_result, other)))
    assert world.visible() == sorted(world.produced() + other.produced())
    assert world.leftovers() == other.leftovers() == []
    assert 409 in rest.commits  # what the rival's commit made of ours, which was then made again


def test_a_load_that_dies_at_any_step_is_whole_after_the_next(rest: RestCatalog) -> None:
    world = IcebergWorld("rest", "g")
    begun(world)
    counted = CrashPoint()
    world.load(counted)
    for step in range(1, len(counted.steps) + 1):
        world.grow()
        with pytest.raises(BaseException, match=r"\w"):
            world.load(CrashPoint(step, before=step % 2 == 0))
        world.grow()
        world.load()
        check_whole(world, step)


@pytest.mark.parametrize("fault", RestFault)
def test_a_commit_whose_answer_is_an_error_is_neither_lost_nor_doubled(rest: RestCatalog, fault: RestFault) -> None:
    world = IcebergWorld("rest", "g")
    begun(world)
    rest.fail_commits(fault)
    if fault in (RestFault.ERROR, RestFault.BUSY):
        with pytest.raises(CommitUnknown, match="Nothing is deleted; the next load of the group finds out"):
            world.load()
    else:
        assert world.load() is not None
    assert rest.commits[-1] >= 409
    world.grow()
    world.load()
    check_whole(world)


def test_snapshots_are_expired_by_the_same_commit(rest: RestCatalog) -> None:
    world = IcebergWorld("rest", "g", keep_snapshots=2)
    begun(world)
    for _ in range(4):
        world.load()
        world.grow()
    world.load()
    assert len(world.table().metadata.snapshots) == 2
    check_whole(world)


def test_the_tables_of_a_namespace_are_listed(rest: RestCatalog) -> None:
    world = IcebergWorld("rest", "g")
    begun(world)
    assert [(one.table, one.group) for one in list_tables("rest", "lake")] == [("iceberg:lake.rows", "g")]
