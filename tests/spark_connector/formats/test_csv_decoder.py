"""CSV to columns: what from_csv does, and values that try to shift the rows of others."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.csv_decoder import CsvDecoder
from spark_connector.formats.schema_text import parse_ddl
from spark_connector.formats.value_decoder import Decoded


def decode(schema: str, *values: bytes | None, separator: str = ",") -> Decoded:
    decoded = CsvDecoder(parse_ddl(schema), separator).decode(pa.array(values, pa.binary()))
    assert decoded.column.type == parse_ddl(schema)
    assert len(decoded.column) == len(values)
    decoded.column.validate(full=True)
    return decoded


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("INT", "1", 1),
        ("INT", "+5", 5),
        ("INT", "", None),
        ("INT", '""', None),
        ("INT", " 1", "bad"),
        ("INT", "0x1", "bad"),
        ("INT", "1.0", "bad"),
        ("INT", "2147483648", "bad"),
        ("DOUBLE", "1e3", 1000.0),
        ("DOUBLE", "Inf", float("inf")),
        ("DOUBLE", "nan", "bad"),
        ("DOUBLE", "1d", 1.0),
        ("DOUBLE", "1df", "bad"),
        ("BOOLEAN", "TRUE", True),
        ("BOOLEAN", "1", "bad"),
        ("STRING", "", None),
        ("STRING", '""', None),
        ("STRING", " x ", " x "),
        ("STRING", '"a,b"', "a,b"),
        ("STRING", '"a""b"', 'a"b'),
        ("STRING", '"a\\"b"', 'a"b'),
        ("STRING", "a\\b", "a\\b"),
        ("STRING", 'a"b', 'a"b'),
        ("STRING", '"a', "bad"),
        ("STRING", '"a\nb"', "a\nb"),
        ("STRING", "NULL", "NULL"),
        ("DATE", "2024-02-29", dt.date(2024, 2, 29)),
        ("DATE", "2024-02-30", "bad"),
        ("TIMESTAMP", "2024-01-02T03:04:05Z", dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("TIMESTAMP", "2024-01-02 03:04", dt.datetime(2024, 1, 2, 3, 4, tzinfo=dt.UTC)),
        ("DECIMAL(5,2)", "1.235", Decimal("1.24")),
        ("DECIMAL(5,2)", "1234", "bad"),
        ("DECIMAL(7,2)", '"1,234.5"', Decimal("1234.50")),
    ],
)
def test_a_field(kind: str, text: str, expected: Any) -> None:
    decoded = decode(f"n INT, a {kind}, z STRING", b"1,x,y"[:2] + b",", f"7,{text},end".encode(), b"3,,")
    if expected == "bad":
        assert list(decoded.bad) == [1]
        assert decoded.column[1].as_py() is None
    else:
        assert not decoded.bad
        assert decoded.column[1].as_py() == {"n": 7, "a": expected, "z": "end"}
    assert decoded.column[2].as_py() == {"n": 3, "a": None, "z": None}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1,x", {"a": 1, "b": "x"}),
        (b"1,x\n", {"a": 1, "b": "x"}),
        (b"1,x\r\n", {"a": 1, "b": "x"}),
        (b",", {"a": None, "b": None}),
        (b"", {"a": None, "b": None}),
        (b"\n", {"a": None, "b": None}),
        (b"1", "bad"),
        (b"1,x,y", "bad"),
        (b"1,x\n2,y", "bad"),
        (b"1,\xff", "bad"),
        (b'1,"x', "bad"),
        (b'"', "bad"),
        (b"1,\0", {"a": 1, "b": "\0"}),
    ],
)
def test_a_value(value: bytes, expected: Any) -> None:
    decoded = decode("a INT, b STRING", b"5,before", value, b'6,"aft,er"', None)
    assert decoded.column[0].as_py() == {"a": 5, "b": "before"}
    assert decoded.column[1].as_py() == (None if expected == "bad" else expected)
    assert decoded.column[2].as_py() == {"a": 6, "b": "aft,er"}
    assert decoded.column[3].as_py() is None
    assert list(decoded.bad) == ([1] if expected == "bad" else [])


@pytest.mark.parametrize("value", [b'1,"x', b',"', b'1,x","y'])
def test_a_quote_that_nobody_closes_is_bad_in_the_last_value_too(value: bytes) -> None:
    for values in ([value], [b"5,before", value]):
        decoded = decode("a INT, b STRING", *values)
        assert list(decoded.bad) == [len(values) - 1]
        assert decoded.column[-1].as_py() is None


def test_a_single_column_and_another_separator() -> None:
    assert decode("a STRING", b"x", b'""', b"y").column.to_pylist() == [{"a": "x"}, {"a": None}, {"a": "y"}]
    assert decode("a STRING, b INT", b"x,y\t1", separator="\t").column.to_pylist() == [{"a": "x,y", "b": 1}]


def test_a_byte_order_mark_is_text_wherever_the_value_stands() -> None:
    marked = "\ufeffx,1".encode()
    assert decode("a STRING, b INT", marked, b"y,2", marked).column.to_pylist() == [
        {"a": "\ufeffx", "b": 1},
        {"a": "y", "b": 2},
        {"a": "\ufeffx", "b": 1},
    ]
    assert list(decode("a INT", "\ufeff1".encode(), b"2").bad) == [0]


HOSTILE = st.lists(
    st.sampled_from(['"', ",", "\n", "\r", "\\", "\0", "1", "x", '""', "é", " ", "\ufeff"]), max_size=8
).map(lambda parts: "".join(parts).encode())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(HOSTILE, st.binary(max_size=8)), min_size=1, max_size=6))
def test_no_value_shifts_another_or_is_read_otherwise_among_others(values: list[bytes]) -> None:
    marked = [part for n, value in enumerate(values) for part in (value, b"%d,mark" % (1000 + n))]
    decoded = decode("a INT, b STRING", *marked)
    rows = decoded.column.to_pylist()
    spoiled = decode("a INT, b STRING", *marked, b"bad")
    assert rows == spoiled.column.to_pylist()[:-1]
    assert [*decoded.bad, len(marked)] == list(spoiled.bad)
    for number, value in enumerate(values):
        assert rows[2 * number + 1] == {"a": 1000 + number, "b": "mark"}
        alone = decode("a INT, b STRING", value)
        assert rows[2 * number] == alone.column[0].as_py()
        assert (2 * number in decoded.bad) == bool(alone.bad)


def test_one_bad_record_among_many_is_found() -> None:
    values = [b"%d,x" % number for number in range(5000)]
    values[4321] = b"q,x"
    decoded = decode("a INT, b STRING", *values)
    assert list(decoded.bad) == [4321]
    assert "field a: 'q' is not a valid int32" in decoded.bad[4321]
    assert decoded.column[4999].as_py() == {"a": 4999, "b": "x"}
    assert decode("a INT, b STRING").column.to_pylist() == []


def test_csv_has_no_nested_fields() -> None:
    with pytest.raises(ConfigError, match="cannot hold field a"):
        CsvDecoder(parse_ddl("a ARRAY<INT>"))
    with pytest.raises(ConfigError, match="need a schema of fields"):
        CsvDecoder(pa.int32())
