"""Values within the values of a column, each with the row that it is in."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

Rows = np.ndarray
"""The row of each element of a column."""


def present(column: pa.Array, rows: Rows) -> tuple[pa.Array, Rows]:
    """Without nulls."""
    if not column.null_count:
        return column, rows
    return column.drop_null(), rows[column.is_valid().to_numpy(zero_copy_only=False)]


def elements(column: pa.Array) -> tuple[pa.Array, pa.Array, Rows]:
    """(keys of a map, its values, the place in `column` of each); of a list the elements twice. None is null."""
    ends = column.offsets.to_numpy()
    begin, end = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    places = np.repeat(np.arange(len(column)), np.diff(ends))
    if pa.types.is_map(column.type):
        return column.keys[begin:end], column.items[begin:end], places
    return column.values[begin:end], column.values[begin:end], places
