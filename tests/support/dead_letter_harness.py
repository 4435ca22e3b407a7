"""Loads with dead letters, without Spark and broker: real tables of every kind, and rows as tasks write them.

A `DeadLetterWorld` has the place of the loads and the table of their dead letters, a `Site` each. A record is bad by
its offset. `load` is one process that does as load.py, through a `CrashPoint`.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet
from deltalake import DeltaTable
from pyiceberg.table import Table

from broker.protocol.topic_partition import TopicPartition
from broker.records.columns import HEADERS_TYPE
from broker.storage.storage import Storage, open_storage
from spark_connector.formats.bad_record_rows import BadRecordRows
from spark_connector.formats.value_format import ReadFormats
from spark_connector.loads.dead_letters import DeadLetters, group_of
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_table import DeltaDestination
from spark_connector.loads.destination import Destination, LoadedDestination
from spark_connector.loads.files.directory import FilesCommitLog, FilesDestination
from spark_connector.loads.iceberg.iceberg_catalog import open_catalog
from spark_connector.loads.iceberg.iceberg_table import storage_of
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN, Target
from spark_connector.loads.rewind import plan_rewind, standing
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.table_harness import SCHEMA, IcebergWorld, Row, add_catalog, rows_of

_STORAGE_CHANGES = ("create", "rename", "remove", "make_directory")
_LOG_CHANGES = ("append", "mark_published")


def is_bad(offset: int) -> bool:
    return offset % 3 == 1


class Site(Protocol):
    """A directory or a table, as all processes share it."""

    format: str

    def opened(self, crash: CrashPoint, group: str) -> AbstractContextManager[LoadedDestination]:
        """What one process has of it; every change is a step of `crash`."""

    def rows(self) -> list[tuple[str, int, int, str]]:
        """(topic, partition, offset, load) of every row that a reader finds, duplicates included."""

    def leftovers(self) -> list[str]:
        """What lies in the staging area."""


@dataclass
class DeltaSite:
    output: Storage
    format: str = "delta"

    @contextmanager
    def opened(self, crash: CrashPoint, group: str) -> Iterator[LoadedDestination]:
        log = crash.guard(DeltaCommitLog(self.output, group), _LOG_CHANGES)
        yield DeltaDestination(crash.guard(self.output, _STORAGE_CHANGES), log, group)

    def rows(self) -> list[tuple[str, int, int, str]]:
        if not DeltaTable.is_deltatable(self.output.url):
            return []
        return _rows(DeltaTable(self.output.url).to_pyarrow_table())

    def leftovers(self) -> list[str]:
        return self.output.names("_staging/table")


@dataclass
class DirectorySite:
    output: Storage
    format: str = "parquet"

    @contextmanager
    def opened(self, crash: CrashPoint, group: str) -> Iterator[LoadedDestination]:
        output = crash.guard(self.output, _STORAGE_CHANGES)
        yield FilesDestination(output, crash.guard(FilesCommitLog(self.output, group), _LOG_CHANGES), group)

    def rows(self) -> list[tuple[str, int, int, str]]:
        found = []
        for directory in self.output.names(""):
            for name in self.output.names(directory) if directory.startswith("load=") else ():
                if name.endswith(".parquet"):
                    with self.output.open_input(f"{directory}/{name}") as file:
                        rows = pyarrow.parquet.read_table(file)
                    load = pa.array([directory.removeprefix("load=")] * rows.num_rows)
                    found += _rows(rows.append_column(LOAD_COLUMN, load))
        return found

    def leftovers(self) -> list[str]:
        return [name for kind in self.output.names("_staging") for name in self.output.names(f"_staging/{kind}")]


class _AnyGroup(IcebergWorld):
    """Also of a group that no user can have."""

    @property
    def target(self) -> Target:
        return replace(Target(self.name, "any", catalog=self.catalog).check(), group=self.group)


@dataclass
class IcebergSite:
    catalog: str
    name: str
    format: str = "iceberg"

    def opened(self, crash: CrashPoint, group: str) -> AbstractContextManager[LoadedDestination]:
        return _AnyGroup(self.catalog, group, name=self.name).opened(crash)

    def rows(self) -> list[tuple[str, int, int, str]]:
        with self._table() as table:
            return [] if table is None else _rows(table.scan().to_arrow())

    def leftovers(self) -> list[str]:
        with self._table() as table:
            return [] if table is None else storage_of(table).names("_staging")

    @contextmanager
    def _table(self) -> Iterator[Table | None]:
        catalog = open_catalog(self.catalog)
        try:
            name = self.name.removeprefix("iceberg:")
            yield catalog.load_table(name) if catalog.table_exists(name) else None
        finally:
            catalog.close()


@dataclass
class DeadLetterWorld:
    """Both places. Several worlds may share the table of dead letters."""

    group: str
    loads: Site
    bad: Site
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def grow(self, partitions: int = 2, count: int = 4) -> None:
        for partition in range(partitions):
            tp = TopicPartition("t", partition)
            self.ends[tp] = self.ends.get(tp, 0) + count

    @contextmanager
    def opened(self, crash: CrashPoint) -> Iterator[tuple[Destination, DeadLetters]]:
        with (
            self.loads.opened(crash, self.group) as site,
            self.bad.opened(crash, group_of(self.group, site.url)) as table,
        ):
            name = f"{self.bad.format}:{table.url.removeprefix('iceberg:')}"
            yield site, DeadLetters(site, table, name, self.group)

    def load(self, crash: CrashPoint | None = None, *, most: int | None = None) -> LoadRecord | None:
        """One load; None when nothing is new. `most`: records of each partition."""
        crash = crash or CrashPoint()
        with self.opened(crash) as (site, letters):
            site.repair()
            letters.settle()
            record = self._plan(site, letters, most)
            if record is None:
                return None
            with letters.settled_on_failure():
                sealed, files = self._write(crash, site, letters, record)
                site.seal(sealed)
                site.commit(sealed, files)
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

    def good_rows(self) -> list[Row]:
        return sorted(row[:3] for row in self.loads.rows())

    def bad_rows(self) -> list[Row]:
        """What a reader of the dead letters finds of this group's loads."""
        return sorted(row[:3] for row in self.bad.rows() if row[3].startswith(f"{self.group}-0"))

    def produced(self, *, bad: bool) -> list[Row]:
        rows = [(tp.topic, tp.partition, offset) for tp, end in self.ends.items() for offset in range(end)]
        return sorted(row for row in rows if is_bad(row[2]) is bad)

    def check_whole(self, step: object = "") -> None:
        assert self.good_rows() == self.produced(bad=False), step
        assert self.bad_rows() == self.produced(bad=True), step
        with self.opened(CrashPoint()) as (site, _):
            stand = {load.load_id for load in standing(site.log.records())}
        assert {row[3] for row in self.bad.rows() if row[3].startswith(f"{self.group}-0")} <= stand, step
        assert self.loads.leftovers() == [], step
        assert self.bad.leftovers() == [], step

    def _plan(self, site: Destination, letters: DeadLetters, most: int | None) -> LoadRecord | None:
        stored = site.log.offsets(self.ends)
        ranges = tuple(
            LoadRange(tp.topic, tp.partition, begin, end if most is None else min(end, begin + most), stored.get(tp))
            for tp, end in sorted(self.ends.items())
            if end > (begin := stored.get(tp, 0))
        )
        if not ranges:
            return None
        load_id = LoadId(self.group, site.log.newest().sequence + 1, secrets.token_hex(4))
        kind, format = site.log.kind, self.loads.format
        made = LoadRecord(str(load_id), site.url, format, kind, 0, ranges, dead_letters=(letters.name,))
        assert letters.is_settled_for(made)
        return made

    def _write(
        self, crash: CrashPoint, site: Destination, letters: DeadLetters, record: LoadRecord
    ) -> tuple[LoadRecord, Sequence[WrittenFile]]:
        """What write.py does."""
        try:
            layout = site.file_layout(record, _layout(record, self.loads.format))
            bad_layout = letters.file_layout(record, "zstd", 1 << 20)
            place = site.stage(record)
            output = crash.guard(site.task_output(place), ("open",))
            bad_output = crash.guard(letters.stage(), ("open",))
            good, bad = _written(record, layout, output, bad=False), _written(record, bad_layout, bad_output, bad=True)
            site.gather(place, good)
            sealed = record.completed(_counts(good), {file.name: file.size for file in good})
            sealed = sealed.with_bad_rows(_counts(bad))
            site.decide(sealed, good)
            letters.commit(sealed, bad)
        except Exception as error:
            overtaken = site.log.is_overtaken(record)
            site.discard(record.load_id)
            letters.discard()
            if overtaken:
                raise OffsetConflict(f"group '{self.group}' was overtaken") from error
            raise
        return sealed, good


