"""What type the times have in the parquet files of a directory: a load keeps that of the loads before.

Spark's own writer, by which earlier versions wrote, has INT96; tasks write microseconds. Readers of both in one
directory fail (polars), or show the times of some files without their zone (pyarrow).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet

from broker.errors import ConfigError
from broker.storage.storage import Storage
from spark_connector.loads.column_bounds import leaves
from spark_connector.loads.record import LoadRecord, published_directory
from spark_connector.loads.tasks.file_layout import FileLayout


def with_times_of(before: LoadRecord, output: Storage, layout: FileLayout) -> FileLayout:
    """The layout with times as the load `before` has them.

    Raises ConfigError for times without a zone beside INT96, which has none of these.
    """
    times = [leaf for leaf in leaves(layout.schema) if pa.types.is_timestamp(leaf.type)]
    if not times or before.format != "parquet" or not before.files or not _has_int96(before, output):
        return layout
    if local := [".".join(leaf.path) for leaf in times if leaf.type.tz is None]:
        raise ConfigError(
            f"{output.shown} has times as INT96, as earlier versions wrote them; {', '.join(local)} is TIMESTAMP_NTZ, "
            "which INT96 cannot hold: leave the column out (columns, --columns), or load into another directory"
        )
    return replace(layout, int96=True)


def _has_int96(before: LoadRecord, output: Storage) -> bool:
    """False for a file that somebody has removed or damaged: the load can do without it."""
    path = f"{published_directory(before.load_id)}/{before.files[0].name}"
    with contextlib.suppress(OSError, pa.ArrowException), output.open_input(path) as source:
        schema = pyarrow.parquet.ParquetFile(source).schema
        return any(schema.column(number).physical_type == "INT96" for number in range(len(schema)))
    return False
