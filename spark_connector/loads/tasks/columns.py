"""The columns of a table from those of the source's record batches."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class TableColumns:
    """The columns as they are read, in their order."""

    source: pa.Schema

    def schema(self) -> pa.Schema:
        """Of the rows that `apply` gives."""
        return self.source

    def apply(self, rows: pa.Table) -> pa.Table:
        """The table's rows from rows as they were read."""
        return rows.select(self.source.names)
