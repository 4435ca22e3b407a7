"""Compaction as a service and as a person calls for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.errors import ConfigError
from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.record import LoadResult
from spark_connector.loads.request import Target
from spark_connector.maintenance import TableCare, compact
from tests.support.console import answer_of, error_of
from tests.support.table_harness import DeltaWorld, check_whole, delta_world

NOW = CompactionOptions(rewindable_s=0)


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    """Three loads of two files each."""
    world = delta_world(tmp_path)
    world.load_more(2)
    return world


def result(load_id: str | None) -> LoadResult:
    return LoadResult("g", "out", "delta", load_id, None, 0, ())


def test_a_service_compacts_after_every_so_many_loads(world: DeltaWorld) -> None:
    said: list[str] = []
    care = TableCare(world.target, 2, NOW, say=said.append, warn=pytest.fail)
    for load_id, expected in (("a", 6), (None, 6), ("b", 1)):
        care.loaded(result(load_id))
        assert len(world.files()) == expected
    assert said[0].startswith("Compacted 6 files (")
    assert "into 1 (" in said[0]
    assert "with 18 rows" in said[0]
    care.loaded(result("c"))
    care.loaded(result("d"))
    assert len(said) == 1


def test_a_failure_of_a_compaction_is_told_and_ends_nothing(world: DeltaWorld) -> None:
    warned: list[str] = []
    care = TableCare(world.target, 1, NOW, say=pytest.fail, warn=warned.append)
    for path in Path(world.output.url.removeprefix("file://")).glob(f"{world.group}-*/*.parquet"):
        path.unlink()
    care.loaded(result("a"))
    assert warned[0].startswith("Cannot compact, the next time again: ")


@pytest.mark.parametrize("format", ["parquet", "sql"])
def test_only_tables_of_files_are_compacted(tmp_path: Path, format: str) -> None:
    to = {"parquet": str(tmp_path), "sql": f"sqlite:///{tmp_path}/x.db#t"}[format]
    with pytest.raises(ConfigError, match=r"compact_every \(--compact-every\) is for delta"):
        TableCare(Target(to, "g").check(), 1, NOW, say=print, warn=print)


def test_a_person_compacts_by_function_and_by_command(world: DeltaWorld) -> None:
    words = ("--to", world.target.to, "--group", world.group, "--format", "delta")
    assert compact(world.target, rewindable="100000d") == CompactionResult()
    assert "Nothing to compact." in answer_of("loads", "compact", *words, "--rewindable", "100000d")
    done = json.loads(answer_of("loads", "compact", *words, "--json"))
    assert (done["files_before"], done["files_after"], done["rows"]) == (6, 1, 18)
    world.load()
    check_whole(world)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rewindable", "soon"], "--rewindable must be like 30s"),
        (["--target-file-size", "big"], "--target-file-size must be a size"),
    ],
)
def test_what_makes_no_sense_is_refused(world: DeltaWorld, words: list[str], message: str) -> None:
    given = ("--to", world.target.to, "--group", world.group, "--format", "delta")
    assert message in error_of("loads", "compact", *given, *words, status=2)
    assert len(world.files()) == 6
