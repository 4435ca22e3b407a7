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

from broker.errors import ConfigError
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


def reasons(kind: Any, column: pa.Array) -> dict[int, str]:
    made = one(kind, column)
    assert [row for row, value in enumerate(made.values.to_pylist()) if value is None] == list(made.bad)
    return dict(made.bad)


def test_what_the_schema_cannot_hold_is_a_bad_row_with_its_reason() -> None:
    null = "column a: null, but the schema has {} without null"
    assert reasons("int", pa.array([1, None, 2])) == {1: null.format("int")}
    assert reasons(["string"], pa.array(["a", None])) == {1: null.format("union of string")}
    assert reasons("int", pa.array([2**31, 5, -(2**31) - 1, None])) == {
        0: "column a: 2147483648 does not fit into an int",
        2: "column a: -2147483649 does not fit into an int",
        3: null.format("int"),
    }
    assert reasons(ENUM, pa.array(["X", "x", "y" * 99])) == {
        1: "column a: 'x' is not a symbol of enum E",
        2: f"column a: '{'y' * 60}…' is not a symbol of enum E",
    }
    assert reasons(ENUM, pa.array([b"\xff", b"X"]).view(pa.string())) == {
        0: "column a: '\ufffd' is not a symbol of enum E"
    }
    assert reasons(FIXED, pa.array([b"abcd", b"abc"])) == {0: "column a: 4 bytes do not fit into a fixed of 3"}
    wide = pa.array([Decimal("99.99"), Decimal("-100.00"), Decimal("100.00")], pa.decimal128(10, 2))
    assert reasons(decimal("bytes", 4, 2), wide) == {
        1: "column a: -100.00 does not fit into a decimal of 4 digits, 2 of them behind the point",
        2: "column a: 100.00 does not fit into a decimal of 4 digits, 2 of them behind the point",
    }
    all_digits = pa.array([Decimal("0.99"), Decimal("-1.00")], pa.decimal128(38, 2))
    assert list(reasons(decimal("fixed", 2, 2, name="D", size=1), all_digits)) == [1]


def test_a_bad_value_deep_in_a_row_is_of_that_row_and_harms_no_neighbour() -> None:
    kind = {"type": "array", "items": json.loads(record(x={"type": "map", "values": "int"})) | {"name": "Q"}}
    good: list[Any] = [{"x": [("k", 1), ("l", 2)]}, {"x": []}]
    column = pa.array(
        [good, None, [*good, {"x": [("k", 2**40)]}], [None], [], good],
        pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.int64()))])),
    )
    made = one(["null", kind], column)
    assert dict(made.bad) == {
        2: f"column a[].x[]: {2**40} does not fit into an int",
        3: "column a[]: null, but the schema has record Q without null",
    }
    (right,) = theirs(record(a=["null", kind]), [{"a": [{"x": {"k": 1, "l": 2}}, {"x": {}}]}])
    assert made.values.to_pylist() == [right, b"\0", None, None, b"\2\0", right]


def test_columns_find_their_fields_by_name_whatever_the_case() -> None:
    one, two = pa.array([1], pa.int32()), pa.array(["x"])
    schema = record(a="int", b=["string", "null"], c=["null", "long"])
    assert encoded(schema, {"B": two, "A": one}).values.to_pylist() == [b"\2\0\2x\0"]
    assert encoded(record(a="int", A="string"), {"A": two, "a": one}).values.to_pylist() == [b"\2\2x"]
    more: dict[str, pa.Array] = {"a": one, "z": two}
    for columns, said in [
        ({"b": two}, "Field a of Avro's record R has no column, and it cannot be null"),
        (more, "Column z has no field in Avro's record R: leave it out"),
        ({"a": one, "A": one}, "Columns a and A are both of field a"),
        ({"a": two}, "Column a of type string cannot be written as Avro's int: cast it"),
    ]:
        with pytest.raises(ConfigError, match=said):
            encoded(schema, columns)
    outer = record(s=json.loads(record(aB="int", AB="int"))).replace('"R"', '"S"', 1)
    with pytest.raises(ConfigError, match="Column s.ab may be aB or AB of Avro's record R: rename it"):
        encoded(outer, {"s": pa.array([{"ab": 1}])})


