"""The statistics of Delta's add actions: bounds of every type, all or none, in the first columns or those that the
table names. That readers make of them what they should is in ../test_filters.py."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_connector.destinations import open_destination
from spark_connector.loads.delta.delta_statistics import TableStatistics
from spark_connector.loads.tasks import file_writer
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.written_file import WrittenFile
from tests.support.filter_cases import CASES, LAST, NAN
from tests.support.filter_tables import FilteredTable

_POSITION = {"topic": "t", "partition": 0, "offset": 0}


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives those of a file with these columns; each row is a row group."""
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 1)

    def of(columns: pa.Table, table: pa.Schema | None = None, /, **configuration: str) -> str:
        described = TableStatistics(table or columns.schema, ["p"], {f"delta.{k}": v for k, v in configuration.items()})
        return described.of(_written(tmp_path, columns))

    return of


def _written(tmp_path: Path, columns: pa.Table) -> WrittenFile:
    rows = columns
    for name, value in _POSITION.items():
        rows = rows.append_column(name, pa.array([value] * rows.num_rows))
    layout = FileLayout(columns.schema, TableColumns.of((), rows.schema))
    writer = FileWriter(layout, StorageOutput(f"file://{tmp_path}", {}, secrets.token_hex(4)))
    for start in range(rows.num_rows):
        writer.write(rows.slice(start, 1).combine_chunks().to_batches()[0])
    (file,) = writer.close()
    return file


BOUNDS = {
    "tinyint": (-128, 1),
    "boolean": (True, True),
    "float": (-0.0, 1.100000023841858),
    "decimal(9,2)": (-9999999.99, 1.5),
    "date": ("0001-01-01", "1970-01-01"),
    "timestamp": ("1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.235Z"),
    "timestamp in 9999": ("1970-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999999Z"),
    "timestamp_ntz": ("1970-01-01T00:00:00.000", "1970-01-01T00:00:01.235"),
    "text": ("a", "b"),
    "text that is cut": ("a", "x" * 127 + "y"),
    "text without bounds in parquet": ("a", "x" * 127 + "y"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_of_a_type(statistics: Any, name: str) -> None:
    case = CASES[name]
    found = json.loads(statistics(case.columns(case.files[0])))
    low, high = BOUNDS[name]
    nulls = sum(one is None for one in case.files[0])
    assert found == {
        "numRecords": len(case.files[0]),
        "minValues": {"c": low},
        "maxValues": {"c": high},
        "nullCount": {"c": nulls},
    }


def test_numbers_have_all_their_digits_and_texts_are_in_utf_8(statistics: Any) -> None:
    case = CASES["decimal(38,2)"]
    text = statistics(case.columns(case.files[0]))
    assert '"maxValues":{"c":999999999999999999999999999999999999.99}' in text
    assert f'"c":"{LAST}"' in statistics(pa.table({"c": [LAST]}))
    assert '"c":"Infinity"' in statistics(pa.table({"c": [1.0, float("inf")]}))


@pytest.mark.parametrize("text", ["x" * 127 + "\ud7ff" + "t", "x" * 126 + "\ud7ff" + LAST + "t"])
def test_what_follows_a_text_is_a_text(statistics: Any, text: str) -> None:
    """The character after U+D7FF is U+E000: between them are surrogates, which UTF-8 does not have."""
    high = json.loads(statistics(pa.table({"c": [text]})))["maxValues"]["c"]
    assert high.endswith("\ue000")
    assert high > text


BEYOND = {
    "a date beyond Python": pa.array([3_000_000], pa.int32()).cast(pa.date32()),
    "a time beyond Python": pa.array([1 << 62]).cast(pa.timestamp("us")),
    "NaN": pa.array([NAN]),
    "the last text of all": pa.array([LAST * 129]),
    "bytes that are no text": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_file_has_all_bounds_or_none(statistics: Any, what: str) -> None:
    """deltalake's dataset would skip a file of which it misses one."""
    found = json.loads(statistics(pa.table({"id": [1], "c": BEYOND[what]})))
    assert found == {"numRecords": 1, "nullCount": {"id": 0, "c": 0}}


def test_fields_of_structs_and_columns_that_the_file_does_not_have(statistics: Any) -> None:
    inner = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    rows = pa.table({"s": pa.array([{"x": 1, "y": NAN}, None], inner), "a.b": [7, 8], "l": [[1], None]})
    table = pa.schema([*rows.schema, ("new", pa.string()), ("p", pa.int32())])
    assert json.loads(statistics(rows, table)) == {
        "numRecords": 2,
        "minValues": {"s": {"x": 1}, "a.b": 7},
        "maxValues": {"s": {"x": 1}, "a.b": 8},
        "nullCount": {"s": {"x": 1, "y": 1}, "a.b": 0, "new": 2},
    }


def test_a_row_group_of_nulls_does_not_take_the_bounds_away(statistics: Any) -> None:
    found = json.loads(statistics(pa.table({"text": [None, "b", "a"]})))
    assert found == {"numRecords": 3, "minValues": {"text": "a"}, "maxValues": {"text": "b"}, "nullCount": {"text": 1}}


def test_the_first_columns_are_described_or_those_that_the_table_names(statistics: Any) -> None:
    rows = pa.table({f"c{number:02d}": [number] for number in range(40)})
    rows = rows.add_column(0, "s", pa.array([{f"f{number}": number for number in range(40)}]))

    def described(**configuration: str) -> list[str]:
        return list(json.loads(statistics(rows, **configuration))["nullCount"])

    assert described() == ["s", *(f"c{number:02d}" for number in range(31))]
    assert described(dataSkippingNumIndexedCols="3") == ["s", "c00", "c01"]
    assert len(described(dataSkippingNumIndexedCols="-1")) == 41
    assert described(dataSkippingStatsColumns="c39, `c07`,s.f3") == ["s", "c07", "c39"]


def test_bounds_of_other_writers_that_python_does_not_have_block_nothing(tmp_path: Path) -> None:
    """deltalake itself writes such, and cannot make a dataset of the table then."""
    table = FilteredTable(tmp_path / "table", "delta")
    far = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    table.load(pa.table({"on": far}))
    others = pa.table({"id": [7], "on": far, "topic": ["t"], "partition": pa.array([0], pa.int32()), "offset": [7]})
    write_deltalake(str(table.to), others.append_column("load", pa.nulls(1, pa.string())), mode="append")
    with open_destination(table.target) as site:
        assert len(site.snapshot(()).files) == 2
        compaction = site.compaction()
        assert compaction is not None
        opened = compaction.table()
        _, parts = compaction.rows_of(opened, compaction.files(opened))
        assert sum(part.num_rows for part in parts) == 2
    table.load(pa.table({"on": far}))
