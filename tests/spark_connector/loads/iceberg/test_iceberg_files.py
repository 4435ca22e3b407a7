"""The bounds of Iceberg's data files, by which readers skip them: never narrower than the values."""

from __future__ import annotations

import io
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DateType, DecimalType, NestedField, PrimitiveType, StringType, TimestamptzType

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


TIMES = {
    "timestamp": (TimestamptzType(), pa.timestamp("us", "UTC"), [-(1 << 63), (1 << 63) - 1], "<q"),
    "date": (DateType(), pa.date32(), [-(1 << 31), 3_000_000], "<i"),
}


@pytest.mark.parametrize("name", TIMES)
def test_times_that_python_does_not_have_have_bounds(name: str) -> None:
    iceberg, arrow, numbers, packed = TIMES[name]
    column = pa.array(numbers, pa.int32() if name == "date" else pa.int64()).cast(arrow)
    found = added(iceberg, column)
    assert [found.lower_bounds[1], found.upper_bounds[1]] == [struct.pack(packed, number) for number in numbers]


def test_the_upper_bound_of_a_text_is_a_text() -> None:
    """U+D7FF is followed by U+E000, because surrogates are no characters."""
    text = "x" * 15 + "\ud7ff" + "tail"
    assert bounds([text])[1] == {1: ("x" * 15 + "\ue000").encode()}
    assert bounds(["x" * 14 + "\ud7ff" + "\U0010ffff" * 9])[1] == {1: ("x" * 14 + "\ue000").encode()}


def added(iceberg: PrimitiveType, column: pa.Array) -> Any:
    """A file of this column; each row is a row group."""
    field = pa.field("c", column.type, metadata={"PARQUET:field_id": "1"})
    metadata = new_table_metadata(
        Schema(NestedField(1, "c", iceberg, required=False)),
        UNPARTITIONED_PARTITION_SPEC,
        UNSORTED_SORT_ORDER,
        "file:///table",
    )
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table([column], pa.schema([field])), file, row_group_size=1)
    return data_file(metadata, "file:///table/a.parquet", 1, pyarrow.parquet.read_metadata(file), {}, 0)


DECIMALS = ["-1.50", "0.00", "1.27", "1.28", "-1.28", "-1.29", "9" * 36 + ".99", "-" + "9" * 36 + ".99"]


@pytest.mark.parametrize("text", DECIMALS)
def test_decimals_are_what_pyiceberg_writes(text: str) -> None:
    kind = DecimalType(38, 2)
    found = added(kind, pa.array([Decimal(text), Decimal("0.00")], pa.decimal128(38, 2)))
    expected = [to_bytes(kind, one) for one in sorted([Decimal(text), Decimal("0.00")])]
    assert [found.lower_bounds[1], found.upper_bounds[1]] == expected
