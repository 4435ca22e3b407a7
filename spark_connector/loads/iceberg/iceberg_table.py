"""An Iceberg table as the destination of loads, as lake.py says: tasks write parquet files, and one commit adds them.

    <table>/_staging/<load id>/intent.json
    <table>/data/<load id>/part-…
    the catalog's commit_table               iceberg_log.py

The table is created by the first load, and its namespace is not: it belongs to whoever keeps the catalog. Imported only
for format=iceberg, because `pyiceberg` is an extra.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage, open_storage
from spark_connector.loads.addresses import IcebergName
from spark_connector.loads.change_files import UPSERT_PROPERTY, check_marker, marker_of
from spark_connector.loads.iceberg.iceberg_catalog import IcebergPlace, open_catalog, plain_error
from spark_connector.loads.iceberg.iceberg_compaction import IcebergCompaction
from spark_connector.loads.iceberg.iceberg_creation import is_unused, made_anew
from spark_connector.loads.iceberg.iceberg_evolution import evolve_table
from spark_connector.loads.iceberg.iceberg_files import IcebergOutput, data_files, directory_of_load, load_of
from spark_connector.loads.iceberg.iceberg_log import KEEP_SNAPSHOTS, IcebergCommitLog, groups_of, record_of, state_of
from spark_connector.loads.iceberg.iceberg_merge import FileMaker, merged, rewound, snapshot_to_restore
from spark_connector.loads.iceberg.iceberg_read import snapshot_of
from spark_connector.loads.iceberg.iceberg_rows import of_loads, of_loads_or_none, of_none_in, only_load, read_files
from spark_connector.loads.iceberg.iceberg_schema import PROPERTIES, fitted_layout, new_order, new_schema, new_spec
from spark_connector.loads.lake import LakeDestination
from spark_connector.loads.record import LoadError, LoadFile, LoadRange, LoadRecord
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.loads.shared_path import is_local
from spark_connector.loads.table import ROW_SCHEMA
from spark_connector.loads.table_snapshot import TableSnapshot, TableVersion
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.written_file import WrittenFiles


def open_iceberg(catalog: str, name: IcebergName, group: str, keep_snapshots: int | None) -> IcebergDestination:
    """The table, which need not exist yet. Raises ConfigError for a catalog that cannot be used."""
    place = IcebergPlace(open_catalog(catalog), name)
    keep = KEEP_SNAPSHOTS if keep_snapshots is None else keep_snapshots
    return IcebergDestination(place, IcebergCommitLog(place, group, keep), group)


class IcebergDestination(LakeDestination[Table]):
    """The table, and the loads of one group in it."""

    log: IcebergCommitLog
    title = "Iceberg table"
    unreadable = (pa.ArrowException, OSError, ValueError, NotImplementedError)

    def __init__(self, place: IcebergPlace, log: IcebergCommitLog, group: str) -> None:
        super().__init__(place.shown, log, group)
        self._place = place

    def file_layout(self, record: LoadRecord, layout: FileLayout) -> FileLayout:
        """Create the table, or let it grow where it may, and check that it takes these rows.

        Raises ConfigError, LoadError.
        """
        table = self.log.table()
        if table is None:
            table = self._create(layout, record)
            self.stage(record)
        elif is_unused(table):
            table = made_anew(self._place, table, layout, _marker_of(record))
        check_marker(table.metadata.properties.get(UPSERT_PROPERTY), record, self.url)
        table = evolve_table(self._place, table, layout)
        return fitted_layout(table.metadata, layout, self.url)

    def local_place(self) -> str | None:
        table = self.log.table()
        location = self._place.new_location() if table is None else _location(table)
        return location if is_local(location) else None

    def task_output(self, place: str) -> TaskOutput:
        table = self.there()
        return IcebergOutput(f"{_location(table)}/{place}", dict(table.io.properties))

    def compaction(self) -> IcebergCompaction:
        return IcebergCompaction(self.log, self._group, self.url, self.storage_there(), self.task_output)

    def topics_by_group(self) -> Mapping[str, set[str]]:
        """By the properties: they name every partition that a group has loaded, and no program lets them expire."""
        table = self.log.table()
        found: dict[str, set[str]] = {}
        if table is None:
            return found
        for group in groups_of(table.metadata):
            state = state_of(table.metadata, group, self.url)
            found[group] = {tp.topic for tp in state.offsets} | set(state.topic_ids)
        return found

    def table_of(self, output: str = "") -> Table | None:
        return self.log.table()

    def storage(self) -> Storage | None:
        table = self.log.table()
        return None if table is None else storage_of(table)

    def directories(self, load_id: str) -> Sequence[str]:
        return (directory_of_load(load_id),)

    def column_names(self, table: Table | None) -> set[str]:
        return set() if table is None else {field.name for field in table.schema().fields}

    def append(self, record: LoadRecord, files: WrittenFiles, layout: FileLayout | None) -> Collection[str]:
        if record.upsert is None:
            self.log.append(record, files, layout.spec_id if layout else None)
            return ()
        upsert, made = record.upsert, FileMaker(record.load_id, self.storage_there().sync)
        if record.rewind is not None:
            self.log.append_change(record, lambda table: rewound(table, record, self._record_of, made))
            return made.names
        assert layout is not None
        changes = self.changes(record, files)
        self.log.append_change(record, lambda table: merged(table, changes(), upsert, layout, made))
        return made.names

    def read_rows(self, table: Table | None, load_ids: Sequence[str]) -> Iterator[pa.Table]:
        assert table is not None
        scan = table.scan(row_filter=of_loads(load_ids), selected_fields=tuple(ROW_SCHEMA.names))
        for batch in scan.to_arrow_batch_reader():
            yield pa.Table.from_batches([batch]).select(ROW_SCHEMA.names).cast(ROW_SCHEMA)

    def stored_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        table = self.there()
        for task in table.scan().plan_files():
            yield from read_files(table, [task], columns)

    def rows_by_load(self, table: Table | None, load_ids: Collection[str] | None = None) -> dict[str | None, int]:
        """By the bounds of files that have rows of one load only; others are read."""
        assert table is not None
        scan = table.scan() if load_ids is None else table.scan(row_filter=of_loads_or_none(load_ids))
        found: dict[str | None, int] = {}
        for task in scan.plan_files():
            load_id = None if task.delete_files else only_load(table, task)
            if load_id is not None:
                found[load_id] = found.get(load_id, 0) + task.file.record_count
                continue
            for part in read_files(table, [task], [LOAD_COLUMN]):
                for row in part.column(LOAD_COLUMN).value_counts().to_pylist():
                    found[row["values"]] = found.get(row["values"], 0) + row["counts"]
        return found

    def unnamed_rows(self, table: Table | None, range: LoadRange) -> int:
        assert table is not None
        return int(table.scan(row_filter=of_none_in(range)).count())

    def files_of_loads(self, records: Sequence[LoadRecord]) -> dict[str, tuple[str, tuple[LoadFile, ...]]]:
        table = self.log.table()
        if table is None:
            return {}
        files = _files_by_load(table)
        found = {record.load_id: files.get(record.load_id, ()) for record in records if record.rewind is None}
        return {
            load_id: (f"{_location(table)}/{directory_of_load(load_id)}", listed)
            for load_id, listed in found.items()
            if listed
        }

    def check_rewind(self, rewind: LoadRecord) -> None:
        assert rewind.rewind is not None
        if rewind.rewind.delete:
            raise ConfigError(
                "a rewind always removes the rows of an Iceberg table; their files go when the snapshots before it "
                "expire, not by --delete"
            )
        table = self.log.table()
        if table is not None and rewind.upsert is not None:
            snapshot_to_restore(table, rewind, self._record_of)
        elif table is not None:
            super().check_rewind(rewind)

    def snapshot(self, partitions: Collection[TopicPartition], version: str | None = None) -> TableSnapshot:
        return snapshot_of(self.log, self.url, version)

    def versions(self, most: int) -> list[TableVersion]:
        table, found = self.log.table(), []
        for one in [] if table is None else table.metadata.snapshots[-most:]:
            record = self._record_of(one)
            load_id = record.load_id if record is not None and record.id.group == self._group else ""
            what = one.summary.operation.value if one.summary else ""
            found.append(TableVersion(str(one.snapshot_id), one.timestamp_ms, what, load_id))
        return found

    def plain_error(self, error: Exception) -> LoadError | None:
        return plain_error(self.url, error)

    def _record_of(self, snapshot: Snapshot) -> LoadRecord | None:
        return record_of(snapshot, self.url)

    def _create(self, layout: FileLayout, record: LoadRecord) -> Table:
        schema = new_schema(layout)
        try:
            return self._place.catalog.create_table(
                self._place.name.identifier,
                schema,
                partition_spec=new_spec(layout, schema),
                sort_order=new_order(layout, schema),
                properties={**PROPERTIES, **_marker_of(record)},
            )
        except TableAlreadyExistsError:  # another process has created it
            return self.there()
        except NoSuchNamespaceError as error:
            namespace = self._place.name.namespace
            raise ConfigError(
                f"the catalog has no namespace '{namespace}': create it (CREATE NAMESPACE {namespace} in Spark, or "
                f"`pyiceberg --catalog NAME create namespace {namespace}`)"
            ) from error


def _marker_of(record: LoadRecord) -> dict[str, str]:
    """The property of a table that upserts fill."""
    return {} if record.upsert is None else {UPSERT_PROPERTY: marker_of(record)}


def storage_of(table: Table) -> Storage:
    """The directory of the table, for what pyiceberg's FileIO cannot: list, and remove directories."""
    location = _location(table)
    scheme = urlsplit(location).scheme
    if scheme in {"", "file"}:
        return open_storage(location)
    scheme, netloc, path = PyArrowFileIO.parse_location(location, table.io.properties)
    io = PyArrowFileIO(dict(table.io.properties))
    return _ObjectStorage(ArrowFSWrapper(io.fs_by_scheme(scheme, netloc)), path.rstrip("/"), location, {})


class _ObjectStorage(Storage):
    """An object store as pyiceberg reaches it. Intents have names of their own, so `create` needs no condition."""

    def create(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._full(path), data)


def _location(table: Table) -> str:
    return table.location().rstrip("/")


def _files_by_load(table: Table) -> dict[str, tuple[LoadFile, ...]]:
    """Load id → the files that the load has written and the table still has, by name below the load's directory."""
    found: dict[str, list[LoadFile]] = {}
    for file in data_files(table):
        load_id = load_of(table.location(), file.file_path)
        if load_id is not None:
            name = posixpath.relpath(file.file_path, f"{_location(table)}/{directory_of_load(load_id)}")
            found.setdefault(load_id, []).append(LoadFile(name, file.file_size_in_bytes))
    return {load_id: tuple(sorted(files, key=lambda file: file.name)) for load_id, files in found.items()}
