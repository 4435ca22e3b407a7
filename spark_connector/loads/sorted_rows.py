"""All rows of some files in one order, in bounded memory.

Of the rows only the columns to sort by are in memory at once. The rows are read again for each run of the order, of as
many bytes as a task holds. Nothing is done row by row in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_connector.loads.tasks.transforms import PartitionField

ReadRows = Callable[[], Iterable[pa.RecordBatch]]
"""Reads all rows, in the same order and batches whenever it is called."""


_SMALL = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


@dataclass(frozen=True)
class SortKey:
    """A column, or a transform of one, by which a table's rows are sorted."""

    value: PartitionField
    descending: bool = False
    nulls_first: bool = False


def sorted_rows(read: ReadRows, keys: Sequence[SortKey], most_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows sorted by `keys`, those of equal keys as they come; at most about `most_bytes` of them at once."""
    parts, bytes_there = [], 0
    for batch in read():
        parts.append(_key_columns(batch, keys))
        bytes_there += batch.nbytes
    if not parts:
        return
    columns = pa.concat_tables(parts)
    order = pc.sort_indices(columns, sort_keys=_directions(columns.column_names)).to_numpy()
    del columns, parts
    runs = max(1, -(-bytes_there // most_bytes))
    for wanted in np.array_split(order, runs):
        if len(wanted):
            yield from _taken(read, wanted).to_batches()


def _taken(read: ReadRows, wanted: npt.NDArray[np.uint64]) -> pa.Table:
    """The rows with these numbers, in the order of `wanted`."""
    places = np.sort(wanted)
    found, start = [], 0
    for batch in read():
        here = places[np.searchsorted(places, start) : np.searchsorted(places, start + batch.num_rows)]
        if len(here):
            found.append(batch.take(pa.array(here - np.uint64(start), pa.uint64())))
        start += batch.num_rows
    return pa.Table.from_batches(found).take(pa.array(np.searchsorted(places, wanted)))


def _key_columns(batch: pa.RecordBatch, keys: Sequence[SortKey]) -> pa.Table:
    """Per key: nulls before or behind, NaN above all numbers, the value."""
    made = {}
    for number, key in enumerate(keys):
        column = batch.column(key.value.source)
        values = key.value.values(column.cast(_SMALL.get(column.type, column.type)))
        ends = "descending" if key.descending else "ascending"
        made[f"{number} null {'descending' if key.nulls_first else 'ascending'}"] = values.is_null()
        if pa.types.is_floating(values.type):
            made[f"{number} nan {ends}"] = pc.fill_null(pc.is_nan(values), False)
        made[f"{number} value {ends}"] = values
    return pa.table(made)


def _directions(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(name, name.rpartition(" ")[2]) for name in names]
