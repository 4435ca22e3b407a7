"""JSON as tasks write it, beside the files of Spark's own writer for the same rows: the same bytes."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.json_rows import JsonRows
from spark_connector.loads.write_options import FILES, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NESTED = pa.struct([("at", pa.timestamp("us", "UTC")), ("names", pa.list_(pa.string()))])
MICROS = [0, -1_000, 1_384_000_000_123_456, -62_135_596_800_000_000, 253_402_300_800_000_000, None]
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    'a "name" \\ ä\t': (pa.string(), ["", 'q"\\/\b\f\n\r\t\x00\x1f\x7f\u2028', "ä€𝄞", "</script>", " ", None]),
    "key": (pa.binary(), [b"", b"\x00\xff", b"abc", b"abcd", b"a" * 100, None]),
    "offset": (pa.int64(), [0, -1, 2**63 - 1, -(2**63), 10, None]),
    "tiny": (pa.int8(), [0, -1, 127, -128, 10, None]),
    "real": (pa.float64(), [math.nan, math.inf, -math.inf, -0.0, 1e-7, None]),
    "single": (pa.float32(), [math.nan, 0.1, 1e10, 1e-10, 3.0, None]),
    "money": (pa.decimal128(38, 10), [Decimal(0), Decimal("1E-10"), Decimal("-12.5"), Decimal(7), Decimal(10), None]),
    "flag": (pa.bool_(), [True, False, None, True, False, None]),
    "day": (pa.date32(), [0, -719_162, 2_932_896, -1, 20_000, None]),
    "timestamp": (pa.timestamp("us", "UTC"), MICROS),
    "local": (pa.timestamp("us"), MICROS),
    "value": (
        NESTED,
        [{"at": 1_384_000_000_000_000, "names": ["x", None]}, {"at": None, "names": []}, {}, None, {"at": 0}, None],
    ),
    "scores": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], [('"', 0)], None, [("", 1)], None]),
    "empty": (pa.string(), [None] * 6),
}
ROWS = pa.table(
    {name: pa.array(values, type) for name, (type, values) in COLUMNS.items()},
    schema=pa.schema([(name, type) for name, (type, _) in COLUMNS.items()]),
)


def written(rows: pa.Table, options: dict[str, str], zone: str = "UTC") -> bytes:
    made = parse_write_options("json", options)
    layout = FileLayout(
        rows.schema,
        TableColumns.of((), rows.schema),
        format="json",
        compression=made.codec,
        text=made.text,
        time_zone=made.time_zone or zone,
    )
    file = io.BytesIO()
    rows_file = JsonRows(file, rows.schema, layout, frozenset())
    rows_file.write(rows.slice(0, 4))
    rows_file.write(rows.slice(4))
    assert rows_file.close().rows == rows.num_rows
    return file.getvalue()


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignoreNullFields": "false"},
        {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSSXX", "timestampNTZFormat": "yyyy", "dateFormat": "dd.MM.yyyy"},
        {"timeZone": "Asia/Kolkata"},
    ],
    ids=lambda options: "-".join(options) or "defaults",
)
def test_spark_s_own_writer_writes_the_same_bytes(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], zone: str
) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        types = from_arrow_schema(ROWS.schema, prefer_timestamp_ntz=True)
        frame = spark.createDataFrame(ROWS, types).coalesce(1)
        frame.write.options(**options).json(str(tmp_path / "spark"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    (by_spark,) = (tmp_path / "spark").glob("part-*")
    assert written(ROWS, options, zone).decode() == by_spark.read_bytes().decode()


@pytest.mark.parametrize("codec", FILES["json"].suffixes)
def test_spark_reads_every_codec(spark: SparkSession, tmp_path: Path, codec: str) -> None:
    """Blocks of Hadoop's codecs have an end, and rows go on beyond it."""
    rows = pa.table({"id": pa.array(range(40_000)), "text": ["some text"] * 40_000})
    (tmp_path / f"part{FILES['json'].suffixes[codec]}").write_bytes(written(rows, {"compression": codec}))
    found = spark.read.schema("id bigint, text string").json(str(tmp_path))
    assert found.selectExpr("count(text)", "sum(id)", "count(distinct id)").collect() == [
        (40_000, sum(range(40_000)), 40_000)
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"compression": "brotli"}, "one of none, gzip, bzip2, deflate, snappy, lz4, zstd"),
        ({"lineSep": "x"}, "takes the write options dateFormat, .* and 'compression'"),
        ({"ignoreNullFields": "maybe"}, "must be true or false, not 'maybe'"),
        ({"timestampFormat": "EEEE"}, "'timestampFormat': 'EEEE' cannot be written"),
        ({"timeZone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is not known"),
    ],
)
def test_write_options_that_json_does_not_have(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        written(ROWS, options)
