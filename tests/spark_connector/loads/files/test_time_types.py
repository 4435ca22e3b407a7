"""A directory of parquet files with INT96, as earlier versions wrote them by Spark, keeps it: all readers read all."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest

from broker.errors import ConfigError
from spark_connector.loads.record import LoadError
from tests.support.filter_cases import YEAR_10000
from tests.support.filter_tables import FilteredTable

TIMES = [1_700_000_000_123_456, -1, None]


def column(numbers: list[int | None], zone: str | None = "UTC") -> pa.Table:
    return pa.table({"at": pa.array(numbers, pa.int64()).cast(pa.timestamp("us", zone))})


@pytest.fixture
def table(tmp_path: Path) -> FilteredTable:
    """With one load, whose file is written anew as Spark writes it."""
    made = FilteredTable(tmp_path / "table", "parquet")
    made.load(column(TIMES))
    (path,) = files(made)
    rows = pyarrow.parquet.ParquetFile(path).read()
    pyarrow.parquet.write_table(rows, path, use_deprecated_int96_timestamps=True, store_schema=False)
    return made


def files(table: FilteredTable) -> list[Path]:
    return sorted(table.to.glob("load=*/*.parquet"))


def physical(path: Path) -> str:
    schema = pyarrow.parquet.ParquetFile(path).schema
    return str(schema.column(schema.names.index("at")).physical_type)


def test_a_later_load_writes_times_as_the_loads_before(table: FilteredTable) -> None:
    table.load(column(TIMES))
    table.load(column(TIMES))
    assert [physical(path) for path in files(table)] == ["INT96"] * 3
    pattern = f"{table.to}/load=*/*.parquet"
    by_polars = pl.scan_parquet(pattern).select(pl.col("at").dt.epoch("us")).collect()["at"].to_list()
    by_arrow = pyarrow.dataset.dataset(table.to, partitioning="hive").to_table(columns=["at"]).column("at")
    by_duckdb = duckdb.connect().execute(f'SELECT epoch_us("at") FROM read_parquet("{pattern}")').fetchall()
    assert by_polars == TIMES * 3
    assert by_arrow.cast(pa.timestamp("us")).cast(pa.int64()).to_pylist() == TIMES * 3
    assert [row[0] for row in by_duckdb] == TIMES * 3


def test_a_directory_of_our_own_has_microseconds(tmp_path: Path) -> None:
    made = FilteredTable(tmp_path / "table", "parquet")
    for _ in range(2):
        made.load(column([YEAR_10000]))
    assert [physical(path) for path in files(made)] == ["INT64"] * 2


def test_what_int96_cannot_hold_is_refused(table: FilteredTable) -> None:
    with pytest.raises(LoadError, match="at of the record at offset 4 of topic 't', partition 0, lies beyond"):
        table.load(column([0, YEAR_10000]))
    with pytest.raises(ConfigError, match="at is TIMESTAMP_NTZ, which INT96 cannot hold"):
        table.load(column([0], None))
    assert len(files(table)) == 1


def test_a_load_does_without_a_file_that_is_gone(table: FilteredTable) -> None:
    files(table)[0].unlink()
    table.load(column([YEAR_10000]))
    assert [physical(path) for path in files(table)] == ["INT64"]
