"""Takes the rows of loads out of an Iceberg table, as one change of its files.

A file with rows of these loads only is removed as it is; the bounds of its column `load` say so. A file that has others
too, because a compaction has mixed them, is written anew without the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, In
from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import StringType

from spark_connector.loads.iceberg.iceberg_files import data_file, directory_of_load
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from spark_connector.loads.request import LOAD_COLUMN


def only_load(table: Table, task: FileScanTask) -> str | None:
    """The load of all rows of a file, where its bounds tell; rows that were deleted from the file count, too."""
    file, column = task.file, table.schema().find_field(LOAD_COLUMN).field_id
    low, high = (file.lower_bounds or {}).get(column), (file.upper_bounds or {}).get(column)
    if low is None or low != high or (file.null_value_counts or {}).get(column, 1):
        return None
    return str(from_bytes(StringType(), low))


def read_files(table: Table, tasks: Collection[FileScanTask], columns: Collection[str] | None = None) -> Iterator[pa.Table]:
    """The rows of these files, without those that were deleted from them, part by part; `columns`: None for all."""
    schema = table.schema() if columns is None else table.schema().select(*columns)
    for batch in ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_record_batches(tasks):
        yield pa.Table.from_batches([batch])


def rows_removed(table: Table, load_ids: Collection[str], own_id: str) -> Change:
    """The change that takes back these loads. New files are those of the load `own_id`."""
    added, removed = [], set[str]()
    undone = pa.array(sorted(load_ids), pa.string())
    tasks = table.scan(row_filter=In(LOAD_COLUMN, set(load_ids))).plan_files() if load_ids else ()
    for task in tasks:
        load_id = only_load(table, task)
        if load_id is not None:
            if load_id in load_ids:
                removed.add(task.file.file_path)
            continue
        loads = (part.column(LOAD_COLUMN) for part in read_files(table, [task], [LOAD_COLUMN]))
        if not any(pc.any(pc.is_in(load, value_set=undone)).as_py() for load in loads):
            continue
        removed.add(task.file.file_path)
        rewritten = _without(table, task, undone, own_id)
        if rewritten is not None:
            added.append(rewritten)
    return Change(added, removed, Operation.OVERWRITE)


def _without(table: Table, task: FileScanTask, undone: pa.Array, own_id: str) -> DataFile | None:
    """The file's other rows as a new file, with its partition; None when there are none."""
    name = f"{directory_of_load(own_id)}/part-{secrets.token_hex(12)}.parquet"
    location, footers = f"{table.location().rstrip('/')}/{name}", list[pa.parquet.FileMetaData]()
    schema = schema_to_pyarrow(table.schema())
    output = table.io.new_output(location)
    with output.create() as sink:
        writer = pyarrow.parquet.ParquetWriter(
            sink, schema, compression="zstd", metadata_collector=footers, store_schema=False
        )
        for part in read_files(table, [task]):
            writer.write_table(part.filter(pc.invert(pc.is_in(part.column(LOAD_COLUMN), value_set=undone))).cast(schema))
        writer.close()
    if not footers[0].num_rows:
        table.io.delete(location)
        return None
    spec_id = task.file.spec_id
    values = {field.name: task.file.partition[at] for at, field in enumerate(table.specs()[spec_id].fields)}
    return data_file(table.metadata, location, len(output.to_input_file()), footers[0], values, spec_id)
