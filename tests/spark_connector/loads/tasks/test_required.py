"""Rows in the types of a table that requires fields, as the writer of parquet takes them."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from spark_connector.loads.tasks.required import fitted, nulls_where_required

PAIR = [pa.field("pk", pa.int64()), pa.field("t", pa.string())]
ROWS: list[dict[str, Any]] = [
    {"k": None, "s": None, "l": None, "m": None},
    {"k": {"pk": 1, "t": None}, "s": {"k": None, "v": [1]}, "l": [None, {"pk": 2, "t": "a"}], "m": [("x", None)]},
    {"k": None, "s": {"k": {"pk": 3, "t": "b"}, "v": []}, "l": [], "m": [("y", {"pk": 4, "t": None}), ("z", None)]},
    {"k": {"pk": 5, "t": "c"}, "s": None, "l": [None], "m": []},
]


def schema(*, required: bool) -> pa.Schema:
    def field(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, nullable=not required)

    pair = pa.struct([field("pk", pa.int64()), PAIR[1]])
    inner = pa.struct([("k", pair), field("v", pa.list_(field("element", pa.int32())))])
    return pa.schema([("k", pair), ("s", inner), ("l", pa.list_(pair)), ("m", pa.map_(pa.string(), pair))])


@pytest.mark.parametrize(("first", "count"), [(0, 4), (1, 3), (2, 1), (0, 0)])
def test_parts_of_what_is_null_need_not_be_there(first: int, count: int, tmp_path: Any) -> None:
    rows = pa.Table.from_pylist(ROWS, schema(required=False)).slice(first, count)
    nothing = pa.array([None] * 4, pa.int64())
    hidden = pa.StructArray.from_arrays(
        [nothing, pa.array(["a"] * 4)], fields=PAIR, mask=pa.array([True] * 4)
    )  # as decoders leave it: the part is null, too
    for part in (rows, rows.set_column(0, "k", pa.chunked_array([hidden.slice(first, count)]))):
        made = fitted(part, schema(required=True))
        made.validate(full=True)
        pa.parquet.write_table(made, tmp_path / "rows.parquet")
        assert pa.parquet.read_table(tmp_path / "rows.parquet").to_pylist() == part.to_pylist()
        found = duckdb.connect().execute(f"SELECT k, s, l FROM read_parquet('{tmp_path}/rows.parquet')").fetchall()
        assert found == [tuple(row.values()) for row in part.select(["k", "s", "l"]).to_pylist()]


@pytest.mark.parametrize(
    "lacking",
    [
        {"k": {"pk": None, "t": "x"}},
        {"l": [{"pk": None, "t": "x"}]},
        {"s": {"v": [None]}},
    ],
)
def test_a_part_that_lacks_is_never_written_as_a_value(lacking: dict[str, Any], tmp_path: Any) -> None:
    rows = pa.Table.from_pylist([*ROWS, lacking], schema(required=False))
    assert [found.tolist() for found, _ in nulls_where_required(rows, schema(required=True))] == [[4]]
    with pytest.raises(pa.ArrowInvalid, match="declared non-nullable but contains nulls"):
        pa.parquet.write_table(fitted(rows, schema(required=True)), tmp_path / "rows.parquet")
