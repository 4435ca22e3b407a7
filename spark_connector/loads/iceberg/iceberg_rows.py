"""Finds and reads the rows of loads in an Iceberg table, by the column `load`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow as pa
from pyiceberg import expressions
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import StringType

from spark_connector.loads.iceberg.iceberg_reader import read_file
from spark_connector.loads.record import LoadRange
from spark_connector.loads.request import LOAD_COLUMN

_e: Any = expressions  # its classes take columns by name, which their types do not say


def of_loads(load_ids: Collection[str]) -> BooleanExpression:
    """The rows of these loads."""
    found: BooleanExpression = _e.In(LOAD_COLUMN, set(load_ids))
    return found


def of_loads_or_none(load_ids: Collection[str]) -> BooleanExpression:
    """The rows of these loads, and those that name none."""
    found: BooleanExpression = _e.Or(_e.IsNull(LOAD_COLUMN), of_loads(load_ids))
    return found


def of_none_in(range: LoadRange) -> BooleanExpression:
    """The rows of a range of offsets that name no load."""
    position = _e.And(_e.EqualTo("topic", range.topic), _e.EqualTo("partition", range.partition))
    offsets = _e.And(_e.GreaterThanOrEqual("offset", range.start), _e.LessThan("offset", range.end))
    found: BooleanExpression = _e.And(_e.IsNull(LOAD_COLUMN), _e.And(position, offsets))
    return found


def only_load(table: Table, task: FileScanTask) -> str | None:
    """The load of all rows of a file, where its bounds tell; rows that were deleted from the file count, too."""
    file, column = task.file, table.schema().find_field(LOAD_COLUMN).field_id
    low, high = (file.lower_bounds or {}).get(column), (file.upper_bounds or {}).get(column)
    if low is None or low != high or (file.null_value_counts or {}).get(column, 1):
        return None
    return str(from_bytes(StringType(), low))


def read_files(
    table: Table, tasks: Collection[FileScanTask], columns: Collection[str] | None = None
) -> Iterator[pa.Table]:
    """The rows of these files, without those that were deleted from them, part by part; `columns`: None for all."""
    schema = table.schema() if columns is None else table.schema().select(*columns)
    for task in tasks:
        for batch in read_file(table.metadata, table.io, schema, task):
            yield pa.Table.from_batches([batch])
