"""The tables of a catalog that loads write, as a function and a command list them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from broker.errors import ConfigError
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.maintenance import tables
from tests.support.console import answer_of, error_of
from tests.support.table_harness import IcebergWorld, add_catalog


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    """Two groups in one table, one in a namespace below another, a table without loads, and one that is damaged."""
    name = add_catalog(tmp_path / "c")
    opened = open_catalog(name)
    opened.create_namespace("lake.deep")
    opened.create_table("lake.foreign", Schema(NestedField(1, "id", LongType(), required=False)))
    for group, table in (
        ("one", "lake.rows"),
        ("two", "lake.rows"),
        ("one", "lake.deep.rows"),
        ("one", "lake.damaged"),
    ):
        world = IcebergWorld(name, group, name=f"iceberg:{table}")
        world.grow()
        world.load()
    with opened.load_table("lake.damaged").transaction() as change:
        change.set_properties({"pykafka.load.one": "{"})
    opened.close()
    return name


def test_every_group_of_every_table_is_listed_with_its_state(catalog: str) -> None:
    found = {(one.table, one.group): one for one in tables(catalog)}
    assert list(found) == [
        ("iceberg:lake.damaged", ""),
        ("iceberg:lake.deep.rows", "one"),
        ("iceberg:lake.rows", "one"),
        ("iceberg:lake.rows", "two"),
    ]
    assert "is not what a load has written" in found["iceberg:lake.damaged", ""].error
    deep, shared = found["iceberg:lake.deep.rows", "one"], found["iceberg:lake.rows", "two"]
    assert (deep.number, deep.rows, deep.files, deep.offsets) == (1, 6, 2, {"t": {0: 3, 1: 3}})
    assert deep.load_id.startswith("one-000001-")
    assert shared.rows == 12


def test_a_namespace_is_listed_with_those_below_it(catalog: str) -> None:
    assert [one.table for one in tables(catalog, "lake.deep")] == ["iceberg:lake.deep.rows"]
    with pytest.raises(ConfigError, match=f"catalog '{catalog}' has no namespace 'nowhere'"):
        tables(catalog, "nowhere")
    with pytest.raises(ConfigError, match="no catalog 'nobody' is configured"):
        tables("nobody")


def test_the_command_lists_them(catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    listed = json.loads(answer_of("loads", "--catalog", catalog, "--namespace", "lake", "--json"))
    assert [one["table"] for one in listed][-1] == "iceberg:lake.rows"
    text = answer_of("loads", "--catalog", catalog)
    assert "t (2)" in text
    assert "iceberg:lake.damaged cannot be read" in text
    assert "--namespace goes with --catalog" in error_of("loads", "--namespace", "lake", status=2)
