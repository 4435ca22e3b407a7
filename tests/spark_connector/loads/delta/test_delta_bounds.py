"""A row of an upsert is found by a filter of each of its values, whoever filters, or the load is refused.

deltalake's MERGE writes the statistics of these files. The judges are the engines of test_filters.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_connector.loads.record import LoadError, LoadRange
from tests.spark_connector.loads.test_filters import misses
from tests.support.filter_cases import CASES, INF, NAN, YEAR_1, YEAR_10000, Case, array
from tests.support.filter_engines import delta_engines
from tests.support.upsert_harness import SOURCE, UpsertIntoDelta, UpsertTopic

_TEXTS = [name for name, case in CASES.items() if pa.types.is_string(case.type) or pa.types.is_binary(case.type)]
"""deltalake's dataset has no filter on texts of a file that the library has written itself: it fails, loudly."""
_UTC, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


@dataclass
class ValuesTopic(UpsertTopic):
    """Records with the columns `id`, the key, and `c`. `values`: those of `c`, by offset; a None deletes the key."""

    partitions: int = 1
    type: pa.DataType = field(default_factory=pa.int64)
    values: list[Any] = field(default_factory=list)

    def send_values(self, values: pa.Array, first: int) -> None:
        for key, value in enumerate(values, first):
            self.send(key, "", 0)
            self.values.append(value)

    def take_back(self, size: int) -> None:
        for events in self.events.values():
            del events[len(events) - size :]
        del self.values[len(self.values) - size :]

    @property
    def schema(self) -> pa.Schema:
        return SOURCE.set(1, pa.field("value", pa.struct([("id", pa.int64()), ("c", self.type)])))

    def records(self, range_: LoadRange) -> pa.RecordBatch:
        events = self.events[range_.tp][range_.start : range_.end]
        keys = pa.array([key for key, _ in events], pa.int64())
        values = self.values[range_.start : range_.end]
        rows = pa.StructArray.from_arrays(
            [keys, pa.array(values, self.type)],
            fields=list(self.schema.field("value").type),
            mask=pa.array([name is None for _, name in events]),
        )
        offsets = pa.array(range(range_.start, range_.end), pa.int64())
        places = [[range_.topic] * len(events), pa.array([range_.partition] * len(events), pa.int32()), offsets]
        return pa.record_batch([keys, rows, *places, offsets.cast(_UTC)], self.schema)


def upserted(tmp_path: Path, case: Case) -> tuple[UpsertIntoDelta, pa.Table, list[str]]:
    """A load for each file of the case: the world, the rows that must be in the table, and the refusals."""
    source = ValuesTopic(type=case.type)
    world = UpsertIntoDelta(tmp_path, source)
    refused: list[str] = []
    held: list[tuple[int, pa.Scalar]] = []
    for first, file in enumerate(case.files):
        values = array(case.type, file)
        source.send_values(values, first * 100)
        try:
            world.load()
        except LoadError as error:
            source.take_back(len(file))
            refused.append(str(error))
        else:
            held += enumerate(values, first * 100)
    rows = {"id": pa.array([key for key, _ in held], pa.int64()), "c": pa.array([one for _, one in held], case.type)}
    return world, pa.table(rows), refused


_REFUSED = {
    "float": 2,
    "double": 1,
    "double with NaN": 3,
    "float with NaN": 2,
    "decimal(18,4)": 1,
    "decimal(38,2)": 2,
    "decimal(38,38)": 1,
    "date beyond Python": 3,
    "timestamp beyond Python": 3,
    "timestamp_ntz beyond Python": 2,
}
"""Case → its files that have a value with a wrong bound."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in _TEXTS])
def test_each_row_is_found_by_its_own_value_or_refused(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    world, rows, refused = upserted(tmp_path, case)
    assert len(refused) == _REFUSED.get(name, 0), refused
    if rows.num_rows:
        engines = delta_engines(world.output.url)
        assert misses(rows, engines, case.own_values(), ["="]) == ""
        assert misses(rows, engines, case.own_values()[:1], ["is null", "!="]) == ""


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (pa.date32(), 3_000_000, "+10183-"),
        (pa.date32(), -800_000, "-0221-"),
        (_UTC, YEAR_10000, "+10000-01-01 00:00:00+00:00"),
        (_LOCAL, YEAR_1 - 1, "0000-12-31 23:59:59.999999"),
        (pa.float32(), -INF, "-inf"),
        (pa.float64(), NAN, "nan"),
        (pa.decimal128(38, 2), Decimal("12345678901234567890.12"), "12345678901234567890.12"),
    ],
)
def test_a_refusal_names_record_column_and_way_out(tmp_path: Path, kind: pa.DataType, value: Any, told: str) -> None:
    source = ValuesTopic(type=kind)
    world = UpsertIntoDelta(tmp_path, source)
    source.send_values(array(kind, [1, None]), 0)
    world.load()
    source.send_values(array(kind, [2, value, None]), 2)
    with pytest.raises(LoadError) as caught:
        world.load()
    for text in ("offset 3 of topic 'customers', partition 0", f"{told}", "'c'", "iceberg", "--columns"):
        assert text in str(caught.value)
    table = DeltaTable(world.output.url)
    assert sorted(pa.table(table.to_pyarrow_dataset().to_table())["id"].to_pylist()) == [0, 1]
    assert world.leftovers() == []


def test_such_a_value_in_a_struct_is_refused(tmp_path: Path) -> None:
    kind = pa.struct([("at", _UTC), ("x", pa.list_(pa.float64()))])
    source = ValuesTopic(type=kind)
    world = UpsertIntoDelta(tmp_path, source)
    times = array(_UTC, [0, YEAR_10000])
    lists = pa.array([[INF], [NAN]], pa.list_(pa.float64()))  # within lists there are no bounds
    both = pa.StructArray.from_arrays([times, lists], fields=list(kind))
    source.send_values(both[:1], 0)
    source.send_values(pa.nulls(1, kind), 1)
    world.load()
    source.send_values(both[1:], 2)
    with pytest.raises(LoadError, match="'c.at'"):
        world.load()


def test_a_value_that_a_later_record_replaces_or_deletes_does_not_matter(tmp_path: Path) -> None:
    source = ValuesTopic(type=pa.float64())
    world = UpsertIntoDelta(tmp_path, source)
    source.send_values(pa.array([1.0, INF, NAN]), 0)
    source.send_values(pa.array([2.0]), 1)
    source.send(2, None, 0)
    source.values.append(None)
    world.load()
    assert {row["id"]: row["c"] for row in world.table_rows()} == {0: 1.0, 1: 2.0}


def test_decimals_with_few_digits_are_taken_whatever_the_type(tmp_path: Path) -> None:
    texts = [["1.5", "-0.00001"], ["0.1", "1234567.89"], ["1000000000000000", "0"], ["123456789012345"]]
    case = Case(pa.decimal128(38, 18), [[*map(Decimal, file)] for file in texts])
    world, rows, refused = upserted(tmp_path, case)
    assert refused == []
    assert misses(rows, delta_engines(world.output.url), case.own_values(), ["=", "<=", ">="]) == ""


@pytest.mark.parametrize("text", ["-0.000001", "10000000000000000", "0.123456789012345678"])
def test_decimals_whose_bound_readers_do_not_take_are_refused(tmp_path: Path, text: str) -> None:
    _, _, refused = upserted(tmp_path, Case(pa.decimal128(38, 18), [[Decimal("1.5")], [Decimal(text)]]))
    assert len(refused) == 1
