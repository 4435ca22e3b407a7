"""Each row of a loaded table is found by a filter of each of its values, whoever filters.

The judge is memory: what the engines find in a table, a directory or a snapshot is what the same filter finds in the
rows. `slow` has all values around those of the files with all operators.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions.literals import DoubleLiteral
from pyiceberg.types import FloatType
from pyspark.sql import SparkSession

from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from tests.support.filter_cases import CASES, Case, array
from tests.support.filter_engines import (
    OPS,
    Find,
    UnsayableError,
    delta_engines,
    iceberg_engines,
    is_known,
    oracles,
    parquet_engines,
    spark_condition,
    spark_finds,
)
from tests.support.filter_tables import FORMATS, FilteredTable
from tests.support.history_loads import CATALOG, use_catalog

_IN_MANIFESTS = ("beyond Python", "Iceberg", "NaN", "decimal(38,2)")


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")


def loaded(tmp_path: Path, case: Case, format: str) -> tuple[pa.Table, dict[str, Find]]:
    """The rows of a table with a file for each list of values, and how each engine finds some of them."""
    if format == "iceberg":
        use_catalog(tmp_path)
    table = FilteredTable(tmp_path / "table", format, CATALOG if format == "iceberg" else None)
    parts = [case.columns(file) for file in case.files]
    rows = pa.concat_tables(part.append_column("id", pa.array(table.load(part))) for part in parts)
    if format == "iceberg":
        return rows, iceberg_engines(open_catalog(CATALOG).load_table("lake.rows"))
    return rows, (delta_engines if format == "delta" else parquet_engines)(str(table.to))


def misses(rows: pa.Table, engines: dict[str, Find], values: Iterable[pa.Scalar], ops: Iterable[str]) -> str:
    """What the engines find that memory does not, or the other way round, a line each."""
    found = []
    for value in values:
        for op in ops:
            expected = oracles(rows, "c", op, value)
            for name, find in engines.items():
                if is_known(name, op, value):
                    continue
                try:
                    ids = find("c", op, value)
                except UnsayableError:
                    continue
                if ids not in expected:
                    found.append(f"{name}: c {op} {value}: {ids}, not {expected[0]}")
    return "\n".join(found)


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_a_delta_table_is_found_by_its_own_value(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rows, engines = loaded(tmp_path, case, "delta")
    assert misses(rows, engines, case.own_values(), ["="]) == ""
    assert misses(rows, engines, case.own_values()[:1], ["is null", "!="]) == ""


@pytest.mark.parametrize("name", [name for name in CASES if any(word in name for word in _IN_MANIFESTS)])
def test_each_row_of_an_iceberg_table_is_found_by_its_own_value(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rows, engines = loaded(tmp_path, case, "iceberg")
    assert misses(rows, engines, case.own_values(), ["="]) == ""


@pytest.mark.parametrize("name", ["double with NaN", "float with NaN"])
def test_no_file_with_nan_is_skipped_by_a_number_below(tmp_path: Path, name: str) -> None:
    """Spark, DuckDB and polars take NaN for above all numbers, and ask Iceberg which files to read."""
    loaded(tmp_path, CASES[name], "iceberg")
    table = open_catalog(CATALOG).load_table("lake.rows")
    for condition in ("c > 1.75", "c >= 2.0", "c is not nan and c != 7.0", "c is nan"):
        planned = {task.file.file_path for task in table.scan(row_filter=condition).plan_files()}
        skipped = [task.file for task in table.scan().plan_files() if task.file.file_path not in planned]
        assert [file.nan_value_counts for file in skipped if file.nan_value_counts != {2: 0}] == [], condition


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_a_directory_is_found_by_its_own_value(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    rows, engines = loaded(tmp_path, case, "parquet")
    assert misses(rows, engines, case.own_values(), ["=", "!="]) == ""


def test_spark_finds_each_row_of_a_directory_by_all_its_values(tmp_path: Path, spark: SparkSession) -> None:
    """A column for each case. One value for which Spark skips a file is enough to miss the row."""
    table = FilteredTable(tmp_path / "table", "parquet")
    parts = []
    for number in range(max(len(case.files) for case in CASES.values())):
        files = [case.files[number] if number < len(case.files) else [] for case in CASES.values()]
        rows = max(map(len, files))
        padded = [[*file, *[None] * (rows - len(file))] for file in files]
        columns = [array(case.type, file) for case, file in zip(CASES.values(), padded, strict=True)]
        parts.append(pa.table(columns, names=list(CASES)))
        table.load(parts[-1])
    rows = pa.concat_tables(parts)
    conditions = [_of_row(rows.slice(number, 1)) for number in range(rows.num_rows)]
    found = spark_finds(spark, str(table.to), conditions)
    assert [ids for number, ids in enumerate(found) if number not in ids] == []


def _of_row(row: pa.Table) -> str:
    parts = []
    for name in row.column_names:
        value = row.column(name)[0]
        with contextlib.suppress(UnsayableError):
            parts.append(spark_condition(name, "=" if value.is_valid else "is null", value))
    return " AND ".join(parts)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_spark_agrees_with_memory(tmp_path: Path, spark: SparkSession, name: str) -> None:
    case = CASES[name]
    rows, _ = loaded(tmp_path, case, "parquet")
    asked = []
    for value in case.values():
        for op in OPS:
            with contextlib.suppress(UnsayableError):
                if not is_known("Spark", op, value):
                    asked.append((spark_condition("c", op, value), oracles(rows, "c", op, value)))
    for batch in (asked[at : at + 40] for at in range(0, len(asked), 40)):
        found = spark_finds(spark, str(tmp_path / "table"), [condition for condition, _ in batch])
        for ids, (condition, expected) in zip(found, batch, strict=True):
            assert ids in expected, condition


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", CASES)
def test_filters_agree_with_memory(tmp_path: Path, name: str, format: str) -> None:
    case = CASES[name]
    rows, engines = loaded(tmp_path, case, format)
    assert misses(rows, engines, case.values(), OPS) == ""


def test_deltalake_takes_all_numbers_for_below_nan(tmp_path: Path) -> None:
    """Of a table of its own, too, and of bounds; in memory none is."""
    rows, below = pa.table({"c": [1.5, 2.5]}), pc.less(pc.field("c"), pa.scalar(math.nan))
    deltalake.write_deltalake(str(tmp_path / "t"), rows)
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_dataset().to_table(filter=below)
    assert (found.num_rows, rows.filter(below).num_rows) == (2, 0)


def test_pyiceberg_finds_no_infinite_float() -> None:
    """Its literal for a float32 takes infinity for a number above all floats, whatever the table."""
    assert repr(DoubleLiteral(math.inf).to(FloatType())) == "FloatAboveMax()"


def test_pyarrow_finds_no_zero_among_values(tmp_path: Path) -> None:
    """In a file of its own, too: the footer says that the least of 0.0 is -0.0."""
    zero, is_zero = pa.table({"c": [0.0]}), pc.field("c").isin([0.0])
    pq.write_table(zero, tmp_path / "zero.parquet")
    found = pa.dataset.dataset(tmp_path / "zero.parquet").to_table(filter=is_zero)
    assert (found.num_rows, zero.filter(is_zero).num_rows) == (0, 1)


def test_spark_skips_a_file_of_the_other_zero(tmp_path: Path, spark: SparkSession) -> None:
    """Of its own, too: it looks for the very bytes among a file's dictionary of values."""
    spark.sql("SELECT if(id % 2 = 0, CAST('-0.0' AS DOUBLE), -1.5D) AS c FROM range(0, 1000, 1, 1)").write.parquet(
        str(tmp_path / "zeros")
    )
    zeros = spark.read.parquet(str(tmp_path / "zeros"))
    assert (zeros.where("c = 0D").count(), zeros.where("abs(c) = 0D").count()) == (0, 500)
