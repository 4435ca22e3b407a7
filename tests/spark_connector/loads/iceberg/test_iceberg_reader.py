"""Rows of data files as the table has them now; pyiceberg's own reader is the judge where it is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, StringType

from broker.errors import ConfigError
from spark_connector.loads.addresses import IcebergName
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_files import data_file
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_reader import read_file
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from tests.support.table_harness import add_catalog

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
ROWS: list[dict[str, Any]] = [
    {"n": 1, "headers": None, "map": [("x", {"key": "k", "value": b"v"})], "lists": None, "struct": {"key": "a"}},
    {"n": None, "headers": [], "map": None, "lists": [[1], None], "struct": None},
    {"n": 3, "headers": [{"key": None, "value": b"1"}, None], "map": [("y", None)], "lists": [[]], "struct": {}},
]
SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("headers", pa.list_(PAIR)),
        ("map", pa.map_(pa.string(), PAIR)),
        ("lists", pa.list_(pa.list_(pa.int32()))),
        ("struct", PAIR),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """One file, written as tasks write it."""
    catalog = open_catalog(add_catalog(tmp_path))
    table = catalog.create_table("lake.t", SCHEMA)
    path = f"{table.location()}/data/one.parquet"
    rows = pa.Table.from_pylist(ROWS, SCHEMA).cast(schema_to_pyarrow(table.schema()))
    with table.io.new_output(path).create() as sink:
        pyarrow.parquet.write_table(rows, sink, store_schema=False)
    footer = pyarrow.parquet.read_metadata(path.removeprefix("file://"))
    file = data_file(table.metadata, path, len(table.io.new_input(path)), footer, {}, 0)
    place = IcebergPlace(catalog, IcebergName.parse("iceberg:lake.t"))
    assert IcebergCommitLog(place, "g").replace_files(table, Change([file], operation=Operation.APPEND))
    return table.refresh()


def read(table: Table, columns: tuple[str, ...] = (), task: FileScanTask | None = None) -> list[dict[str, Any]]:
    schema = table.schema().select(*columns) if columns else table.schema()
    task = task or next(iter(table.scan().plan_files()))
    batches = read_file(table.metadata, table.io, schema, task)
    return [row for batch in batches for row in batch.to_pylist()]


def test_what_is_null_stays_null(table: Table) -> None:
    assert read(table) == pa.Table.from_pylist(ROWS, SCHEMA).to_pylist()
    assert read(table, ("n",)) == [{"n": 1}, {"n": None}, {"n": 3}]


def test_a_file_is_read_in_the_columns_of_now(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("headers.element.key", "name")
        update.rename_column("n", "number")
        update.update_column("n", LongType())
        update.add_column("extra", LongType())
        update.add_column(("struct", "more"), StringType())
    rows = read(table.refresh())
    assert [(row["number"], row["extra"]) for row in rows] == [(1, None), (None, None), (3, None)]
    assert [row["headers"] for row in rows] == [None, [], [{"name": None, "value": b"1"}, None]]
    assert rows[0]["struct"] == {"key": "a", "value": None, "more": None}
    names = ("number", "lists", "struct", "extra")
    assert read(table, names) == table.scan(selected_fields=names).to_arrow().select(names).to_pylist()


def test_a_file_with_deleted_rows_is_read_only_without_loss(table: Table) -> None:
    (task,) = table.scan().plan_files()
    beside = FileScanTask(task.file, delete_files={task.file})
    with pytest.raises(ConfigError, match="cannot tell a NULL in headers"):
        read(table, task=beside)
