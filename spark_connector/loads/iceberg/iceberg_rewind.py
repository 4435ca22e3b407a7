"""Takes the rows of loads out of an Iceberg table, as one change of its files.

A file with rows of these loads only is removed as it is; the bounds of its column `load` say so. A file that has others
too, because a compaction has mixed them, is copied without the rows. The copy is made of the parquet file itself:
pyiceberg's reader makes an empty list of a list that is NULL.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation

from broker.errors import ConfigError
from spark_connector.loads.iceberg.iceberg_files import files_of_rows, values_of
from spark_connector.loads.iceberg.iceberg_rows import of_loads, only_load, read_files
from spark_connector.loads.iceberg.iceberg_snapshot import Change
from spark_connector.loads.request import LOAD_COLUMN

_FIELD_ID = b"PARQUET:field_id"
_ROWS = 65_536  # of a batch


def rows_removed(table: Table, load_ids: Collection[str], own_id: str) -> Change:
    """The change that takes back these loads. New files are those of the load `own_id`.

    Raises ConfigError for a mixed file from which another program has deleted rows by a file beside it.
    """
    added, removed = list[DataFile](), set[str]()
    undone = pa.array(sorted(load_ids), pa.string())
    for task in table.scan(row_filter=of_loads(load_ids)).plan_files() if load_ids else ():
        load_id = only_load(table, task)
        if load_id is not None:
            if load_id in load_ids:
                removed.add(task.file.file_path)
            continue
        loads = (part.column(LOAD_COLUMN) for part in read_files(table, [task], [LOAD_COLUMN]))
        if any(pc.any(pc.is_in(load, value_set=undone)).as_py() for load in loads):
            removed.add(task.file.file_path)
            added += _copies(table, task, undone, own_id)
    return Change(added, removed, Operation.OVERWRITE)


def _copies(table: Table, task: FileScanTask, undone: pa.Array, own_id: str) -> list[DataFile]:
    """The file without the rows of these loads, in its own schema and partition; none when no row is left."""
    if task.delete_files:
        raise ConfigError(
            f"{task.file.file_path} holds rows of several loads, of which another program has deleted some by "
            "delete files: compact the table first (CALL system.rewrite_data_files in Spark)"
        )
    with table.io.new_input(task.file.file_path).open() as source:
        file = pyarrow.parquet.ParquetFile(source)
        at = _column_of_loads(table, file.schema_arrow)
        batches = map(pa.Table.from_batches, ([batch] for batch in file.iter_batches(_ROWS)))
        kept = (part.filter(pc.invert(pc.is_in(part.column(at), value_set=undone))) for part in batches)
        values = values_of(table, task.file)
        return files_of_rows(table, own_id, file.schema_arrow, kept, values, task.file.spec_id)


def _column_of_loads(table: Table, schema: pa.Schema) -> int:
    """By its id: a file that another program has written before may have another name for the column."""
    wanted = str(table.schema().find_field(LOAD_COLUMN).field_id).encode()
    for at, field in enumerate(schema):
        if (field.metadata or {}).get(_FIELD_ID) == wanted:
            return at
    return int(schema.get_field_index(LOAD_COLUMN))
