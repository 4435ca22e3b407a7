"""Loads into tables without Spark and broker: a real Delta or Iceberg table or database, rows written as tasks do.

Used by the tests of delta/, iceberg/ and database/. A `TableWorld` is what all processes share; its `load` is one
process that loads what is new, through a `CrashPoint`.
"""

from __future__ import annotations

import functools
import itertools
import os
import posixpath
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet
import sqlalchemy
from deltalake import DeltaTable
from pyiceberg.table import Table

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage, open_storage
from spark_connector.loads.addresses import DatabaseAddress
from spark_connector.loads.compaction import CompactionOptions, CompactionResult
from spark_connector.loads.database.database_log import DatabaseCommitLog
from spark_connector.loads.database.database_table import DatabaseDestination, TableName
from spark_connector.loads.database.sql import open_engine
from spark_connector.loads.delta.delta_log import DeltaCommitLog
from spark_connector.loads.delta.delta_table import DeltaDestination
from spark_connector.loads.destination import Destination
from spark_connector.loads.grammar import parse_partition_by
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog
from spark_connector.loads.iceberg.iceberg_log import IcebergCommitLog
from spark_connector.loads.iceberg.iceberg_table import IcebergDestination, storage_of
from spark_connector.loads.record import LoadId, LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN, Target
from spark_connector.loads.tasks.columns import TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.transforms import bind
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.write_options import FILES, written_as
from spark_connector.offset_store.base import OffsetConflict
from tests.support.crashing import CrashPoint
from tests.support.fake_s3 import FakeS3

COMPACT_ALL = CompactionOptions(rewindable_s=0)

Row = tuple[str, int, int]
"""(topic, partition, offset)"""