def _layout(record: LoadRecord, format: str) -> FileLayout:
    if format == "parquet":
        return FileLayout(SCHEMA, TableColumns.of((), SCHEMA))
    return FileLayout(SCHEMA.append(pa.field(LOAD_COLUMN, pa.string())), TableColumns.of((), SCHEMA), record.load_id)


def _written(record: LoadRecord, layout: FileLayout, output: TaskOutput, *, bad: bool) -> list[WrittenFile]:
    """By a task for every range."""
    files = []
    for range in record.ranges:
        rows = rows_of(range)
        rows = rows.filter(pa.array([is_bad(offset) is bad for offset in rows["offset"].to_pylist()], pa.bool_()))
        if rows.num_rows:
            writer = FileWriter(layout, output)
            _collect(range.tp, rows, writer.write) if bad else writer.write(rows)
            files += writer.close()
    return files


def _collect(tp: TopicPartition, rows: pa.RecordBatch, write: Callable[[pa.RecordBatch], None]) -> None:
    columns = {"offset": rows["offset"], "timestamp": rows["timestamp"], "value": rows["value"]}
    columns["key"] = pa.nulls(rows.num_rows, pa.binary())
    columns["headers"] = pa.nulls(rows.num_rows, HEADERS_TYPE)
    collector = BadRecordRows(ReadFormats(), write)
    records = pa.RecordBatch.from_pydict({name: columns[name] for name in collector.needs})
    collector.write(tp, records, ["value: not JSON"] * rows.num_rows)


def _counts(files: Sequence[WrittenFile]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(count.topic, count.partition): count.rows
        for count in itertools.chain(*(f.counts for f in files))
    }


def _rows(table: pa.Table) -> list[tuple[str, int, int, str]]:
    rows = table.select(["topic", "partition", "offset", LOAD_COLUMN]).to_pylist()
    return [(row["topic"], row["partition"], row["offset"], row[LOAD_COLUMN]) for row in rows]


def dead_letter_world(
    root: Path, group: str, *, kind: str = "delta", bad_kind: str = "delta", bad: str = "bad", begin: bool = True
) -> DeadLetterWorld:
    """A place of loads with one load in it that had bad records, and new data to load."""
    catalog = add_catalog(root / "catalogs") if "iceberg" in (kind, bad_kind) else ""

    def site(kind: str, name: str) -> Site:
        if kind == "iceberg":
            return IcebergSite(catalog, f"iceberg:lake.{name}")
        output = open_storage(str(root / name))
        return DeltaSite(output) if kind == "delta" else DirectorySite(output)

    world = DeadLetterWorld(group, site(kind, f"loads-{group}"), site(bad_kind, bad))
    world.grow()
    if begin:
        assert world.load() is not None
        world.grow()
    return world
