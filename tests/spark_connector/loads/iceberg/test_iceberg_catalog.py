"""Which catalogs and tables a load takes, what it makes of them, and what it refuses with what to set."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import moto
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField as IcebergField
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from broker.errors import ConfigError
from spark_connector.destinations import existing_format, open_destination
from spark_connector.loads.grammar import parse_partition_by, parse_sort_by
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_schema import fitted_layout
from spark_connector.loads.iceberg.iceberg_table import IcebergDestination
from spark_connector.loads.record import LoadRange, LoadRecord, LoadTooLarge
from spark_connector.loads.request import LOAD_COLUMN, LoadRequest, Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.transforms import bind
from spark_connector.maintenance import targets
from tests.support.crashing import CrashPoint
from tests.support.table_harness import IcebergWorld, add_catalog, check_whole, iceberg_world, load_without_result

NESTED = pa.schema(
    [
        ("offset", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("order", pa.struct([("id", pa.int32()), ("lines", pa.list_(pa.struct([("price", pa.decimal128(9, 2))])))])),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
LOAD_ID = "g-000001-00000000"


@pytest.fixture
def catalog(tmp_path: Path) -> str:
    return add_catalog(tmp_path)


def set_catalog(patch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        patch.setenv(f"PYICEBERG_CATALOG__ODD__{name.upper().replace('_', '-')}", value)


def layout(schema: pa.Schema = NESTED, **others: Any) -> FileLayout:
    columns = schema.append(pa.field(LOAD_COLUMN, pa.string()))
    return FileLayout(columns, TableColumns.of((), schema), LOAD_ID, **others)


def record() -> LoadRecord:
    return LoadRecord(LOAD_ID, "iceberg:lake.t", "iceberg", "table", 0, (LoadRange("t", 0, 0, 1, None),))


def fitted(catalog: str, given: FileLayout) -> tuple[FileLayout, Table]:
    with open_destination(Target("iceberg:lake.t", "g", catalog=catalog).check()) as site:
        assert isinstance(site, IcebergDestination)
        made = site.file_layout(record(), given)
        table = site.log.table()
        assert table is not None
        return made, table


def ids(field: pa.Field) -> Iterator[tuple[str, int]]:
    yield field.name, int((field.metadata or {})[b"PARQUET:field_id"])
    type = field.type
    if pa.types.is_struct(type):
        inner = list(type)
    elif pa.types.is_map(type):
        inner = [type.key_field, type.item_field]
    else:
        inner = [type.value_field] if pa.types.is_list(type) else []
    for one in inner:
        yield from ids(one)


# --- catalogs


def test_a_catalog_that_is_not_configured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no catalog 'prod' is configured.*PYICEBERG_CATALOG__PROD__TYPE"):
        open_catalog("prod")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"type": "hadoop"}, "is of type hadoop, which commits by renaming a file"),
        ({"type": "in-memory"}, "of type in-memory.*sql, rest, glue, hive"),
        ({"type": "dynamodb"}, "of type dynamodb"),
        ({"py_catalog_impl": "own.Catalog"}, "of type py-catalog-impl"),
        ({"uri": "ftp://x"}, "Could not infer the catalog type"),
        ({"warehouse": "/tmp"}, "URI missing"),
    ],
)
def test_a_catalog_of_another_kind_is_refused(
    settings: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_catalog(monkeypatch, **settings)
    with pytest.raises(ConfigError, match=message):
        open_catalog("odd")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target("iceberg:lake.t", "g"), r"needs 'catalog' \(--catalog\)"),
        (Target("iceberg:t", "g", catalog="c"), "iceberg:NAMESPACE.TABLE"),
        (Target("iceberg:lake..t", "g", catalog="c"), "iceberg:NAMESPACE.TABLE"),
        (Target("/data", "g", format="iceberg", catalog="c"), "iceberg:NAMESPACE.TABLE"),
        (Target("iceberg:lake.t", "g", format="delta", catalog="c"), "format must be iceberg, not delta"),
        (Target("/data", "g", catalog="c"), r"catalog \(--catalog\) goes with format=iceberg"),
        (Target("/data", "g", keep_snapshots=3), r"keep_snapshots \(--keep-snapshots\) goes with"),
        (Target("iceberg:lake.t", "g", catalog="c", keep_snapshots=0), "at least 1, not 0"),
        (Target("iceberg:lake.t", "g", offsets="files", catalog="c"), "keeps its offsets in the table itself"),
    ],
)
def test_a_wrong_target_is_one_clear_error(target: Target, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        target.check()


def test_a_target_tells_its_format() -> None:
    checked = Target("iceberg:a.b.t", "g", catalog="c").check()
    assert (checked.format, checked.offsets, checked.iceberg_name.namespace) == ("iceberg", "table", "a.b")
    assert existing_format(checked) == "iceberg"
    request = LoadRequest.build(checked, bootstrap_servers="x:1", topic="t")
    assert request.format == "iceberg"


def test_the_groups_of_a_table_are_found(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path)
    found = targets("iceberg:lake.rows", catalog=world.catalog)
    assert [(one.group, one.format, one.offsets) for one in found] == [(world.group, "iceberg", "table")]


def test_glue_is_fenced_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("PYICEBERG_CATALOG__GLUE__TYPE", "glue")
    monkeypatch.setenv("PYICEBERG_CATALOG__GLUE__WAREHOUSE", f"file://{tmp_path}")
    with moto.mock_aws():
        open_catalog("glue").create_namespace("lake")
        world, other = IcebergWorld("glue", "g"), IcebergWorld("glue", "h")
        for one in (world, other):
            one.grow()
            one.load()
        world.grow()
        other.topic = "u"
        other.grow()
        world.load(CrashPoint(5, before=True, meanwhile=functools.partial(load_without_result, other)))
        assert world.visible() == sorted(world.produced() + other.produced())
        assert world.leftovers() == other.leftovers() == []
        monkeypatch.setattr(IcebergCommitLog, "MOST_GLUE", 100)
        world.grow()
        with world.opened(CrashPoint()) as site:
            planned = world.plan(site)
            assert planned is not None
            with pytest.raises(LoadTooLarge, match="Glue"):
                site.log.check(planned)


# --- tables


def test_the_first_load_makes_the_table(catalog: str) -> None:
    by = bind(parse_partition_by("day(at),bucket(4,offset)"), NESTED, "iceberg")
    made, table = fitted(catalog, layout(partition_by=by, sort_by=parse_sort_by("offset desc")))
    assert [(field.name, field.transform) for field in made.partition_by] == [
        ("at_day", "day"),
        ("offset_bucket", "bucket[4]"),
    ]
    assert [(field.name, str(field.field_type)) for field in table.schema().fields][:2] == [
        ("offset", "long"),
        ("at", "timestamptz"),
    ]
    assert not any(field.required for field in table.schema().fields)
    assert table.metadata.format_version == 2
    assert table.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert [str(field.transform) for field in table.spec().fields] == ["day", "bucket[4]"]
    assert [(field.source_id, str(field.direction)) for field in table.sort_order().fields] == [(1, "DESC")]


def test_tasks_write_the_field_ids_of_the_table(catalog: str) -> None:
    made, table = fitted(catalog, layout())
    found = [pair for field in made.schema for pair in ids(field)]
    lazy = {table.schema().find_column_name(number): name for name, number in found}
    assert len({number for _, number in found}) == len(found) == 15
    assert lazy["order.lines.element.price"] == "price"
    assert lazy["tags.value"] == "value"
    assert made.directories is False


def test_narrower_columns_are_written_in_the_types_of_the_table(catalog: str) -> None:
    schema = Schema(
        NestedField(1, "n", LongType(), required=False),
        NestedField(2, LOAD_COLUMN, StringType(), required=False),
        NestedField(3, "extra", IntegerType(), required=False),
    )
    open_catalog(catalog).create_table("lake.t", schema)
    made, _ = fitted(catalog, layout(pa.schema([("n", pa.int32())])))
    assert [(field.name, field.type) for field in made.schema] == [("n", pa.int64()), (LOAD_COLUMN, pa.string())]


def make_table(catalog: Catalog, what: str) -> None:
    fields = {"offset": NestedField(1, "offset", LongType()), LOAD_COLUMN: NestedField(2, LOAD_COLUMN, StringType())}
    spec = PartitionSpec()
    if what == "no load":
        del fields[LOAD_COLUMN]
    elif what == "load is a number":
        fields[LOAD_COLUMN] = NestedField(2, LOAD_COLUMN, LongType())
    elif what == "other case":
        fields["offset"] = NestedField(1, "Offset", LongType())
    elif what == "no column":
        del fields["offset"]
    elif what == "other type":
        fields["offset"] = NestedField(1, "offset", StringType())
    elif what == "required":
        fields["must"] = NestedField(3, "must", StringType(), required=True)
    elif what == "partitioned":
        spec = PartitionSpec(IcebergField(1, 1000, BucketTransform(4), "b"))
    catalog.create_table("lake.t", Schema(*fields.values()), partition_spec=spec)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no load", "has no column 'load'.*ALTER"),
        ("load is a number", "a column 'load' of its own, of type long"),
        ("other case", "has a column 'Offset', which is 'offset' to Spark"),
        ("no column", "has no column 'offset': add it .*, or leave it out"),
        ("other type", "has column 'offset' as string, not long"),
        ("required", "columns that a load cannot fill: must"),
        ("partitioned", r"is partitioned by bucket\(4, offset\): set partition_by"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused(catalog: str, what: str, message: str) -> None:
    make_table(open_catalog(catalog), what)
    with pytest.raises(ConfigError, match=message):
        fitted(catalog, layout(pa.schema([("offset", pa.int64())])))


def test_a_table_of_version_3_is_refused(catalog: str) -> None:
    """pyiceberg reads it, and cannot write it."""
    given = layout()
    _, table = fitted(catalog, given)
    newer = table.metadata.model_copy(update={"format_version": 3})
    with pytest.raises(ConfigError, match="format version 3"):
        fitted_layout(newer, given, "iceberg:lake.t")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (layout(pa.schema([("n", pa.duration("s"))])), "cannot hold these columns"),
        (layout(sort_by=parse_sort_by("nothing")), "sort_by.*names 'nothing'"),
    ],
)
def test_a_layout_that_iceberg_lacks_makes_no_table(catalog: str, given: FileLayout, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fitted(catalog, given)
    assert open_catalog(catalog).list_tables("lake") == []


def test_a_namespace_is_not_made(catalog: str) -> None:
    with (
        open_destination(Target("iceberg:sea.t", "g", catalog=catalog).check()) as site,
        pytest.raises(ConfigError, match="no namespace 'sea': create it"),
    ):
        site.file_layout(record(), layout())


def test_a_table_that_two_first_loads_make_is_one_table(tmp_path: Path) -> None:
    world = iceberg_world(tmp_path, begin=False)
    rival = IcebergWorld(world.catalog, "rival", {**world.ends})
    rival.topic = "u"
    world.grow()
    rival.grow()
    world.load(CrashPoint(1, before=True, meanwhile=functools.partial(load_without_result, rival)))  # create_table
    assert world.visible() == sorted(world.produced() + rival.produced())


def test_settings_of_catalogs_are_read_from_the_file_of_pyiceberg(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  of-file:\n    type: sql\n    uri: sqlite:///{tmp_path}/c.db\n    warehouse: file://{tmp_path}\n"
    )
    open_catalog("of-file").create_namespace("lake")
    world = IcebergWorld("of-file", "g")
    world.grow()
    world.load()
    check_whole(world)
    assert "PYICEBERG_CATALOG__OF-FILE__URI" not in os.environ


@pytest.mark.parametrize("text", ["", "lake", "catalog: lake", "catalog:\n  lake: sql", "catalog: [", "- a"])
def test_a_file_of_pyiceberg_that_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setattr(os, "environ", {name: of for name, of in os.environ.items() if "PYICEBERG_CATALOG" not in name})
    (tmp_path / ".pyiceberg.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"\.pyiceberg\.yaml"):
        open_catalog("lake")