_counter = itertools.count()

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def rows_of(range_: LoadRange) -> pa.RecordBatch:
    """The records of a range, their content told by their position."""
    offsets = list(range(range_.start, range_.end))
    columns = [
        [f"{range_.topic}-{range_.partition}-{offset}".encode() for offset in offsets],
        [range_.topic] * len(offsets),
        [range_.partition] * len(offsets),
        offsets,
        [1_700_000_000_000_000 + offset for offset in offsets],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def layout_of(record: LoadRecord) -> FileLayout:
    fields = bind(parse_partition_by(record.partition_by), SCHEMA, record.format)
    schema, kind = SCHEMA.append(pa.field(LOAD_COLUMN, pa.string())), written_as(record.format)
    codec = next(iter(FILES[kind].suffixes))
    return FileLayout(schema, TableColumns.of((), SCHEMA), record.load_id, fields, format=kind, compression=codec)


def write_directly(
    site: Destination, record: LoadRecord, place: str, output: TaskOutput | None = None
) -> tuple[LoadRecord, list[WrittenFile]]:
    """What write.py does, with a task for every range."""
    layout = site.file_layout(record, layout_of(record))
    files: list[WrittenFile] = []
    for range in record.ranges:
        writer = FileWriter(layout, output or site.task_output(place))
        writer.write(rows_of(range))
        files += writer.close()
    site.gather(place, files)
    return record.completed({range.tp: range.size for range in record.ranges}, _sizes(files)), files


def _sizes(files: Iterable[WrittenFile]) -> dict[str, int]:
    return {file.name: file.size for file in files}


def with_load(rows: pa.RecordBatch, load_id: str | None) -> pa.Table:
    """The rows with the column that names their load."""
    return pa.Table.from_batches([rows]).append_column("load", pa.array([load_id] * rows.num_rows, pa.string()))


@dataclass
class TableWorld:
    """A table, and a topic whose partitions grow. `ends` may be shared by the worlds of several groups."""

    group: str
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    topic: str = "t"
    reading: dict[str, str] | None = None
    least_steps = 5
    """So many changes does a load make at least; fewer would mean that the crash point does not see them."""
    keeps_rows = True
    """False: there are no rows that a person could change or delete."""
    layout: FileLayout | None = None
    """What the table has given for the files that were written last; None: not kept."""
    knows_owners = True
    """Whether an attempt names the process that runs it."""

    @property
    def target(self) -> Target:
        """As a caller names the loads."""
        raise NotImplementedError

    def grow(self, partitions: int = 2, count: int = 3) -> None:
        for partition in range(partitions):
            tp = TopicPartition(self.topic, partition)
            self.ends[tp] = self.ends.get(tp, 0) + count

    def load(self, crash: CrashPoint | None = None) -> LoadRecord | None:
        """One load, as load.py does it; None when there is nothing new."""
        with self.opened(crash or CrashPoint()) as site:
            site.repair()
            record = self.plan(site)
            if record is None:
                return None
            place = site.stage(record)
            try:
                sealed, files = self.write(site, record, place)
                site.seal(sealed)
            except Exception as error:
                if not site.log.is_overtaken(record):
                    raise
                site.discard(record.load_id)
                raise OffsetConflict(f"group '{self.group}' was overtaken") from error
            site.commit(sealed, files, self.layout)
            return sealed

    def plan(self, site: Destination) -> LoadRecord | None:
        stored = site.log.offsets(self.ends)
        ranges = tuple(
            LoadRange(tp.topic, tp.partition, stored.get(tp, 0), end, stored.get(tp))
            for tp, end in sorted(self.ends.items())
            if end > stored.get(tp, 0)
        )
        if not ranges:
            return None
        load_id = LoadId(self.group, site.log.newest().sequence + 1, secrets.token_hex(4))
        return LoadRecord(
            str(load_id), site.url, str(self.target.format), site.log.kind, 0, ranges, reading=self.reading
        )

    def produced(self) -> list[Row]:
        return sorted((tp.topic, tp.partition, offset) for tp, end in self.ends.items() for offset in range(end))

    def opened(self, crash: CrashPoint) -> Any:
        """The destination, every change of which is a step of `crash`."""
        raise NotImplementedError

    def write(self, site: Destination, record: LoadRecord, place: str) -> tuple[LoadRecord, list[WrittenFile]]:
        raise NotImplementedError

    def visible(self) -> list[Row]:
        """Every row that a reader of the table finds, duplicates included."""
        raise NotImplementedError

    def leftovers(self) -> list[str]:
        """What is there beside the table and the log."""
        raise NotImplementedError


World = TypeVar("World", bound=TableWorld)


class CompactionWorld(TableWorld):
    """A table of files, which can be compacted."""

    last_step_before_commit = 1
    """Of a compaction; its tasks write beside the steps."""

    def compact(self, options: CompactionOptions = COMPACT_ALL, crash: CrashPoint | None = None) -> CompactionResult:
        with self.opened(crash or CrashPoint()) as site:
            done: CompactionResult = site.compaction().run(options)
            return done

    def load_more(self, loads: int = 3) -> None:
        """As many loads of two files each, and new data."""
        for _ in range(loads):
            self.load()
            self.grow()

    def read(self) -> pa.Table:
        """The whole table, by a reader that is not ours."""
        raise NotImplementedError

    def rows(self) -> list[str]:
        return sorted(map(str, self.read().to_pylist()))

    def files(self) -> list[str]:
        """The URLs of the files of its newest state."""
        raise NotImplementedError

    def delete(self, where: str) -> None:
        """As another program does."""
        raise NotImplementedError

    def storage(self) -> Storage:
        """Where its files are."""
        raise NotImplementedError

    def intents(self) -> list[str]:
        """Of compactions that have begun."""
        return self.storage().names("_staging/compaction")

    def left(self) -> list[str]:
        """Intents of compactions, and files of theirs that no state of the table has named."""
        return [*self.intents(), *self._unnamed()]

    def _unnamed(self) -> list[str]:
        raise NotImplementedError


class DeltaWorld(CompactionWorld):
    """A Delta table in a directory."""

    def __init__(self, output: Storage, group: str, ends: dict[TopicPartition, int] | None = None) -> None:
        super().__init__(group, {} if ends is None else ends)
        self.output = output
        self._crash = CrashPoint()

    @property
    def target(self) -> Target:
        return Target(self.output.url, self.group, storage_options=self.output.options, format="delta").check()

    @contextmanager
    def opened(self, crash: CrashPoint) -> Iterator[DeltaDestination]:
        self._crash = crash
        output = crash.guard(self.output, ("create", "rename", "remove", "make_directory"))
        log = crash.guard(DeltaCommitLog(self.output, self.group), ("append",))
        yield DeltaDestination(output, log, self.group)

    def write(self, site: Destination, record: LoadRecord, place: str) -> tuple[LoadRecord, list[WrittenFile]]:
        output = self._crash.guard(site.task_output(place), ("open",))
        sealed, files = write_directly(site, record, place, output)
        named = []
        for file, range in zip(files, record.ranges, strict=True):  # by names that tests can tell
            name = posixpath.join(posixpath.dirname(file.name), f"part-{range.partition}.parquet")
            self.output.create(f"{place}/{name}", self.output.read(f"{place}/{file.name}"))
            self.output.remove(f"{place}/{file.name}")
            named.append(replace(file, name=name))
        return sealed.completed({range.tp: range.size for range in record.ranges}, _sizes(named)), named

    def read(self) -> pa.Table:
        return DeltaTable(self.output.url).to_pyarrow_table()

    def files(self) -> list[str]:
        return DeltaTable(self.output.url).file_uris()

    def delete(self, where: str) -> None:
        DeltaTable(self.output.url).delete(where)

    def storage(self) -> Storage:
        return self.output

    def _unnamed(self) -> list[str]:
        """Directories of compactions."""
        committed = str(DeltaTable(self.output.url).history())
        return [name for name in self.output.names("compacted") if name not in committed]

    def visible(self) -> list[Row]:
        options = self.output.object_store_options
        if not DeltaTable.is_deltatable(self.output.url, options):
            return []
        table = DeltaTable(self.output.url, storage_options=options)
        rows = table.to_pyarrow_table(columns=["topic", "partition", "offset"]).to_pylist()
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)

    def leftovers(self) -> list[str]:
        staged = self.output.names("_staging/table")
        committed = DeltaCommitLog(self.output, self.group)
        loads = {record.load_id for record in map(committed.record, committed.sequences()) if record}
        directories = {name for name in self.output.names("") if not name.startswith("_")}
        return staged + sorted(name for name in directories - loads if f"{self.group}-0" in name)


