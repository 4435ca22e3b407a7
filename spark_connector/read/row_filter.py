"""Rows that pass the filters on timestamp, key and header: masks over whole columns, on the executor.

Used by arrow.py between the column decoder and Spark. What the driver already left out by offset or partition is not
looked at again.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.records.columns import Columns
from spark_connector.options.filter_options import HeaderFilter, ReadFilters

__all__ = ["RowFilter"]

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


class RowFilter:
    """`fields`: what the column decoder must decode for it; empty when all rows pass."""

    def __init__(self, filters: ReadFilters) -> None:
        self._filters = filters
        wanted = {
            "timestamp": filters.timestamp_from is not None or filters.timestamp_until is not None,
            "key": filters.key_prefix is not None,
            "headers": filters.header is not None,
        }
        self.fields = frozenset(name for name, used in wanted.items() if used)

    def apply(self, columns: Columns) -> Columns:
        """The same columns, without the rows that do not pass; `columns` itself when all do."""
        if not self.fields or not columns.num_rows:
            return columns
        mask = self._mask(columns)
        passing = int(np.count_nonzero(mask))
        if passing == columns.num_rows:
            return columns
        arrow_mask = pa.array(mask)
        arrays = {
            field.name: array.filter(arrow_mask)
            for field in fields(columns)
            if isinstance(array := getattr(columns, field.name), pa.Array)
        }
        return replace(columns, num_rows=passing, **arrays)

    def _mask(self, columns: Columns) -> Mask:
        filters = self._filters
        mask: Mask = np.ones(columns.num_rows, np.bool_)
        if filters.timestamp_from is not None:
            mask &= columns.timestamp.to_numpy() >= filters.timestamp_from
        if filters.timestamp_until is not None:
            mask &= columns.timestamp.to_numpy() < filters.timestamp_until
        if filters.key_prefix is not None:
            mask &= _true(pc.starts_with(columns.key, pattern=filters.key_prefix))
        if filters.header is not None:
            mask &= _with_header(columns.headers, filters.header)
        return mask


def _with_header(headers: pa.Array, wanted: HeaderFilter) -> Mask:
    every = pc.list_flatten(headers)
    hit = _true(pc.equal(every.field("key"), wanted.name))
    if wanted.prefix:
        hit &= _true(pc.starts_with(every.field("value"), pattern=wanted.prefix))
    mask: Mask = np.zeros(len(headers), np.bool_)
    mask[pc.list_parent_indices(headers).to_numpy()[hit]] = True
    return mask


def _true(array: pa.Array) -> Mask:
    """Null is not true."""
    mask: Mask = pc.fill_null(array, False).to_numpy(zero_copy_only=False)
    return mask
