"""An upsert into an Iceberg table as one change of its files: copy on write, of the files that have a changed row.

Files are skipped by the bounds of the key, and by partitions that are made of it. Of the others the key is read, and
those that have one of the load's keys are written anew without these rows. The rows to write are new files. There are
no delete files, so every reader reads the table at full speed.

Memory: the changes of the load after deduplication, and one data file of the table at a time.

A rewind writes the files of an older snapshot again, under new names. Under their own names they would be deleted as
soon as that snapshot expires, because the snapshot behind it did not have them.
"""

from __future__ import annotations

import posixpath
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyiceberg import expressions
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of

from broker.errors import ConfigError
from spark_connector.loads.changes import DELETED, PLACE
from spark_connector.loads.iceberg.iceberg_files import data_file, directory_of_load, files_of_rows, values_of
from spark_connector.loads.iceberg.iceberg_rows import read_files
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from spark_connector.loads.last_changes import rows_of_keys, touched, without_rows
from spark_connector.loads.record import LoadRecord
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.required import refuse_nulls
from spark_connector.loads.tasks.transforms import split
from spark_connector.loads.upsert import Upsert

_e: Any = expressions  # its classes take columns by name, which their types do not say
RecordOf = Callable[[Snapshot], LoadRecord | None]
"""Gives the load that made a snapshot; None for one of another writer."""

_FEW = 200  # values that pyiceberg compares with the bounds of a file


class FileMaker:
    """Writes the new data files of one commit, below the load's own directory. `try_again` removes them."""

    def __init__(self, load_id: str, sync: Callable[[str], None]) -> None:
        self._load_id = load_id
        self._sync = sync
        self._made: list[str] = []

    @property
    def names(self) -> set[str]:
        """The files' names below the directory."""
        return set(map(posixpath.basename, self._made))

    def write(
        self, table: Table, schema: pa.Schema, parts: Iterable[pa.Table], values: Mapping[str, Any], spec_id: int
    ) -> list[DataFile]:
        """Files of these rows, which are of one partition; none when there are none."""
        return self._synced(files_of_rows(table, self._load_id, schema, parts, values, spec_id))

    def copy(self, table: Table, file: DataFile) -> list[DataFile]:
        """The same rows under a new name."""
        place = f"{table.location().rstrip('/')}/{directory_of_load(self._load_id)}"
        location = f"{place}/part-{secrets.token_hex(12)}.parquet"
        with table.io.new_input(file.file_path).open() as source, table.io.new_output(location).create() as sink:
            shutil.copyfileobj(source, sink)
        with table.io.new_input(location).open() as source:
            footer = pyarrow.parquet.read_metadata(source)
        size, values = file.file_size_in_bytes, values_of(table, file)
        return self._synced([data_file(table.metadata, location, size, footer, values, file.spec_id)])

    def try_again(self, table: Table) -> None:
        """Remove the files of a commit that has certainly failed."""
        for location in self._made:
            table.io.delete(location)
        self._made.clear()

    def _synced(self, files: list[DataFile]) -> list[DataFile]:
        for file in files:
            self._made.append(file.file_path)
            self._sync(f"{directory_of_load(self._load_id)}/{posixpath.basename(file.file_path)}")
        return files


def merged(table: Table, changes: pa.Table | None, upsert: Upsert, layout: FileLayout, files: FileMaker) -> Change:
    """The change of the files of this state of the table. `layout` is that of the rows, fitted to the table.

    Raises LoadError for a change that cannot be ordered, and for a null in a column that the table requires.
    """
    files.try_again(table)
    if changes is None or not changes.num_rows:
        return Change()

    def read(task: FileScanTask, columns: Sequence[str]) -> Iterator[pa.Table]:
        return read_files(table, [task], columns)

    tasks = table.scan(row_filter=_bounds(changes, upsert.key)).plan_files()
    found, wanted = touched(changes, upsert, tasks, read)
    added = [file for task in found for file in _rewritten(table, task, wanted, upsert.key, files)]
    written = wanted.filter(pc.invert(wanted.column(DELETED)))
    refuse_nulls(written, layout.schema, PLACE)
    for values, part in split(written, layout.partition_by):
        added += files.write(table, layout.schema, [part], values, layout.spec_id)
    removed = frozenset(task.file.file_path for task in found)
    return Change(added, removed, Operation.OVERWRITE if removed else Operation.APPEND)


def rewound(
    table: Table, rewind: LoadRecord, record_of: Callable[[Snapshot], LoadRecord | None], files: FileMaker
) -> Change:
    """The change that brings back the rows of the load that the rewind names.

    Raises ConfigError when its snapshot has expired, or another writer has changed the rows since.
    """
    if rewind.is_refusal:
        return Change()
    files.try_again(table)
    snapshot = snapshot_to_restore(table, rewind, record_of)
    head = table.metadata.snapshot_by_name(MAIN_BRANCH)
    now, then = _files_of(table, head), _files_of(table, snapshot)
    added = [copy for path, file in then.items() if path not in now for copy in files.copy(table, file)]
    return Change(added, frozenset(now.keys() - then.keys()), Operation.OVERWRITE)


def snapshot_to_restore(table: Table, rewind: LoadRecord, record_of: RecordOf) -> Snapshot:
    """The snapshot of the load to go back to. Raises ConfigError, see `rewound`."""
    assert rewind.rewind is not None
    for snapshot in ancestors_of(table.metadata.snapshot_by_name(MAIN_BRANCH), table.metadata):
        record = record_of(snapshot)
        if record is not None and record.load_id == rewind.rewind.to_load:
            return snapshot
        operation = snapshot.summary.operation if snapshot.summary else None
        is_own = record is not None and record.id.group == rewind.id.group
        if not is_own and operation != Operation.REPLACE:
            raise ConfigError(
                f"snapshot {snapshot.snapshot_id} of the Iceberg table is of another writer, whose rows would be lost: "
                "a table with one row per key goes back by its snapshots only"
            )
    raise ConfigError(
        f"the snapshot of load {rewind.rewind.to_load} has expired: a table with one row per key goes back by its "
        "snapshots only (--keep-snapshots says how many stay). Load the topic into a new table"
    )


def _rewritten(
    table: Table, task: FileScanTask, wanted: pa.Table, key: Sequence[str], files: FileMaker
) -> list[DataFile]:
    """The file without the rows that have one of the keys."""
    others = (without_rows(part, rows_of_keys(wanted, part, key)[0]) for part in read_files(table, [task]))
    values = values_of(table, task.file)
    return files.write(table, schema_to_pyarrow(table.schema()), others, values, task.file.spec_id)


def _files_of(table: Table, snapshot: Snapshot | None) -> dict[str, DataFile]:
    """The data files of a snapshot, by path. Raises ConfigError when rows are deleted from them by other files."""
    found = {}
    tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files() if snapshot is not None else ()
    for task in tasks:
        if task.delete_files:
            raise ConfigError("the Iceberg table has delete files, of another writer: compact it before a rewind")
        found[task.file.file_path] = task.file
    return found


def _bounds(changes: pa.Table, key: Sequence[str]) -> BooleanExpression:
    """A condition that all keys of the changes fulfil, by which files are skipped."""
    found: BooleanExpression = AlwaysTrue()
    for name in key:
        values = changes.column(name).unique()
        if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
            continue
        if len(values) <= _FEW:  # also skips by buckets of the key
            found = _e.And(found, _e.In(name, set(values.to_pylist())))
        else:
            low, high = pc.min_max(values).as_py().values()
            found = _e.And(found, _e.And(_e.GreaterThanOrEqual(name, low), _e.LessThanOrEqual(name, high)))
    return found