class IcebergWorld(CompactionWorld):
    """An Iceberg table in a catalog that `add_catalog` has configured."""

    last_step_before_commit = 2

    def __init__(
        self,
        catalog: str,
        group: str,
        ends: dict[TopicPartition, int] | None = None,
        name: str = "iceberg:lake.rows",
        keep_snapshots: int | None = None,
    ) -> None:
        super().__init__(group, {} if ends is None else ends)
        self.catalog = catalog
        self.name = name
        self.keep_snapshots = keep_snapshots

    @property
    def target(self) -> Target:
        return Target(self.name, self.group, catalog=self.catalog, keep_snapshots=self.keep_snapshots).check()

    @contextmanager
    def opened(self, crash: CrashPoint) -> Iterator[IcebergDestination]:
        """Also the catalog's commit is a step: a process may die when it has committed and knows nothing of it."""
        catalog = open_catalog(self.catalog)
        place = IcebergPlace(crash.guard(catalog, ("commit_table", "create_table")), self.target.iceberg_name)
        log = IcebergCommitLog(place, self.group, self.keep_snapshots)
        try:
            yield _Iceberg(crash, place, crash.guard(log, ("append",)), self.group)
        finally:
            catalog.close()

    def write(self, site: Destination, record: LoadRecord, place: str) -> tuple[LoadRecord, list[WrittenFile]]:
        return write_directly(site, record, place)

    def table(self) -> Table:
        """As another program has it."""
        return open_catalog(self.catalog).load_table(self.target.iceberg_name.identifier)

    def read(self) -> pa.Table:
        return self.table().scan().to_arrow()

    def files(self) -> list[str]:
        return [task.file.file_path for task in self.table().scan().plan_files()]

    def delete(self, where: str) -> None:
        self.table().delete(where)

    def storage(self) -> Storage:
        return storage_of(self.table())

    def _unnamed(self) -> list[str]:
        table = self.table()
        named = set(table.inspect.all_data_files().column("file_path").to_pylist())
        written = storage_of(table).tree_sizes("data/compacted")
        return [name for name in written if f"{table.location()}/data/compacted/{name}" not in named]

    def visible(self) -> list[Row]:
        if not open_catalog(self.catalog).table_exists(self.target.iceberg_name.identifier):
            return []
        rows = self.table().scan(selected_fields=("topic", "partition", "offset")).to_arrow().to_pylist()
        return sorted((row["topic"], row["partition"], row["offset"]) for row in rows)

    def leftovers(self) -> list[str]:
        """Intents of the group, and data files that no snapshot names."""
        table = self.table()
        storage, location = storage_of(table), table.location()
        named = {row["file_path"] for row in table.inspect.all_data_files().to_pylist()}
        files = [name for name in storage.tree_sizes("data") if f"{location}/data/{name}" not in named]
        return [name for name in (*storage.names("_staging"), *files) if name.startswith(f"{self.group}-0")]

    def named_metadata(self) -> set[str]:
        """The manifests and manifest lists that snapshots name."""
        table = self.table()
        lists = {snapshot.manifest_list for snapshot in table.metadata.snapshots}
        manifests = {one.manifest_path for snapshot in table.metadata.snapshots for one in snapshot.manifests(table.io)}
        return {posixpath.basename(path) for path in lists | manifests}


class _Iceberg(IcebergDestination):
    """The destination, of which every change of the table's directory is a step."""

    def __init__(self, crash: CrashPoint, place: IcebergPlace, log: IcebergCommitLog, group: str) -> None:
        super().__init__(place, log, group)
        self._crash = crash

    def storage(self) -> Storage | None:
        storage = super().storage()
        steps = ("create", "rename", "remove", "make_directory")
        return None if storage is None else self._crash.guard(storage, steps)

    def task_output(self, place: str) -> TaskOutput:
        return self._crash.guard(super().task_output(place), ("open",))


