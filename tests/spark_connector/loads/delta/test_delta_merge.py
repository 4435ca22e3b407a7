"""Files that an upsert or a rewind writes anew: each row is found by a filter of each of its values, whoever filters.

The judges are the engines of test_filters.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker.storage.storage import open_storage
from spark_connector.destinations import open_destination
from spark_connector.loads.compaction import CompactionOptions
from spark_connector.loads.delta.delta_files import DeltaFiles
from spark_connector.loads.record import LoadRange
from spark_connector.maintenance import rewind
from tests.spark_connector.loads.test_filters import misses
from tests.support.filter_cases import CASES, INF, NAN, YEAR_10000, Case, array
from tests.support.filter_engines import delta_engines, oracles
from tests.support.filter_tables import FilteredTable
from tests.support.upsert_harness import SOURCE, UpsertIntoDelta, UpsertTopic

_UTC = pa.timestamp("us", "UTC")


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


def columns_of(values: pa.Array, first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + len(values)), pa.int64()), "c": values})


def upserted(tmp_path: Path, case: Case) -> tuple[UpsertIntoDelta, pa.Table]:
    """A load for each file of the case, which meet in one file: the world, and the rows that must be in the table."""
    source = ValuesTopic(type=case.type)
    world = UpsertIntoDelta(tmp_path, source)
    parts = []
    source.send_values(array(case.type, [None]), 1000)
    for first, file in enumerate(case.files):
        parts.append(columns_of(array(case.type, file), first * 100))
        source.send_values(parts[-1]["c"], first * 100)
        source.send_values(array(case.type, [None]), 1000)
        world.load()
    rows = pa.concat_tables([*parts, columns_of(array(case.type, [None]), 1000)])
    return world, rows


@pytest.mark.parametrize("name", CASES)
def test_each_row_of_an_upsert_is_found_by_its_own_value(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    world, rows = upserted(tmp_path, case)
    engines = delta_engines(world.output.url)
    assert misses(rows, engines, case.own_values(), ["="]) == ""
    assert misses(rows, engines, case.own_values()[:1], ["is null", "!="]) == ""


@pytest.mark.parametrize("name", CASES)
def test_each_row_that_a_rewind_leaves_in_a_file_of_several_loads_is_found(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    table = FilteredTable(tmp_path / "table", "delta")
    parts = [case.columns(file) for file in case.files]
    rows = pa.concat_tables(part.append_column("id", pa.array(table.load(part))) for part in parts)
    with open_destination(table.target) as site:
        last = site.log.newest().load_id
    assert last is not None
    table.load(parts[0])
    with open_destination(table.target) as site:
        assert site.compaction().run(CompactionOptions(rewindable_s=0)).files_after == 1
    rewind(table.target, last)
    engines = delta_engines(str(table.to))
    assert misses(rows, engines, case.own_values(), ["="]) == ""
    assert misses(rows, engines, case.own_values()[:1], ["is null", "!="]) == ""


def test_files_of_undone_loads_are_known_by_their_bounds_and_by_their_rows(tmp_path: Path) -> None:
    url = (tmp_path / "t").as_uri()
    for loads in (["kept"], ["undone"], ["kept", "undone"], [None, "undone"], ["undone", "undone-2"]):
        write_deltalake(url, pa.table({"load": pa.array(loads, pa.string())}), mode="append")
    files = DeltaFiles(DeltaTable(url), open_storage(url))
    assert files._only_loads().count("undone") == 1, "this file is known by its bounds"
    whole, mixed = files.of_loads(pa.array(["undone", "undone-2"]))
    assert [file.rows for file in whole] == [2, 1]
    assert [file.rows for file in mixed] == [2, 2]


def test_a_rewind_takes_whole_files_beside_those_it_writes_anew(tmp_path: Path) -> None:
    case = CASES["double with NaN"]
    table = FilteredTable(tmp_path / "table", "delta")
    table.load(case.columns(case.files[0]))
    with open_destination(table.target) as site:
        first = site.log.newest().load_id
    assert first is not None
    table.load(case.columns(case.files[0]))
    with open_destination(table.target) as site:
        assert site.compaction().run(CompactionOptions(rewindable_s=0)).files_after == 1
    table.load(case.columns(case.files[0]))
    assert len(DeltaTable(str(table.to)).file_uris()) == 2
    rewind(table.target, first)
    left = DeltaTable(str(table.to)).to_pyarrow_table().column("load").unique().to_pylist()
    assert left == [first]


@pytest.mark.parametrize("name", ["double with NaN", "decimal(38,2)", "timestamp beyond Python", "text that is cut"])
def test_rows_of_another_program_are_found_after_an_upsert_of_their_file(tmp_path: Path, name: str) -> None:
    """deltalake's own statistics of them are wrong, or unreadable, until then."""
    case = CASES[name]
    source = ValuesTopic(type=case.type)
    world = UpsertIntoDelta(tmp_path, source)
    source.send_values(array(case.type, [None]), 1000)
    world.load()
    values = array(case.type, [one for file in case.files for one in file])
    foreign = columns_of(values, 0).append_column("_topic", pa.array([source.name] * len(values)))
    foreign = foreign.append_column("_partition", pa.array([0] * len(values), pa.int32()))
    foreign = foreign.append_column("_offset", pa.array([-1] * len(values), pa.int64()))
    write_deltalake(world.output.url, foreign, mode="append", schema_mode="merge")
    source.send_values(values[:1], 0)
    world.load()
    rows = pa.concat_tables([columns_of(values, 0), columns_of(array(case.type, [None]), 1000)])
    assert misses(rows, delta_engines(world.output.url), case.own_values(), ["="]) == ""


