"""Rows as a database takes them: types, and record batches as rows or as PostgreSQL's COPY."""

from __future__ import annotations

import csv
import io
import json

import pyarrow as pa
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.loads.database.sql import as_copy, as_rows, column_type, open_engine

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXT = st.text(st.characters(exclude_characters="\x00", codec="utf-8"))
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=40),
        st.none() | TEXT,
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.lists(st.tuples(TEXT, st.binary(max_size=4)), max_size=2),
    ),
    max_size=20,
)


def batch_of(rows: list[tuple[object, ...]]) -> pa.RecordBatch:
    types = [pa.binary(), pa.string(), pa.int64(), HEADERS]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[], [], [], []]
    for index, headers in enumerate(columns[3]):
        if headers is not None:
            columns[3][index] = [{"key": key, "value": value} for key, value in headers]
    arrays = [pa.array(column, type) for column, type in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["b", "s", "n", "h"])


@settings(deadline=None)
@given(ROWS, st.integers(0, 3))
def test_copy_holds_every_value(rows: list[tuple[object, ...]], skip: int) -> None:
    """Also of a slice, whose buffers begin before it."""
    found = list(csv.reader(io.StringIO(as_copy(batch_of(rows).slice(skip)).decode(), newline="")))
    assert len(found) == len(rows[skip:])
    for cells, (data, text, number, headers) in zip(found, rows[skip:], strict=True):
        assert cells[0] == ("" if data is None else "\\x" + bytes(data).hex())  # type: ignore[call-overload]
        assert cells[1] == (text or "")
        assert cells[2] == ("" if number is None else str(number))
        assert (len(json.loads(cells[3])) if cells[3] else None) == (None if headers is None else len(headers))  # type: ignore[arg-type]


def test_postgresql_takes_what_copy_says(postgres: str) -> None:
    rows: list[tuple[object, ...]] = [
        (b"\x00\\x\"'", 'quote " comma , line \n tab \t back \\ \\N', -(2**63), [("k", b"\xff")]),
        (b"", "", 0, []),
        (None, None, None, None),
    ]
    with open_engine(postgres).begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TEMPORARY TABLE x (b BYTEA, s TEXT, n BIGINT, h JSONB)"))
        with connection.connection.cursor().copy("COPY x FROM STDIN (FORMAT csv)") as copy:
            copy.write(as_copy(batch_of(rows)))
        found = connection.execute(sqlalchemy.text("SELECT * FROM x")).all()
    assert [(b if b is None else bytes(b), s, n) for b, s, n, _ in found] == [row[:3] for row in rows]
    assert [row[3] for row in found] == [[{"key": "k", "value": "/w=="}], [], None]


def test_rows_hold_nested_values_as_json() -> None:
    assert as_rows(batch_of([(b"x", "s", 1, [("k", b"\xff")])])) == [
        {"b": b"x", "s": "s", "n": 1, "h": [{"key": "k", "value": "/w=="}]}
    ]


def test_types_have_their_counterparts() -> None:
    times = [pa.timestamp("us", "UTC"), pa.timestamp("us")]
    types = [
        pa.binary(),
        pa.string(),
        pa.int64(),
        pa.int32(),
        *times,
        pa.decimal128(10, 2),
        pa.list_(pa.int8()),
        pa.null(),
    ]
    found = [type(column_type(one)).__name__ for one in types]
    assert found == ["LargeBinary", "Text", "BigInteger", "Integer", "DateTime", "DateTime", "Numeric", "JSON", "JSON"]
    assert [column_type(one).timezone for one in times] == [True, False]
