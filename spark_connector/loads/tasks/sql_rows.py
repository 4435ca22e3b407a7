"""Rows of a database: one transaction in the place of a file, which the load's output opens."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_connector.loads.column_bounds import Path
from spark_connector.loads.record import UnfitRow
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.rows_file import Ending
from spark_connector.loads.times import schema_in_zone

_AT_ONCE = 20_000  # rows


class SqlRows:
    """See `RowsFile`. Times are in the zone of the load, which a database without zones keeps."""

    def __init__(self, file: Any, schema: pa.Schema, layout: FileLayout, without_bounds: frozenset[Path]) -> None:
        self._transaction = file.opened  # database/staged_rows.py
        self._schema = schema_in_zone(schema, layout.time_zone)
        self._rows = 0

    def write(self, rows: pa.Table) -> None:
        """Also raises UnfitRow."""
        before = self._rows
        for batch in rows.cast(self._schema).to_batches(_AT_ONCE):
            try:
                self._transaction.insert(batch)
            except UnfitRow as error:
                raise UnfitRow(self._rows - before + error.row, error.why) from error
            self._rows += batch.num_rows

    def close(self) -> Ending:
        self._transaction.commit()
        return Ending(self._rows)

    def abort(self) -> None:
        pass
