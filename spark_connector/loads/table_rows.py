"""Rows of a table as new data files of it, by the writer of the tasks: for compactions, upserts and rewinds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_connector.loads.request import TARGET_FILE_SIZE
from spark_connector.loads.tasks.columns import Pick, TableColumns
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.file_writer import FileWriter
from spark_connector.loads.tasks.task_output import TaskOutput
from spark_connector.loads.tasks.transforms import PartitionField
from spark_connector.loads.tasks.written_file import WrittenFile

_OWN = "\1"
_POSITION = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])


def write_rows(
    schema: pa.Schema,
    parts: Iterable[pa.Table],
    output: TaskOutput,
    *,
    partition_by: tuple[PartitionField, ...] = (),
    target_file_size: int = TARGET_FILE_SIZE,
) -> list[WrittenFile]:
    """Files of these rows, in their order, split by `partition_by`. `schema` has all columns, and the rows may have
    others. No file of no rows. Raises OSError, LoadError for a null in a column that must not be, and ArrowException.
    """
    layout = FileLayout(schema, _columns(schema), partition_by=partition_by, target_file_size=target_file_size)
    writer = FileWriter(layout, output)
    try:
        for part in parts:
            for batch in part.to_batches():
                if batch.num_rows:
                    writer.write(_renamed(batch))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _columns(schema: pa.Schema) -> TableColumns:
    """The columns as they are, which come to the writer under other names: its own topic, partition and offset, by
    which it counts, may be null or missing in a table."""
    return TableColumns(tuple(Pick(name, (f"{_OWN}{name}",)) for name in schema.names), schema)


def _renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as `_columns` expects it."""
    columns: dict[str, Any] = {
        f"{_OWN}{name}": column for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    for field in _POSITION:
        columns[field.name] = pa.repeat(pa.scalar("" if field.name == "topic" else 0, field.type), batch.num_rows)
    return pa.RecordBatch.from_pydict(columns)
