"""Rows that a table cannot hold, found in a batch before it becomes rows.

These have a null where the table requires a value, or a partition value that is none of its column's type.

The decoder of a task asks (formats/record_decoder.py), where bad records go to dead letters. Without these, the writer
refuses the load at the first such record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from spark_connector.formats.value_format import UnfitRows
from spark_connector.loads.tasks import required
from spark_connector.loads.tasks.file_layout import FileLayout
from spark_connector.loads.tasks.transforms import unfit_rows


def unfit_values(layout: FileLayout) -> UnfitRows | None:
    """What finds them in the batches of a read for this layout; None if its table takes every row."""
    nulls = required.unfit_rows(layout.columns, layout.schema)
    if not layout.partition_by:
        return nulls
    partitions = _UnfitPartitions(layout)
    return partitions if nulls is None else lambda batch: {**partitions(batch), **nulls(batch)}


class _UnfitPartitions:
    def __init__(self, layout: FileLayout) -> None:
        self._fields = layout.partition_by
        sources = {field.source for field in layout.partition_by}
        picks = tuple(pick for pick in layout.columns.picks if pick.name in sources)
        schema = pa.schema([layout.columns.schema.field(pick.name) for pick in picks])
        self._columns = replace(layout.columns, picks=picks, schema=schema)

    def __call__(self, batch: pa.RecordBatch) -> Mapping[int, str]:
        return unfit_rows(self._columns.apply(pa.Table.from_batches([batch])), self._fields) if batch.num_rows else {}
