"""The statistics of Delta, by which readers skip files: never wrong, and none rather than an error."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from spark_connector.loads.footers import delta_statistics


def statistics(rows: pa.Table) -> Any:
    """Those of a file with one row in each row group."""
    file = io.BytesIO()
    pyarrow.parquet.write_table(rows, file, row_group_size=1)
    return json.loads(delta_statistics(pyarrow.parquet.read_metadata(file)))


@pytest.mark.parametrize("texts", [["x" * 5000, "a"], ["a", "x" * 5000], ["x" * 5000, "y" * 5000]])
def test_texts_that_are_too_long_for_parquet_have_no_bounds(texts: list[str]) -> None:
    expected = {"numRecords": 2, "minValues": {"id": 1}, "maxValues": {"id": 2}, "nullCount": {"text": 0, "id": 0}}
    assert statistics(pa.table({"text": texts, "id": [1, 2]})) == expected


def test_a_row_group_of_nulls_does_not_take_the_bounds_away() -> None:
    found = statistics(pa.table({"text": [None, "b", "a"]}))
    assert found == {"numRecords": 3, "minValues": {"text": "a"}, "maxValues": {"text": "b"}, "nullCount": {"text": 1}}


def test_a_column_is_not_taken_for_a_field_of_the_same_path() -> None:
    rows = pa.table({"a": [{"b": 1}], "a.b": [7], "c": [3]})
    assert statistics(rows) == {"numRecords": 1, "minValues": {"c": 3}, "maxValues": {"c": 3}, "nullCount": {"c": 0}}
