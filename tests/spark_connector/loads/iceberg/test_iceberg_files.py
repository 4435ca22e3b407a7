"""The bounds of Iceberg's data files, by which readers skip them: never narrower than the values."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import NestedField, StringType

from spark_connector.loads.iceberg.iceberg_files import data_file

SCHEMA = Schema(NestedField(1, "text", StringType(), required=False))
METADATA = new_table_metadata(SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "file:///table")


def bounds(texts: list[str | None]) -> tuple[Any, Any]:
    """Those of a file with one row in each row group."""
    field = pa.field("text", pa.string(), metadata={"PARQUET:field_id": "1"})
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table([pa.array(texts, pa.string())], pa.schema([field])), file, row_group_size=1)
    footer = pyarrow.parquet.read_metadata(file)
    found = data_file(METADATA, "file:///table/a.parquet", len(file.getvalue()), footer, {}, 0)
    return dict(found.lower_bounds or {}), dict(found.upper_bounds or {})


@pytest.mark.parametrize("texts", [["x" * 5000, "a"], ["a", "x" * 5000], ["x" * 5000, "y" * 5000]])
def test_texts_that_are_too_long_for_parquet_have_no_bounds(texts: list[str | None]) -> None:
    assert bounds(texts) == ({}, {})


def test_a_row_group_of_nulls_does_not_take_the_bounds_away() -> None:
    assert bounds([None, "b", "a"]) == ({1: b"a"}, {1: b"b"})
