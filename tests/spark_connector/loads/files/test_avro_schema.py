"""The Avro schema of a load's rows: what fastavro writes by it is what comes back."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from broker.errors import ConfigError
from spark_connector.loads.files.avro_files import avro_schema

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


@pytest.mark.parametrize("type", [pa.duration("us"), pa.map_(pa.int32(), pa.int32())])
def test_a_type_that_avro_lacks_is_refused(type: pa.DataType) -> None:
    with pytest.raises(ConfigError, match="avro output"):
        avro_schema(pa.schema([("value", type)]))
