"""Columns to Avro data, against fastavro, which Confluent's serializer uses; test_avro_spark.py has Spark as judge."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from spark_connector.formats.avro_encoder import AvroEncoder
from spark_connector.formats.value_encoder import Encoded
from spark_connector.formats.value_format import AvroSchema

DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)
OLD = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)


def record(**types: Any) -> str:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def encoded(schema: str, columns: dict[str, pa.Array], prefix: bytes = b"") -> Encoded:
    rows = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    return AvroEncoder(AvroSchema(schema), rows.type, prefix).encode(rows)


def one(kind: Any, column: pa.Array) -> Encoded:
    return encoded(record(a=kind), {"a": column})


def theirs(schema: str, rows: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(json.loads(schema))
    made = []
    for row in rows:
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, parsed, row)
        made.append(stream.getvalue())
    return made


FIXED = {"type": "fixed", "name": "F", "size": 3}
ENUM = {"type": "enum", "name": "E", "symbols": ["X", "Y", "Z"]}


def decimal(kind: str, precision: int, scale: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": "decimal", "precision": precision, "scale": scale, **more}


CASES: list[tuple[Any, pa.DataType, list[Any]]] = [
    ("boolean", pa.bool_(), [True, False]),
    ("int", pa.int8(), [-128, 127, 0]),
    ("int", pa.int16(), [-(2**15), 2**15 - 1]),
    ("int", pa.int32(), [-(2**31), 2**31 - 1, 63, 64, -64, -65]),
    ("int", pa.int64(), [-(2**31), 2**31 - 1]),
    ("long", pa.int32(), [5, -5]),
    ("long", pa.int64(), [-(2**63), 2**63 - 1, 2**55 - 1, 2**55]),
    ("float", pa.float32(), [1.5, float("inf")]),
    ("double", pa.float64(), [0.1, -0.0]),
    ("double", pa.float32(), [1.5]),
    ("string", pa.string(), ["", "é", "x" * 100_000]),
    ("string", pa.large_string(), ["", "é"]),
    ({"type": "string", "logicalType": "uuid"}, pa.string(), ["4c2a4ea2-5c5e-4cd6-a6f1-50b8f1a1e7a5"]),
    ("bytes", pa.binary(), [b"", b"\0\xff"]),
    (FIXED, pa.binary(), [b"abc"]),
    (ENUM, pa.string(), ["Z", "X"]),
    ({"type": "int", "logicalType": "date"}, pa.date32(), [DAY, dt.date(1, 1, 1)]),
    ({"type": "long", "logicalType": "timestamp-micros"}, pa.timestamp("us", "UTC"), [NOON, OLD]),
    (decimal("bytes", 10, 2), pa.decimal128(10, 2), [Decimal("1.28"), Decimal("-1.27"), Decimal("-1.29"), Decimal()]),
    (decimal("bytes", 38, 0), pa.decimal128(38, 0), [Decimal(10**38 - 1), Decimal(-(10**38) + 1), Decimal(-(2**120))]),
    (decimal("fixed", 10, 2, name="D", size=5), pa.decimal128(10, 2), [Decimal("-1.28"), Decimal("99999999.99")]),
    (decimal("fixed", 10, 2, name="D", size=20), pa.decimal128(10, 2), [Decimal("-1.28"), Decimal("1.28")]),
    (decimal("bytes", 12, 4), pa.decimal128(5, 2), [Decimal("1.28"), Decimal("-999.99")]),
    ({"type": "array", "items": "long"}, pa.list_(pa.int64()), [[], [1, 300], list(range(100))]),
    ({"type": "array", "items": ["null", "string"]}, pa.list_(pa.string()), [[None, "a"], [], ["bc", None]]),
    ({"type": "array", "items": {"type": "array", "items": "int"}}, pa.list_(pa.list_(pa.int32())), [[[1], []], []]),
    ({"type": "map", "values": "int"}, pa.map_(pa.string(), pa.int32()), [{}, {"a": 1, "é": 2}]),
    (["string"], pa.string(), ["a"]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arrow", "values"), CASES, ids=lambda one: str(one)[:60])
def test_a_column_is_encoded_as_by_fastavro(kind: Any, arrow: pa.DataType, values: list[Any]) -> None:
    column = pa.array([list(one.items()) if isinstance(one, dict) else one for one in values], arrow)
    rows = [{"a": value} for value in values]
    assert one(kind, column).values.to_pylist() == theirs(record(a=kind), rows)
    assert one(kind, pa.concat_arrays([column, column])[len(column) :]).values.to_pylist() == theirs(
        record(a=kind), rows
    )
    if isinstance(kind, list):
        return
    for union, nulls in ((["null", kind], b"\0"), ([kind, "null"], b"\2")):
        some = pa.concat_arrays([pa.nulls(1, arrow), column, pa.nulls(2, arrow)])
        made = one(union, some)
        branch = b"\2" if nulls == b"\0" else b"\0"
        expected = [branch + raw for raw in theirs(record(a=kind), rows)]
        assert made.values.to_pylist() == [nulls, *expected, nulls, nulls]
        assert not made.bad


def test_a_decimal_has_as_few_bytes_as_javas() -> None:
    """fastavro takes one more for a negative power of 256's half."""
    column = pa.array([Decimal("-1.28"), Decimal("-327.68")], pa.decimal128(10, 2))
    assert one(decimal("bytes", 10, 2), column).values.to_pylist() == [b"\x02\x80", b"\x04\x80\x00"]
