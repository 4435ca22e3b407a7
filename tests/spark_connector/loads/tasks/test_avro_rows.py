"""Avro as tasks write it: the rows and the schema that fastavro would have written, for fastavro and polars."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, cast

import fastavro
import polars
import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.loads.tasks.avro_rows import AvroRows, avro_schema
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.write_options import FILES

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
ROW: list[tuple[str, Any, Any]] = [
    ("key", pa.binary(), b"k"),
    ("partition", pa.int32(), 1),
    ("offset", pa.int64(), 2**40),
    ("timestamp", pa.timestamp("us", "UTC"), datetime(2026, 11, 21, 1, 2, 3, 4, UTC)),
    ("headers", HEADERS, [{"key": "h", "value": b"v"}, None]),
    (
        "value",
        pa.struct([("a", pa.struct([("b", pa.float64())])), ("list", pa.list_(pa.struct([("b", pa.string())])))]),
        {"a": {"b": 0.5}, "list": [{"b": "x"}]},
    ),
    ("map", pa.map_(pa.string(), pa.int32()), {"x": 1}),
    ("money", pa.decimal128(10, 2), Decimal("1.25")),
    ("day", pa.date32(), date(2026, 11, 21)),
    ("flag", pa.bool_(), True),
]


def test_every_type_comes_back() -> None:
    schema: Any = avro_schema(pa.schema([(name, type) for name, type, _ in ROW]))
    file = io.BytesIO()
    full = {name: value for name, _, value in ROW}
    fastavro.writer(file, schema, [full, dict.fromkeys(full)])
    file.seek(0)
    assert list(fastavro.reader(file)) == [full, dict.fromkeys(full)]


def written(rows: pa.Table, codec: str = "snappy") -> io.BytesIO:
    layout = FileLayout(rows.schema, TableColumns.of((), rows.schema), format="avro", compression=codec)
    file = io.BytesIO()
    rows_file = AvroRows(file, rows.schema, layout, frozenset())
    rows_file.write(rows.slice(0, 1))
    rows_file.write(rows.slice(1))
    assert rows_file.close().rows == rows.num_rows
    file.seek(0)
    return file


@pytest.mark.parametrize("codec", FILES["avro"].suffixes)
def test_the_rows_are_those_that_fastavro_writes(codec: str) -> None:
    schema = pa.schema([pa.field(name, type) for name, type, _ in ROW])
    full = {name: value for name, _, value in ROW}
    rows = pa.Table.from_pylist([full, dict.fromkeys(full), full], schema)
    expected: Any = io.BytesIO()
    fastavro.writer(expected, cast(Any, avro_schema(schema)), [full], codec=codec)
    expected.seek(0)
    reader = fastavro.reader(written(rows, codec))
    assert reader.metadata == fastavro.reader(expected).metadata
    assert list(reader) == [full, dict.fromkeys(full), full]


def test_names_may_be_what_they_like() -> None:
    """Blanks, and names that differ by case alone: a read may give them."""
    inner = pa.struct([("a", pa.int64()), ("A", pa.int64()), ("a b", pa.string())])
    rows = pa.table({"x y": pa.array([{"a": 1, "A": 2, "a b": "c"}], inner)})
    header = fastavro.block_reader(written(rows)).metadata["avro.schema"]
    assert [field["name"] for field in json.loads(header)["fields"][0]["type"][1]["fields"]] == ["a", "A", "a b"]


def test_a_file_has_blocks_that_readers_can_begin_at() -> None:
    rows = pa.table({"id": pa.array(range(50_000), pa.int64()), "text": pa.array(["some text"] * 50_000)})
    file = written(rows)
    blocks = [(block.num_records, block.size) for block in fastavro.block_reader(file)]
    assert sum(count for count, _ in blocks) == 50_000
    assert 10 < len(blocks) < 30
    file.seek(0)
    assert polars.read_avro(file)["id"].to_list() == list(range(50_000))


def test_a_record_beyond_the_size_of_a_block_has_its_own() -> None:
    values = [b"", b"x" * 100_000, b"y", b"z" * 200_000]
    found = list(fastavro.reader(written(pa.table({"value": pa.array(values, pa.binary())}), "null")))
    assert [row["value"] for row in found] == values  # type: ignore[index, call-overload]


@pytest.mark.parametrize("type", [pa.duration("us"), pa.map_(pa.int32(), pa.int32())])
def test_a_type_that_avro_lacks_is_refused(type: pa.DataType) -> None:
    with pytest.raises(ConfigError, match="avro output"):
        avro_schema(pa.schema([("value", type)]))
