"""JSON to columns: what from_json does, and values that try to shift the rows of others."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.errors import ConfigError
from spark_connector.formats.json_decoder import JsonDecoder
from spark_connector.formats.schema_text import parse_ddl
from spark_connector.formats.value_decoder import Decoded
from tests.support.source_tree import ROOT

A_AND_B = "a INT, b STRING"


def decode(schema: str, *values: bytes | None) -> Decoded:
    decoded = JsonDecoder(parse_ddl(schema)).decode(pa.array(values, pa.binary()))
    assert decoded.column.type == parse_ddl(schema)
    assert len(decoded.column) == len(values)
    decoded.column.validate(full=True)
    return decoded


def one(schema: str, value: str | bytes) -> Any:
    """What becomes of a value, alone and among others alike; "bad" for a bad one."""
    raw = value.encode() if isinstance(value, str) else value
    others = [b'{"zzz":1}', b'{"zzz":"2"}']
    alone, among = decode(schema, raw), decode(schema, others[0], raw, others[1], None)
    spoiled = decode(schema, raw, b'{"a":"x","a":{},"a":[[{"spoils":1}]]}')
    assert repr(spoiled.column[0].as_py()) == repr(alone.column[0].as_py())
    assert (0 in spoiled.bad) == bool(alone.bad)
    empty = dict.fromkeys(parse_ddl(schema)[i].name for i in range(parse_ddl(schema).num_fields))
    assert among.column[0].as_py() == among.column[2].as_py() == empty
    assert among.column[3].as_py() is None
    assert list(among.bad) == [1] * len(alone.bad)
    assert repr(alone.column[0].as_py()) == repr(among.column[1].as_py())
    return "bad" if alone.bad else alone.column[0].as_py()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("INT", "1", 1),
        ("INT", "-0", 0),
        ("INT", "null", None),
        ("INT", "1.0", "bad"),
        ("INT", "1e2", "bad"),
        ("INT", '"1"', "bad"),
        ("INT", "true", "bad"),
        ("INT", "2147483648", "bad"),
        ("BIGINT", "9223372036854775807", 2**63 - 1),
        ("BIGINT", "9223372036854775808", "bad"),
        ("TINYINT", "128", "bad"),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "1e5", 1e5),
        ("DOUBLE", '"Infinity"', float("inf")),
        ("DOUBLE", '"INF"', "bad"),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DOUBLE", "1e999", float("inf")),
        ("DOUBLE", "-0", 0.0),
        ("DOUBLE", '"1.5"', "bad"),
        ("FLOAT", "1.5", 1.5),
        ("BOOLEAN", "true", True),
        ("BOOLEAN", '"true"', "bad"),
        ("BOOLEAN", "1", "bad"),
        ("STRING", '"\\u00e9\\n"', "é\n"),
        ("STRING", "12", "12"),
        ("STRING", "1.50", "1.50"),
        ("STRING", "false", "false"),
        ("STRING", '{"x": [1, 2]}', '{"x":[1,2]}'),
        ("STRING", '"\\ud800"', "bad"),
        ("STRING", '"a } b {"', "a } b {"),
        ("STRING", '"}"', "}"),
        ("DATE", '"2024-02-29"', dt.date(2024, 2, 29)),
        ("DATE", '"2024-2-9"', dt.date(2024, 2, 9)),
        ("DATE", '"2023-02-29"', "bad"),
        ("DATE", "19000", "bad"),
        ("TIMESTAMP", '"2024-01-02T03:04:05Z"', dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-01-02 03:04:05.123456789+02:00"', dt.datetime(2024, 1, 2, 1, 4, 5, 123456, tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-01-02T03:04:05"', dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-07-02T03:04:05 Europe/Paris"', dt.datetime(2024, 7, 2, 1, 4, 5, tzinfo=dt.UTC)),
        ("TIMESTAMP", "17", dt.datetime(1970, 1, 1, 0, 0, 17, tzinfo=dt.UTC)),
        ("TIMESTAMP", '"2024-01-02T25:00:00Z"', "bad"),
        ("TIMESTAMP", '"0000-01-01"', "bad"),
        ("TIMESTAMP_NTZ", '"2024-01-02T03:04:05.5"', dt.datetime.fromisoformat("2024-01-02T03:04:05.5")),
        ("TIMESTAMP_NTZ", '"2024-01-02T03:04:05Z"', "bad"),
        ("DECIMAL(5,2)", "1.5", Decimal("1.50")),
        ("DECIMAL(5,2)", '"1.5"', Decimal("1.50")),
        ("DECIMAL(5,2)", "1.235", Decimal("1.24")),
        ("DECIMAL(5,2)", "1e2", Decimal("100.00")),
        ("DECIMAL(5,2)", "999.995", "bad"),
        ("DECIMAL(5,2)", "1e99999999", "bad"),
        ("DECIMAL(38,10)", "7174052484902763121e13", "bad"),
        ("BINARY", '"AAE="', b"\0\1"),
        ("BINARY", '"!"', "bad"),
        ("ARRAY<INT>", "[1,null]", [1, None]),
        ("ARRAY<INT>", '{"x":1}', "bad"),
        ("ARRAY<DATE>", '["2024-01-01",null]', [dt.date(2024, 1, 1), None]),
        ("STRUCT<x:DATE,y:INT>", '{"y":1,"q":2}', {"x": None, "y": 1}),
        ("STRUCT<x:DATE,y:INT>", "[]", "bad"),
        ("MAP<STRING,INT>", '{"x":1,"y":null}', [("x", 1), ("y", None)]),
        ("MAP<STRING,INT>", '{"x":"1"}', "bad"),
    ],
)
def test_a_field(kind: str, text: str, expected: Any) -> None:
    assert one(f"a {kind}", f'{{"a":{text}}}') == (expected if expected == "bad" else {"a": expected})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"{}", {"a": None, "b": None}),
        (b' \n{"a":1}\r\n', {"a": 1, "b": None}),
        (b'{\n"a"\n:\n1\n}', {"a": 1, "b": None}),
        (b'{"c":{"a":5},"a":1}', {"a": 1, "b": None}),
        (b'{"a":1,"a":2}', {"a": 2, "b": None}),
        (b'{"A":1}', {"a": None, "b": None}),
        (b"null", "bad"),
        (b"", None),
        (b" \n", None),
        (b"5", "bad"),
        (b'"x"', "bad"),
        (b"[]", "bad"),
        (b'[{"a":1}]', "bad"),
        (b'{"a":1', "bad"),
        (b'{"a":1,}', "bad"),
        (b'{"a":01}', "bad"),
        (b"{'a':1}", "bad"),
        (b'{"b":"x\ny"}', "bad"),
        (b'{"b":"x\ty"}', "bad"),
        (b'{"b":"\xff"}', "bad"),
        (b'{"\xff":1}', "bad"),
        (b'\xef\xbb\xbf{"a":1}', "bad"),
        (b'{"a":1}\0', "bad"),
        (b'{"a":1}{"a":2}', "bad"),
        (b'{"a":1}\n{"a":2}', "bad"),
        (b"{} null {}", "bad"),
        (b"{}[]{}", "bad"),
        (b"{}\0{}", "bad"),
        (b'{"a":1},"b":{}', "bad"),
        (b'{"b":"}', "bad"),
        (b'{"c":{}', "bad"),
        (b'{"c":[{}', "bad"),
        (b',"c":{}}', "bad"),
        (b'{"c":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {"a": None, "b": None}),
        (b'{"a":' + b"9" * 10_000 + b"}", "bad"),
    ],
)
def test_a_value(value: bytes, expected: Any) -> None:
    assert one(A_AND_B, value) == expected


HOSTILE = st.lists(
    st.sampled_from(
        [
            "{",
            "}",
            "[",
            "]",
            '"',
            "\\",
            ",",
            ":",
            "\n",
            "\r",
            " ",
            "\0",
            "null",
            "1",
            '"a"',
            '"a":1',
            "{}",
            "NaN",
            "\x1f",
        ]
    ),
    max_size=12,
).map(lambda parts: "".join(parts).encode())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(HOSTILE, st.binary(max_size=12)), min_size=1, max_size=6))
def test_no_value_shifts_another_or_counts_for_more(values: list[bytes]) -> None:
    marked = [part for n, value in enumerate(values) for part in (value, b'{"a":%d}' % (1000 + n))]
    decoded = decode(A_AND_B, *marked)
    rows = decoded.column.to_pylist()
    spoiled = decode(A_AND_B, *marked, b'{"a":"x"}')
    assert (spoiled.column.to_pylist()[:-1], [*decoded.bad, len(marked)]) == (rows, list(spoiled.bad))
    for number, value in enumerate(values):
        assert rows[2 * number + 1] == {"a": 1000 + number, "b": None}
        alone = decode(A_AND_B, value)
        assert rows[2 * number] == alone.column[0].as_py()
        assert (2 * number in decoded.bad) == bool(alone.bad)
        try:
            good = not value.strip(b" \t\r\n") or isinstance(json.loads(value.decode()), dict)
        except (ValueError, RecursionError):
            good = False
        assert good or alone.bad


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.none()
        | st.fixed_dictionaries(
            {},
            optional={
                "a": st.none() | st.integers(-(2**31), 2**31 - 1),
                "b": st.none() | JSON_TEXT,
                "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
                "l": st.none() | st.lists(st.fixed_dictionaries({"x": st.booleans() | st.none()}), max_size=3),
                "t": st.none() | st.datetimes().map(str),
                "other": st.integers() | JSON_TEXT,
            },
        ),
        max_size=20,
    ),
    st.booleans(),
)
def test_whole_columns_and_single_values_are_read_alike(rows: list[dict[str, Any] | None], ascii_only: bool) -> None:
    schema = "a INT, b STRING, d DOUBLE, l ARRAY<STRUCT<x: BOOLEAN>>, t TIMESTAMP_NTZ"
    values = [None if row is None else json.dumps(row, ensure_ascii=ascii_only).encode() for row in rows]
    decoded = decode(schema, *values)
    assert not decoded.bad
    for row, made in zip(rows, decoded.column.to_pylist(), strict=True):
        if row is None:
            assert made is None
            continue
        assert {name: str(value) if isinstance(value, dt.datetime) else value for name, value in made.items()} == {
            name: row.get(name) for name in ("a", "b", "d", "l", "t")
        }
    # The same one by one, which is what a column does in which one value is bad.
    spoiled = decode(schema, *values, b'{"a":"x"}')
    assert spoiled.column.to_pylist()[:-1] == decoded.column.to_pylist()


def test_one_bad_record_among_many_is_found() -> None:
    values = [b'{"a":%d,"b":"x"}' % number for number in range(5000)]
    values[4321] = b'{"a":"q"}'
    values[0] = b"nothing"
    decoded = decode(A_AND_B, *values)
    assert list(decoded.bad) == [0, 4321]
    assert "field a" in decoded.bad[4321]
    assert decoded.column[4999].as_py() == {"a": 4999, "b": "x"}
    assert decoded.column.null_count == 2


def test_huge_and_none() -> None:
    assert decode(A_AND_B).column.to_pylist() == []
    assert decode(A_AND_B, None, None).column.to_pylist() == [None, None]
    huge = decode(A_AND_B, b'{"a":1}', b'{"b":"%s"}' % (b"x" * (64 << 20)), b'{"a":2}')
    assert not huge.bad
    assert len(huge.column[1].as_py()["b"]) == 64 << 20


def test_slices_of_a_longer_array_are_read_from_their_beginning() -> None:
    values = pa.array([b"bad", b'{"a":1}', None, b'{"a":2}', b"bad"], pa.binary())[1:4]
    decoded = JsonDecoder(parse_ddl("a INT")).decode(values)
    assert decoded.column.to_pylist() == [{"a": 1}, None, {"a": 2}]


def test_json_needs_fields() -> None:
    with pytest.raises(ConfigError, match="need a schema of fields"):
        JsonDecoder(pa.list_(pa.int32()))


def test_no_bytes_crash_the_process() -> None:
    """A crash would end this process with all other tests."""
    program = (
        "import random, pyarrow as pa\n"
        "from spark_connector.formats.schema_text import parse_ddl\n"
        "from spark_connector.formats.json_decoder import JsonDecoder\n"
        "r = random.Random(7)\n"
        "d = JsonDecoder(parse_ddl('a INT, b STRING, c STRUCT<x: ARRAY<DOUBLE>, t: TIMESTAMP>, d DECIMAL(9,3)'))\n"
        'good = b\'{"a":1,"b":"q}","c":{"x":[1.5,null],"t":"2024-01-01"},"d":1.25,"e":{"f":[{}]}}\'\n'
        "for _ in range(600):\n"
        "    values = []\n"
        "    for _ in range(4):\n"
        "        v = bytearray(good)\n"
        "        for _ in range(r.randrange(4)):\n"
        "            at = r.randrange(len(v))\n"
        "            some = [b'', b'{', b'}', b'[', b']', b'\"', b',', b'null', b'\\0', b'}{']\n"
        "            v[at:at + r.randrange(3)] = r.choice(some)\n"
        "        values.append(bytes(v))\n"
        "    d.decode(pa.array(values, pa.binary())).column.validate(full=True)\n"
        "print('alive')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "alive", done.stderr[-2000:]