def add_catalog(root: Path, warehouse: str | None = None, **settings: str) -> str:
    """Configure a new catalog in SQLite, with the namespace `lake`, as a user does; gives its name.

    The warehouse is below `root`, unless it is on an object store; `s3__region` is pyiceberg's setting s3.region.
    """
    name = f"test{next(_counter)}"
    root.mkdir(exist_ok=True)
    os.environ[f"PYICEBERG_CATALOG__{name.upper()}__URI"] = f"sqlite:///{root}/{name}.db"
    os.environ[f"PYICEBERG_CATALOG__{name.upper()}__WAREHOUSE"] = warehouse or f"file://{root}/{name}"
    for setting, value in settings.items():
        os.environ[f"PYICEBERG_CATALOG__{name.upper()}__{setting.upper()}"] = value
    open_catalog(name).create_namespace("lake")
    return name


class DatabaseWorld(TableWorld):
    """A table in a database; every statement is a step."""

    knows_owners = False

    def __init__(
        self, address: DatabaseAddress, group: str, ends: dict[TopicPartition, int] | None = None, topic: str = "t"
    ) -> None:
        super().__init__(group, {} if ends is None else ends, topic)
        self.address = address

    @property
    def target(self) -> Target:
        return Target(
            self.address.url, self.group, table=str(TableName(self.address.table, self.address.schema))
        ).check()

    @contextmanager
    def opened(self, crash: CrashPoint) -> Iterator[DatabaseDestination]:
        engine = open_engine(self.address.url)
        _count_statements(engine, crash)
        log = DatabaseCommitLog(engine, self.group, self.address.shown)
        try:
            yield DatabaseDestination(engine, self.address, log, self.group)
        finally:
            engine.dispose()

    def write(self, site: Destination, record: LoadRecord, place: str) -> tuple[LoadRecord, list[WrittenFile]]:
        writer = FileWriter(site.file_layout(record, layout_of(record)), site.task_output(place))
        writer.write(rows_of(record.ranges[0]))  # an attempt that does not count
        writer.close()
        return write_directly(site, record, place)[0], []

    def visible(self) -> list[Row]:
        table = sqlalchemy.table(
            self.address.table, *map(sqlalchemy.column, ("topic", "partition", "offset")), schema=self.address.schema
        )
        engine = open_engine(self.address.url)
        if not sqlalchemy.inspect(engine).has_table(self.address.table):
            return []
        with engine.connect() as connection:
            return sorted((row[0], row[1], row[2]) for row in connection.execute(sqlalchemy.select(table)))

    def leftovers(self) -> list[str]:
        with self.opened(CrashPoint()) as site:
            return sorted(site.staged())


def _relax(connection: Any, _record: object) -> None:
    """SQLite without fsync: no power is cut here, and these tests commit a thousand times."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


def _count_statements(engine: sqlalchemy.Engine, crash: CrashPoint) -> None:
    """Statements that change something are steps of `crash`; so are commits. A dead process sends nothing."""

    def before(connection: Any, cursor: Any, statement: str, *_rest: Any) -> None:
        crash.check_alive()
        word = statement.split(None, 1)[0].upper()
        if word in ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP"):
            crash.around(statement[:60], _nothing)

    sqlalchemy.event.listen(engine, "connect", _relax)
    sqlalchemy.event.listen(engine, "before_cursor_execute", before)
    sqlalchemy.event.listen(engine, "commit", functools.partial(_commits, crash))


def _commits(crash: CrashPoint, _connection: Any) -> None:
    crash.around("COMMIT", _nothing)


def _nothing() -> None:
    pass


def delta_world(root: Path, *, begin: bool = True) -> DeltaWorld:
    number = next(_counter)
    world = DeltaWorld(open_storage(str(root / f"table-{number}")), f"group-{number}")
    return begun(world) if begin else world


def s3_world(s3: FakeS3, *, begin: bool = True) -> DeltaWorld:
    number = next(_counter)
    world = DeltaWorld(open_storage(f"s3://lake/table-{number}", s3.options), f"group-{number}")
    return begun(world) if begin else world


def iceberg_world(root: Path, *, begin: bool = True) -> IcebergWorld:
    world = IcebergWorld(add_catalog(root), f"group-{next(_counter)}")
    return begun(world) if begin else world


def sqlite_world(root: Path, *, begin: bool = True) -> DatabaseWorld:
    number = next(_counter)
    world = DatabaseWorld(DatabaseAddress.parse(f"sqlite:///{root}/{number}.db", "rows"), f"group-{number}")
    return begun(world) if begin else world


def begun(world: World) -> World:
    """A table with one good load in it, and new data to load."""
    world.grow()
    assert world.load() is not None
    world.grow()
    return world


def check_whole(world: TableWorld, step: object = "") -> None:
    assert world.visible() == world.produced(), step
    assert world.leftovers() == [], step


def load_without_result(world: TableWorld) -> None:
    world.load()