STAMP = pa.array([NOON, OLD], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ("float", pa.array([0.1])),
        ("double", pa.array([1])),
        ("string", pa.array([b"x"])),
        ("bytes", pa.array(["x"])),
        ("boolean", pa.array([1])),
        (decimal("bytes", 5, 1), pa.array([Decimal("1.25")])),
        (decimal("bytes", 38, 30), pa.array([Decimal("1.2")], pa.decimal128(38, 1))),
        ("bytes", pa.array([Decimal("1.25")])),
        ({"type": "long", "logicalType": "local-timestamp-micros"}, STAMP),
        ({"type": "long", "logicalType": "timestamp-nanos"}, STAMP),
        ("int", STAMP),
        ("long", pa.array([DAY])),
        ("long", pa.array([1], pa.uint64())),
        ("long", pa.array([1], pa.timestamp("ns"))),
        ({"type": "map", "values": "int"}, pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32()))),
        ({"type": "array", "items": "int"}, pa.array([1])),
        ("int", pa.array([[1]])),
        (["int", "string"], pa.array([1])),
        (["int", "string"], pa.array([{"member1": "a", "member0": 1}])),
        ("null", pa.array([1])),
        ("int", pa.nulls(1)),
    ],
    ids=str,
)  # fmt: skip
def test_types_that_differ_are_refused_before_any_row(kind: Any, column: pa.Array) -> None:
    with pytest.raises(ConfigError, match="cannot be written as Avro's"):
        one(kind, column)


def test_a_time_is_rounded_down_to_the_unit_of_the_schema() -> None:
    for kind in ("long", {"type": "long", "logicalType": "timestamp-millis"}):
        millis = [{"a": int(NOON.timestamp() * 1000)}, {"a": -1}]
        assert one(kind, STAMP).values.to_pylist() == theirs(record(a="long"), millis)


def test_a_column_of_nulls_fits_any_field_that_can_be_null() -> None:
    assert one(["int", "null"], pa.nulls(2)).values.to_pylist() == [b"\2", b"\2"]
    assert one("null", pa.nulls(2)).values.to_pylist() == [b"", b""]
    assert one(["null"], pa.nulls(1)).values.to_pylist() == [b"\0"]


def test_a_schema_that_is_no_record_is_that_of_the_only_column() -> None:
    texts = pa.array(["a", None, "bc"])
    assert encoded('"string"', {"id": texts}, b"p").values.to_pylist() == [b"p\2a", None, b"p\4bc"]
    assert encoded('["null", "string"]', {"id": texts}).values.to_pylist() == [b"\2\2a", None, b"\2\4bc"]
    made = encoded('"int"', {"id": pa.array([None, 1, 2**31])})
    assert (made.values.to_pylist(), dict(made.bad)) == (
        [None, b"\2", None],
        {2: "column id: 2147483648 does not fit into an int"},
    )
    with pytest.raises(ConfigError, match="A row of type struct.* cannot be written as Avro's string"):
        encoded('"string"', {"a": texts, "b": texts})


def test_a_row_that_is_null_is_a_null_value_and_no_rows_are_none() -> None:
    schema = AvroSchema(json.dumps(["null", json.loads(record(a="int"))]))
    rows = pa.array([None, {"a": 1}, None, {"a": 2**31}], pa.struct([("a", pa.int64())]))
    made = AvroEncoder(schema, rows.type).encode(rows)
    assert (made.values.to_pylist(), list(made.bad)) == ([None, b"\2\2", None, None], [3])
    for none in (rows[:0], rows[:1]):
        assert AvroEncoder(schema, rows.type, b"x").encode(none).values.to_pylist() == [None] * len(none)
    assert encoded(record(), {}, b"x").values.to_pylist() == []


def test_a_union_of_many_types_takes_the_first_member_that_is_not_null() -> None:
    fixed = [{"type": "fixed", "name": f"F{number}", "size": 1} for number in range(80)]
    members = [(f"member{number}", pa.binary()) for number in range(80)]
    rows = [{"member79": b"z"}, {"member1": b"a", "member70": b"b"}, {}, None]
    made = one(fixed, pa.array(rows, pa.struct(members)))
    assert made.values.to_pylist() == [b"\x9e\1z", b"\2a", None, None]
    assert set(made.bad.values()) == {
        "column a: all members of a union without null are null",
        "column a: null, but the schema has union of "
        + ", ".join(f"fixed F{n}" for n in range(8))
        + " and 72 more without null",
    }
    made = one([*fixed, "null"], pa.array(rows, pa.struct(members)))
    assert made.values.to_pylist() == [b"\x9e\1z", b"\2a", b"\xa0\1", b"\xa0\1"]


def test_a_record_that_contains_itself_is_written_as_deep_as_the_columns_go() -> None:
    schema = record(a="int", next=["null", "R"])
    rows = [{"a": 1, "next": {"a": 2}}, {"a": 3, "next": None}]
    deep = pa.array(rows, pa.struct([("a", pa.int32()), ("next", pa.struct([("a", pa.int32())]))]))
    made = AvroEncoder(AvroSchema(schema), deep.type).encode(deep)
    assert made.values.to_pylist() == [b"\2\2\4\0", b"\6\0"]
