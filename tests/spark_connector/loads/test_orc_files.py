"""ORC files are those that Spark's own writer writes of the same rows. Spark reads both."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.orc_files import orc_of
from spark_connector.loads.record import LoadError
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import StorageOutput
from spark_connector.loads.tasks.transforms import bind
from spark_connector.loads.tasks.written_file import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MICROSECONDS = [-62_135_596_800_000_000, -12_219_292_800_000_001, -1_500_000, -1_000_001, 0, 1, 1_700_000_000_123_456]
"""From the year 1; before and after the Gregorian calendar and 1970, with fractions of a second."""
WORDS = ["", "Köln", "0", " ", "a/b=%20", "x", "x"]
ROWS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "byte": pa.array([-128, 127, 0, 1, 2, 3, 4, None], pa.int8()),
        "short": pa.array([-(2**15), 2**15 - 1, 0, 1, 2, 3, 4, None], pa.int16()),
        "number": pa.array([-0.0, float("nan"), float("inf"), 1e-300, 1.5, 2.0, 3.0, None], pa.float64()),
        "flag": pa.array([True, False, None, True, False, True, False, None], pa.bool_()),
        "at": pa.array([*MICROSECONDS, None], pa.timestamp("us", "UTC")),
        "local": pa.array([*MICROSECONDS, None], pa.timestamp("us")),
        "day": pa.array(
            [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(1969, 12, 31), *[date(2026, 1, 2)] * 3, None]
        ),
        "price": pa.array(
            [Decimal("-1.00"), Decimal("99999999.99"), *[Decimal("0.10")] * 5, None], pa.decimal128(10, 2)
        ),
        "large": pa.array([Decimal(10**37), Decimal(-1), *[Decimal(0)] * 5, None], pa.decimal128(38, 0)),
        "bytes": pa.array([b"", b"\x00\xff", *[b"x"] * 5, None], pa.binary()),
        "word": pa.array([*WORDS, None], pa.string()),
        "list": pa.array([[], [None], ["a", None], *[["b"]] * 4, None], pa.list_(pa.string())),
        "map": pa.array([[], [("k", None)], *[[("a", 1), ("b", 2)]] * 5, None], pa.map_(pa.string(), pa.int32())),
        "part": pa.array(
            [{"a": None, "b": []}, *[{"a": datetime(1969, 12, 31, 23, 59, 58, 1, UTC), "b": [{"c": 1}]}] * 6, None],
            pa.struct([("a", pa.timestamp("us", "UTC")), ("b", pa.list_(pa.struct([("c", pa.int64())])))]),
        ),
        "topic": pa.array(["t"] * 8, pa.string()),
        "partition": pa.array([0] * 8, pa.int32()),
        "offset": pa.array(range(8), pa.int64()),
    }
)


def written(root: Path, partition_by: str | None = None) -> tuple[FileLayout, StorageOutput, list[WrittenFile]]:
    """The rows as tasks write them, in two files at least."""
    columns = TableColumns.of((), ROWS.schema)
    layout = FileLayout(ROWS.schema, columns, partition_by=bind(parse_partition_by(partition_by), ROWS.schema, "orc"))
    output, files = StorageOutput(f"file://{root}", {}, "_staging/a{b}? #/attempts"), list[WrittenFile]()
    for part in (ROWS.slice(0, 3), ROWS.slice(3)):
        writer = FileWriter(layout, output)
        for batch in part.to_batches():
            writer.write(batch)
        files += writer.close()
    lost = FileWriter(layout, output)  # of an attempt that does not count
    lost.write(ROWS.to_batches()[0])
    lost.close()
    return layout, output, files


@pytest.mark.parametrize("partition_by", [None, "topic,partition"])
def test_they_hold_what_spark_s_own_writer_writes(
    spark: SparkSession, tmp_path: Path, partition_by: str | None
) -> None:
    layout, output, files = written(tmp_path / "ours", partition_by)
    sizes = orc_of(spark, layout, output, files, "data of one", {"compression": "zstd"})
    assert sizes == {name: (tmp_path / "ours/data of one" / name).stat().st_size for name in sizes}
    own = spark.createDataFrame(ROWS, from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True))
    own.write.partitionBy(*partition_by.split(",") if partition_by else []).orc(str(tmp_path / "spark"))
    ours, theirs = (spark.read.orc(str(tmp_path / name)) for name in ("ours/data of one", "spark"))
    assert ours.schema == theirs.schema
    rows = [str(frame.orderBy("id").toArrow().to_pylist()) for frame in (ours, theirs)]  # NaN equals nothing
    assert rows[0] == rows[1]
    assert ours.inputFiles()[0].endswith(".zstd.orc")


def test_rows_that_got_lost_are_missed(spark: SparkSession, tmp_path: Path) -> None:
    layout, output, files = written(tmp_path)
    more = [count._replace(rows=count.rows + 1) for count in files[0].counts]
    with pytest.raises(LoadError, match=r"have written 9 rows, but the ORC files hold 8\. If executors run on other"):
        orc_of(spark, layout, output, [dataclasses.replace(files[0], counts=tuple(more)), *files[1:]], "data", {})
