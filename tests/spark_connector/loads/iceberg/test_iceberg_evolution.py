"""Schema evolution of Iceberg tables: columns are added and widened before a row is written, beside other loads."""

from __future__ import annotations

import datetime
import decimal
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import IntegerType, LongType, StringType

from broker.errors import ConfigError
from spark_connector.loads.grammar import Evolution
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_evolution import evolve_table
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_table import IcebergDestination
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.loads.request import Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from tests.support.table_harness import add_catalog

NONE, ADD, WIDEN = (Evolution.parse(text) for text in ("none", "add", "add,widen"))
Column = tuple[str, pa.DataType, Any]
A, B = ("a", pa.int64(), 1), ("b", pa.string(), "x")


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = open_catalog(add_catalog(tmp_path / "c"))
    yield opened
    opened.close()


def place_in(catalog: Catalog) -> IcebergPlace:
    return IcebergPlace(catalog, Target("iceberg:lake.rows", "g", catalog="c").check().iceberg_name)


def layout_of(rows: pa.Schema, load_id: str | None = None, policy: Evolution = WIDEN) -> FileLayout:
    schema = rows.append(pa.field("load", pa.string()))
    return FileLayout(schema, TableColumns.of((), rows), load_id, evolution=policy)


def load(
    catalog: Catalog,
    *columns: Column,
    group: str = "g",
    policy: Evolution = WIDEN,
    meanwhile: Callable[[], Any] = lambda: None,
) -> None:
    """Load one row with these columns (name, type, value); `meanwhile` happens before it is written."""
    place = place_in(catalog)
    site = IcebergDestination(place, IcebergCommitLog(place, group), group)
    number = site.log.newest().sequence
    range = LoadRange("t", 0, number, number + 1, number or None)
    load_id = str(LoadId(group, number + 1, secrets.token_hex(4)))
    record = LoadRecord(load_id, site.url, "iceberg", "table", 0, (range,))
    given = [*columns, ("topic", pa.string(), "t"), ("partition", pa.int32(), 0), ("offset", pa.int64(), number)]
    row = pa.RecordBatch.from_pylist([{name: value for name, _, value in given}], pa.schema([one[:2] for one in given]))
    directory = site.stage(record)
    layout = site.file_layout(record, layout_of(row.schema, load_id, policy))
    meanwhile()
    writer = FileWriter(layout, site.task_output(directory))
    writer.write(row)
    files = writer.close()
    site.commit(record.completed({range.tp: 1}, {file.name: file.size for file in files}), files, layout)


def column(catalog: Catalog, name: str) -> list[Any]:
    rows = catalog.load_table("lake.rows").scan().to_arrow().sort_by([("load", "ascending")])
    found: list[Any] = rows.column(name).to_pylist()
    return found


def test_a_new_column_is_null_in_older_rows_and_a_missing_one_in_newer(catalog: Catalog) -> None:
    load(catalog, A)
    load(catalog, A, B)
    load(catalog, B)
    assert column(catalog, "a") == [1, 1, None]
    assert column(catalog, "b") == [None, "x", "x"]


def test_types_grow_and_older_rows_keep_their_values(catalog: Catalog) -> None:
    cents = decimal.Decimal("1.25")
    load(catalog, ("a", pa.int32(), 1), ("f", pa.float32(), 0.5), ("d", pa.decimal128(5, 2), cents))
    load(catalog, ("a", pa.int64(), 1 << 40), ("f", pa.float64(), 0.1), ("d", pa.decimal128(20, 2), cents))
    load(catalog, ("a", pa.int32(), 3), ("f", pa.float32(), 0.25), ("d", pa.decimal128(5, 2), cents), policy=NONE)
    assert column(catalog, "a") == [1, 1 << 40, 3]
    assert column(catalog, "f") == [0.5, 0.1, 0.25]
    assert column(catalog, "d") == [cents] * 3


def test_a_field_is_added_to_a_struct_a_list_and_a_map_and_widened_there(catalog: Catalog) -> None:
    def nested(type: pa.DataType, value: dict[str, Any]) -> tuple[Column, ...]:
        lists, maps = pa.list_(type), pa.map_(pa.string(), type)
        return ("s", type, value), ("l", lists, [value]), ("m", maps, {"k": value})

    load(catalog, *nested(pa.struct([("x", pa.int32())]), {"x": 1}))
    load(catalog, *nested(pa.struct([("y", pa.date32()), ("x", pa.int64())]), {"y": None, "x": 1 << 40}))
    expected = [{"x": 1, "y": None}, {"x": 1 << 40, "y": None}]
    assert column(catalog, "s") == expected
    assert column(catalog, "l") == [[one] for one in expected]
    assert [dict(one)["k"] for one in column(catalog, "m")] == expected


