"""JSON by the kernel: what it decodes is what Python's parser decodes, and it refuses the rest."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.records import native
from broker.records.native import Kernel
from spark_connector.formats.json_batches import JsonProgram
from spark_connector.formats.json_decoder import JsonDecoder
from spark_connector.formats.schema_text import parse_ddl
from tests.support.arrow_values import exact
from tests.support.codec_choice import BUILT, using
from tests.support.randomness import seed_of

pytestmark = pytest.mark.skipif(not BUILT, reason="the kernel was not built: no C compiler, or switched off")

FIELDS = {
    "a": "INT",
    "b": "STRING",
    "d": "DOUBLE",
    "i": "TINYINT",
    "j": "SMALLINT",
    "k": "BIGINT",
    "t": "TIMESTAMP",
    "n": "TIMESTAMP_NTZ",
    "day": "DATE",
    "m": "MAP<STRING, DOUBLE>",
    "money": "DECIMAL(9, 3)",
    "ok": "BOOLEAN",
    "list": "ARRAY<STRUCT<x: BOOLEAN, y: ARRAY<INT>>>",
    "é": "STRUCT<q: STRING, w: STRUCT<k: DOUBLE>>",
    "bytes": "BINARY",
}
DDL = ", ".join(f"`{name}` {kind}" for name, kind in FIELDS.items())


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    with using("native"):
        assert native.kernel is not None
        return native.kernel


def read(kernel: Kernel, ddl: str, *values: bytes | None) -> tuple[pa.Array, list[int]]:
    column, refused = JsonProgram(parse_ddl(ddl)).decode(kernel, pa.array(values, pa.binary()), 0)
    column.validate(full=True)
    return column, refused.tolist()


def field(kernel: Kernel, kind: str, text: str) -> Any:
    """What the kernel makes of a text in a column; "refused" if nothing."""
    column, refused = read(kernel, f"a {kind}", f'{{"a":{text}}}'.encode())
    return "refused" if refused else column[0].as_py()["a"]


NUMBERS = st.integers(-(2**65), 2**65) | st.floats() | st.decimals(-(10**6), 10**6, places=4).map(str)
TIMES = st.datetimes().map(str) | st.datetimes().map(lambda one: f"{one.isoformat()}Z") | st.dates().map(str)
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | TIMES | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.sampled_from("xyqwk"), inner),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from([*FIELDS, "other", "A"]), ANYTHING, max_size=8)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """JSON, or nearly."""
    spaced, plain = draw(st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t:\r")])), draw(st.booleans())
    text = json.dumps(draw(DOCUMENTS), ensure_ascii=plain, separators=spaced).encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        some = st.sampled_from([b"", b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"0", b"-", b"e", b"\0", b"\xff"])
        text = text[:at] + draw(some) + text[at + draw(st.integers(0, 3)) :]
    return text


@settings(max_examples=300, deadline=None)
@given(values=st.lists(texts() | st.none() | st.sampled_from([b"", b" \n", b"{}", b"null"]), max_size=6))
def test_the_kernel_decodes_as_python_does(kernel: Kernel, values: list[bytes | None]) -> None:
    column, refused = read(kernel, DDL, *values)
    with using("plain"):
        single = JsonDecoder(parse_ddl(DDL)).decode(pa.array(values, pa.binary()))
    for row, (one, other) in enumerate(zip(exact(column), exact(single.column), strict=True)):
        if row in refused:
            assert one is None
        else:
            assert row not in single.bad
            assert one == other


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("DOUBLE", "-0.0", "-0.0"),
        ("DOUBLE", "-0", "0.0"),
        ("DOUBLE", "1e400", "inf"),
        ("DOUBLE", "5e-324", "5e-324"),
        ("DOUBLE", "9007199254740993", "9007199254740992.0"),
        ("DOUBLE", "9" * 400, "inf"),
        ("FLOAT", "16777217.0000001", "16777218.0"),
        ("FLOAT", "3.5e38", "inf"),
        ("BIGINT", "-9223372036854775808", "-9223372036854775808"),
        ("BIGINT", "-9223372036854775809", "'refused'"),
        ("TINYINT", "-129", "'refused'"),
        ("STRING", '"\\ud83d\\ude00 \\u00e9\\/"', "'😀 é/'"),
        ("STRING", '"\\ude00"', "'refused'"),
        ("STRING", "-0", "'refused'"),
        ("STRING", "-0.50", "'-0.50'"),
        ("DECIMAL(5,2)", "-1.235", "Decimal('-1.24')"),
        ("DECIMAL(5,2)", "999.994", "Decimal('999.99')"),
        ("DECIMAL(5,2)", "999.995", "'refused'"),
        ("DECIMAL(38,0)", "9" * 38, repr(Decimal("9" * 38))),
        ("DECIMAL(38,10)", "7174052484902763121e13", "'refused'"),
        ("DATE", '"2023-02-29"', "'refused'"),
        ("DATE", '"2000-02-29"', "datetime.date(2000, 2, 29)"),
        ("TIMESTAMP_NTZ", '"0001-01-01 23:59:59.1234569"', "datetime.datetime(1, 1, 1, 23, 59, 59, 123456)"),
        ("TIMESTAMP_NTZ", '"2024-01-01T00:00:00Z"', "'refused'"),
        ("MAP<STRING,INT>", '{"x":1,"x":2}', "'refused'"),
        ("BINARY", '"AAE="', "'refused'"),
    ],
)
def test_values_at_their_limits(kernel: Kernel, kind: str, text: str, expected: str) -> None:
    assert repr(field(kernel, kind, text)) == expected


def test_doubles_are_rounded_as_python_rounds_them(kernel: Kernel) -> None:
    chance = random.Random(seed_of(45))
    shown = [f"{chance.randrange(10 ** chance.randrange(1, 21))}e{chance.randrange(-30, 31)}" for _ in range(2000)]
    shown += [repr(chance.random() * 10.0 ** chance.randrange(-9, 9)) for _ in range(2000)]
    # halves between two doubles, and what lies closest to them
    shown += [
        f"{2 * chance.randrange(2**52, 2**53) + 1}{end}" for end in ("", "e3", ".0", ".5", "e-7") for _ in range(300)
    ]
    column, refused = read(kernel, "a DOUBLE", *(b'{"a":%s}' % one.encode() for one in shown))
    assert refused == []
    assert column.field("a").to_pylist() == [float(one) for one in shown]


def test_keys_that_come_in_another_order_or_not_at_all_are_found(kernel: Kernel) -> None:
    chance = random.Random(seed_of(46))
    names = [f"field_{number}" for number in range(40)]
    rows = [
        {name: chance.randrange(100) for name in chance.sample([*names, *(f"other_{n}" for n in range(60))], 50)}
        for _ in range(200)
    ]
    column, refused = read(
        kernel, ", ".join(f"{name} INT" for name in names), *(json.dumps(one).encode() for one in rows)
    )
    assert refused == []
    assert column.to_pylist() == [{name: row.get(name) for name in names} for row in rows]


def test_an_array_is_longer_than_the_first_buffers(kernel: Kernel) -> None:
    long = json.dumps({"l": [{"x": "é" * 100, "y": [1] * 50}] * 300}, ensure_ascii=True).encode()
    column, refused = read(kernel, "l ARRAY<STRUCT<x: STRING, y: ARRAY<TINYINT>>>", b'{"l":[]}', long, b"{}")
    assert refused == []
    assert column.to_pylist() == [{"l": []}, json.loads(long), {"l": None}]


LINE, NAMELESS = [2, 0, 0, 0, 96, 96], [10, 0, 0, 0, 96, 96]
OF_LISTS = [10, 0, 0, 0, 192, 192], [2, 0, 0, 0, 192, 192] * 2, [(6, 4), (7, 4), (3, 3), (3, 4)]


@pytest.mark.parametrize(
    ("code", "columns", "why"),
    [
        (NAMELESS, [(6, 2), (3, 2)], "no program"),
        ([*LINE, *LINE], [(3, 1), (3, 2)], "no program"),
        ([*NAMELESS, 13, *LINE[1:]], [(6, 2), (3, 2)], "nothing known"),
        ([*NAMELESS, -1, *LINE[1:]], [(6, 2), (3, 2)], "nothing known"),
        ([*NAMELESS, 2, 0, 0, 39, 96, 96], [(6, 2), (3, 2)], "nothing known"),
        ([*NAMELESS, *LINE], [(6, 2), (5, 2)], "cannot fill"),
        ([*NAMELESS, 6, *LINE[1:]], [(6, 2), (3, 2)], "cannot fill"),
        ([*NAMELESS, 2, 0, 0, 0, 88, 96], [(6, 2), (3, 2)], "lies elsewhere"),
        ([*NAMELESS, 2, 0, 0, 0, 96, 97], [(6, 2), (3, 2)], "lies elsewhere"),
        ([*NAMELESS, 2, 0, 0, 0, 97, 96], [(6, 2), (3, 2)], "lies elsewhere"),
        ([*OF_LISTS[0], 11, 0, 0, 0, 192, 192, *OF_LISTS[1]], OF_LISTS[2], "none of its"),
        ([*OF_LISTS[0], 12, 0, 0, 0, 192, 192, *OF_LISTS[1]], OF_LISTS[2], "none of its"),
    ],
)
def test_programs_that_are_none_are_refused(
    kernel: Kernel, code: list[int], columns: list[tuple[int, int]], why: str
) -> None:
    state, refused = np.zeros(2 + 3 * len(columns), np.int64), np.zeros(1, np.int32)
    values = np.array([0, 2], np.int32), None, b"{}", 0
    buffers: list[list[Any]] = [[bytearray(8), bytearray(64), bytearray(64)] for _ in columns]
    with pytest.raises(SystemError, match=why):
        kernel.decode_json(np.array(code), np.array(columns), state, buffers, values, 1, 0, refused)
