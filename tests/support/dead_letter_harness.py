"""Loads with dead letters, without Spark and broker: two real tables, and rows as tasks write them.

A `DeadLetterWorld` has the table of the loads, a `TableWorld`, and the table of their dead letters, a Delta table. A
record is bad by its offset. `load` is one process that does as load.py, through a `CrashPoint`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE
from spark_connector.formats.bad_record_rows import BadRecordRows
from spark_connector.formats.value_format import ReadFormats
from spark_connector.loads.dead_letters import DeadLetters, group_of
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_table import DeltaDestination
from spark_connector.loads.destination import Destination
from spark_connector.loads.record import LoadRange, LoadRecord
from spark_connector.loads.rewind import plan_rewind, standing
from spark_connector.offset_store.base import OffsetConflict
from spark_connector.storage import Storage, open_storage
from tests.support.crashing import CrashPoint
from tests.support.table_harness import SPARK_SCHEMA, DeltaWorld, Row, TableWorld, rows_of, with_load

_CHANGES = ("create", "rename", "remove", "make_directory")


_HEADER = [
    {"name": "key", "type": "string", "nullable": True, "metadata": {}},
    {"name": "value", "type": "binary", "nullable": True, "metadata": {}},
]
_HEADERS = {"type": "array", "elementType": {"type": "struct", "fields": _HEADER}, "containsNull": True}
_TYPES = {
    "topic": "string",
    "partition": "integer",
    "offset": "long",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": _HEADERS,
    "reason": "string",
    "schema_id": "integer",
}
_BAD_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": name, "type": type, "nullable": True, "metadata": {}} for name, type in _TYPES.items()],
    }
)


def is_bad(offset: int) -> bool:
    return offset % 3 == 1


class _GoodRows(DeltaWorld):
    """The table of the loads: without the bad records."""

    def write(self, site: Destination, record: LoadRecord, place: str) -> LoadRecord:
        rows = {}
        for range in record.ranges:
            table = with_load(_rows(range, bad=False), record.load_id)
            rows[range.tp] = table.num_rows
            _write(site, f"{place}/part-{range.partition}.parquet", table)
        assert site.output is not None
        return record.completed(rows, site.output.tree_sizes(place))

    def produced(self) -> list[Row]:
        return [row for row in super().produced() if not is_bad(row[2])]


class DeadLetterWorld:
    """Both tables. Several worlds may share the table of dead letters, and so may several processes a world."""

    def __init__(self, loads: TableWorld, bad: Storage) -> None:
        self.loads = loads
        self.bad = bad
        self.name = f"delta:{bad.url}"

    def grow(self, partitions: int = 2, count: int = 4) -> None:
        self.loads.grow(partitions, count)

    @contextmanager
    def opened(self, crash: CrashPoint) -> Iterator[tuple[Destination, DeadLetters]]:
        with self.loads.opened(crash) as site:
            group = group_of(self.loads.group, site.url)
            log = crash.guard(DeltaCommitLog(self.bad, group), ("append",))
            table = DeltaDestination(crash.guard(self.bad, _CHANGES), log, group)
            yield site, DeadLetters(site, table, self.name, self.loads.group)

    def load(self, crash: CrashPoint | None = None, *, most: int | None = None) -> LoadRecord | None:
        """One load; None when nothing is new. `most`: records of each partition."""
        with self.opened(crash or CrashPoint()) as (site, letters):
            site.repair()
            letters.settle()
            record = self.loads.plan(site)
            if record is None:
                return None
            assert letters.is_settled_for(record)
            if most is not None:
                ranges = (replace(range, end=min(range.end, range.start + most)) for range in record.ranges)
                record = replace(record, ranges=tuple(ranges))
            record = replace(record, dead_letters=(self.name,))
            place = site.stage(record)
            entry = letters.entry(record)
            bad_place = letters.table.stage(entry)
            try:
                letters.table.prepare(entry, _BAD_SCHEMA)
                site.prepare(record, SPARK_SCHEMA)
                sealed = self.loads.write(site, record, place)
                bad, counts = self._write_bad(letters.table, record, entry, bad_place)
                sealed = sealed.with_bad_rows(counts)
                letters.table.seal(bad)
            except Exception as error:
                if not site.is_overtaken(record):
                    raise
                site.discard(record.load_id)
                letters.table.discard(entry.load_id)
                raise OffsetConflict(f"group '{self.loads.group}' was overtaken") from error
            with letters.committed_first(sealed, bad):
                site.seal(sealed)
                site.commit(sealed)
            return sealed

    def rewind(self, number: int, crash: CrashPoint | None = None) -> None:
        """Back to the load of this number, as maintenance.py does it."""
        with self.opened(crash or CrashPoint()) as (site, letters):
            site.repair()
            letters.settle()
            loads = standing(site.log.records())
            to_load = next(load.load_id for load in loads if load.id.sequence == number)
            stored = site.log.offsets({range.tp for load in loads for range in load.ranges})
            plan = plan_rewind(loads, stored, to_load, number=site.log.newest().sequence + 1, delete=False)
            site.commit(plan)
            letters.settle()

    def bad_rows(self) -> list[Row]:
        """What a reader of the dead letters finds, of this group's loads; duplicates included."""
        if not DeltaTable.is_deltatable(self.bad.url):
            return []
        rows = DeltaTable(self.bad.url).to_pyarrow_table(columns=["topic", "partition", "offset", "load"]).to_pylist()
        mine = [row for row in rows if row["load"].startswith(f"{self.loads.group}-0")]
        return sorted((row["topic"], row["partition"], row["offset"]) for row in mine)

    def produced_bad(self) -> list[Row]:
        return sorted(
            (tp.topic, tp.partition, offset)
            for tp, end in self.loads.ends.items()
            for offset in range(end)
            if is_bad(offset)
        )

    def check_whole(self, step: object = "") -> None:
        assert self.loads.visible() == self.loads.produced(), step
        assert self.bad_rows() == self.produced_bad(), step
        assert self.loads.leftovers() == [], step
        assert self.bad.names("_staging/table") == [], step

    def _write_bad(
        self, table: Destination, load: LoadRecord, entry: LoadRecord, place: str
    ) -> tuple[LoadRecord, dict[TopicPartition, int]]:
        counts = {}
        for range in load.ranges:
            batches: list[pa.RecordBatch] = []
            rows = _rows(range, bad=True)
            if not rows.num_rows:
                continue
            columns = {"offset": rows["offset"], "timestamp": rows["timestamp"], "value": rows["value"]}
            columns["key"] = pa.nulls(rows.num_rows, pa.binary())
            columns["headers"] = pa.nulls(rows.num_rows, HEADERS_TYPE)
            collector = BadRecordRows(ReadFormats(), batches.append)
            records = pa.RecordBatch.from_pydict({name: columns[name] for name in collector.needs})
            collector.write(range.tp, records, ["value: not JSON"] * rows.num_rows)
            (count,) = collector.counts
            counts[range.tp] = count.rows
            _write(table, f"{place}/part-{range.partition}.parquet", with_load(batches[0], load.load_id))
        assert table.output is not None
        return entry.completed({}, table.output.tree_sizes(place)), counts


def _rows(range: LoadRange, *, bad: bool) -> pa.RecordBatch:
    rows = rows_of(range)
    return rows.filter(pa.array([is_bad(offset) is bad for offset in rows["offset"].to_pylist()], pa.bool_()))


def _write(site: Destination, name: str, table: pa.Table) -> None:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink)
    assert site.output is not None
    site.output.create(name, sink.getvalue().to_pybytes())


def dead_letter_world(root: Path, group: str, *, bad: str = "bad") -> DeadLetterWorld:
    """A table with a load in it that had bad records, and new data to load."""
    loads = _GoodRows(open_storage(str(root / f"table-{group}")), group)
    world = DeadLetterWorld(loads, open_storage(str(root / bad)))
    world.grow()
    assert world.load() is not None
    world.grow()
    return world