@pytest.mark.parametrize(
    ("given", "policy", "message"),
    [
        ((A, B), NONE, r"no column 'b': add it \(schema_evolution=add does\)"),
        ((("a", pa.string(), "1"),), WIDEN, "'a' as long, not string: load into another table"),
        ((("A", pa.int64(), 1),), WIDEN, "has a column 'a', which is 'A' to Spark"),
        ((("a", pa.decimal128(5, 2), None), B), ADD, "'a' as long, not decimal"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_altered(
    catalog: Catalog, given: tuple[Column, ...], policy: Evolution, message: str
) -> None:
    load(catalog, A)
    before = catalog.load_table("lake.rows").metadata_location
    with pytest.raises(ConfigError, match=message):
        load(catalog, *given, policy=policy)
    assert catalog.load_table("lake.rows").metadata_location == before


def test_a_column_that_is_named_as_a_field_of_another_is_refused(catalog: Catalog) -> None:
    """To Iceberg `a.b` is both."""
    dotted, struct = ("a.b", pa.int64(), 1), ("a", pa.struct([("b", pa.int64())]), {"b": 1})
    with pytest.raises(ConfigError, match="cannot hold these columns.*a.b"):
        load(catalog, dotted, struct)
    load(catalog, struct)
    with pytest.raises(ConfigError, match="a.b"):
        load(catalog, dotted, struct)


def test_a_table_of_other_partitions_is_not_altered_for_a_load_that_is_refused(catalog: Catalog) -> None:
    load(catalog, A)
    with catalog.load_table("lake.rows").update_spec() as update:
        update.add_identity("a")
    with pytest.raises(ConfigError, match="is partitioned by a"):
        load(catalog, A, B)
    assert "b" not in catalog.load_table("lake.rows").schema().column_names


def test_a_load_that_ends_after_the_alteration_leaves_an_empty_column_only(catalog: Catalog) -> None:
    load(catalog, A)
    with pytest.raises(ZeroDivisionError):
        load(catalog, A, B, meanwhile=lambda: 1 // 0)
    assert column(catalog, "b") == [None]
    load(catalog, A, B)
    assert column(catalog, "b") == [None, "x"]


def test_two_groups_that_add_a_column_have_one(catalog: Catalog) -> None:
    load(catalog, A)
    load(catalog, A, B, meanwhile=lambda: load(catalog, A, B, ("c", pa.date32(), datetime.date.max), group="other"))
    assert catalog.load_table("lake.rows").schema().column_names.count("b") == 1
    assert sorted(column(catalog, "b"), key=str) == [None, "x", "x"]


@pytest.mark.parametrize(
    "rivals", [("b", StringType()), ("a", LongType()), ("z", IntegerType())], ids=lambda one: one[0]
)
def test_a_rival_that_alters_between_decision_and_alteration_keeps_its_column(
    catalog: Catalog, rivals: tuple[str, Any]
) -> None:
    load(catalog, ("a", pa.int32(), 1))
    stale = catalog.load_table("lake.rows")
    with catalog.load_table("lake.rows").update_schema() as update:
        name, type = rivals
        update.update_column(name, type) if name == "a" else update.add_column(name, type)
    layout = layout_of(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    place = place_in(catalog)
    after = evolve_table(place, stale, layout).schema()
    assert after.find_type("a") == LongType()
    assert {"a", "b", "load", rivals[0]} <= set(after.column_names)
    assert after.column_names.count("b") == 1
    assert catalog.load_table("lake.rows").schema() == after


def test_an_alteration_whose_answer_is_lost_is_found(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    load(catalog, A)
    commit = catalog.commit_table

    def lose(*arguments: Any) -> Any:
        commit(*arguments)
        raise OSError("the connection was reset")

    layout = layout_of(pa.schema([("a", pa.int64()), ("b", pa.string())]))
    monkeypatch.setattr(catalog, "commit_table", lose)
    evolve_table(place_in(catalog), catalog.load_table("lake.rows"), layout)
    assert catalog.load_table("lake.rows").schema().column_names.count("b") == 1