def test_a_column_behind_the_first_32_is_found(tmp_path: Path) -> None:
    """deltalake's own statistics, and ours, end there where the table does not say otherwise."""
    names = [f"c{number:02d}" for number in range(40)]

    class Wide(ValuesTopic):
        @property
        def schema(self) -> pa.Schema:
            row = pa.struct([("id", pa.int64()), *((name, pa.float64()) for name in names)])
            return SOURCE.set(1, pa.field("value", row))

        def records(self, range_: LoadRange) -> pa.RecordBatch:
            offsets = range(range_.start, range_.end)
            rows = [{"id": offset, **dict.fromkeys(names, self.values[offset])} for offset in offsets]
            places = [[range_.topic] * len(rows), [0] * len(rows), [*offsets], [*offsets]]
            columns = [[*offsets], rows, *places]
            arrays = [pa.array(one, field.type) for one, field in zip(columns, self.schema, strict=True)]
            return pa.record_batch(arrays, self.schema)

    source = Wide(type=pa.float64())
    world = UpsertIntoDelta(tmp_path, source)
    for first, value in enumerate([1.5, INF, NAN, 3.5]):
        source.send_values(pa.array([value]), first)
        world.load()
    engines = delta_engines(world.output.url)
    rows = pa.table({"id": [0, 1, 2, 3], "c39": [1.5, INF, NAN, 3.5], "c05": [1.5, INF, NAN, 3.5]})
    for column in ("c05", "c39"):
        for value in rows["c39"]:
            (expected, *others) = oracles(rows, column, "=", value)
            for name, find in engines.items():
                assert find(column, "=", value) in (expected, *others), (name, column, value)


def test_a_value_of_a_struct_is_found(tmp_path: Path) -> None:
    kind = pa.struct([("at", _UTC), ("x", pa.list_(pa.float64()))])
    source = ValuesTopic(type=kind)
    world = UpsertIntoDelta(tmp_path, source)
    lists = pa.array([[INF], [NAN]], pa.list_(pa.float64()))
    source.send_values(pa.StructArray.from_arrays([array(_UTC, [0, YEAR_10000]), lists], fields=list(kind)), 0)
    world.load()
    found = DeltaTable(world.output.url).to_pyarrow_dataset().to_table(columns=["id"])
    assert sorted(found["id"].to_pylist()) == [0, 1]
