"""The partition columns of a table, and rows split by their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_DAY = 86_400_000_000  # microseconds
_HOUR = 3_600_000_000


@dataclass(frozen=True)
class PartitionField:
    """The column `name`, by which a table is partitioned: a transform of the table's column `source`."""

    name: str
    source: str
    transform: str = "identity"

    @property
    def type(self) -> pa.DataType | None:
        """None: that of its source."""
        return {"date": pa.date32(), "hour_of_day": pa.int32()}.get(self.transform)

    def apply(self, rows: pa.Table) -> pa.ChunkedArray:
        column = rows.column(self.source)
        if self.transform == "identity":
            return column
        micros = column.cast(pa.int64())
        days = _floored(micros, _DAY)
        if self.transform == "date":
            return days.cast(pa.int32()).cast(pa.date32())
        return pc.divide(pc.subtract(micros, pc.multiply(days, _DAY)), _HOUR).cast(pa.int32())


_DERIVED = {"date": ("timestamp", "date"), "hour": ("timestamp", "hour_of_day")}


def partition_field(name: str) -> PartitionField:
    """The field of one name of `partition_by`."""
    return PartitionField(name, *_DERIVED.get(name, (name,)))


def _floored(numbers: pa.ChunkedArray, by: int) -> pa.ChunkedArray:
    """Integer division that rounds down: a time before 1970 is in the day that began before it."""
    quotient = pc.divide(numbers, by)
    return pc.subtract(quotient, pc.less(pc.subtract(numbers, pc.multiply(quotient, by)), 0).cast(pa.int64()))


def split(rows: pa.Table, fields: Sequence[PartitionField]) -> list[tuple[dict[str, Any], pa.Table]]:
    """(values of the partition columns, the rows with them), in the order in which values first appear.

    Columns that `rows` do not have are added to them.
    """
    for field in fields:
        if field.name not in rows.column_names:
            rows = rows.append_column(field.name, field.apply(rows))
    names = [field.name for field in fields]
    numbered = rows.select(names).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    grouped = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])
    found = []
    for row, taken in zip(grouped.select(names).to_pylist(), grouped.column("row_list"), strict=True):
        found.append((row, rows.take(taken.values)))
    return found
