"""What tasks write. To add a format is to add a module with its RowsFile, a row here, and one in write_options.py.

Each task of a load imports this module, and of the formats only its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_connector.loads.column_bounds import Path
from spark_connector.loads.tasks.columns import refuse_empty_structs
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.parquet_rows import ParquetRows
from spark_connector.loads.tasks.rows_file import RowsFile
from spark_connector.loads.write_options import PARQUET, SQL


@dataclass(frozen=True)
class FileFormat:
    """`open` makes a RowsFile of a CountedFile, the schema of its rows, the layout, and the columns that may hold NaN.
    `check` raises ConfigError for a layout that the format cannot hold."""

    open: Callable[[Any, pa.Schema, FileLayout, frozenset[Path]], RowsFile]
    check: Callable[[FileLayout], object]


def _parquet() -> FileFormat:
    return FileFormat(ParquetRows, lambda layout: refuse_empty_structs(layout.columns.schema))


def _json() -> FileFormat:
    from spark_connector.loads.tasks import json_rows

    return FileFormat(json_rows.JsonRows, lambda layout: json_rows.encoder(layout.schema, layout))


def _avro() -> FileFormat:
    from spark_connector.loads.tasks import avro_rows

    return FileFormat(avro_rows.AvroRows, lambda layout: avro_rows.encoder(layout.schema))


def _sql() -> FileFormat:
    from spark_connector.loads.tasks import sql_rows

    return FileFormat(sql_rows.SqlRows, lambda layout: None)


TASK_FORMATS: Final[Mapping[str, Callable[[], FileFormat]]] = {
    PARQUET: _parquet,
    "json": _json,
    "avro": _avro,
    SQL: _sql,
}
