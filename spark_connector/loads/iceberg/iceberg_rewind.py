"""Takes the rows of loads out of an Iceberg table, as one change of its files.

A file with rows of these loads only is removed as it is; the bounds of its column `load` say so. A file that has others
too, because a compaction has mixed them, is written anew without the rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

from spark_connector.loads.iceberg.iceberg_files import data_file, directory_of_load
from spark_connector.loads.iceberg.iceberg_rows import of_loads, only_load, read_files
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from spark_connector.loads.request import LOAD_COLUMN


def rows_removed(table: Table, load_ids: Collection[str], own_id: str) -> Change:
    """The change that takes back these loads. New files are those of the load `own_id`."""
    added, removed = [], set[str]()
    undone = pa.array(sorted(load_ids), pa.string())
    tasks = table.scan(row_filter=of_loads(load_ids)).plan_files() if load_ids else ()
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
            writer.write_table(
                part.filter(pc.invert(pc.is_in(part.column(LOAD_COLUMN), value_set=undone))).cast(schema)
            )
        writer.close()
    if not footers[0].num_rows:
        table.io.delete(location)
        return None
    spec_id = task.file.spec_id
    values = {field.name: task.file.partition[at] for at, field in enumerate(table.specs()[spec_id].fields)}
    return data_file(table.metadata, location, len(output.to_input_file()), footers[0], values, spec_id)
