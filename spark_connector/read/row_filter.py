"""Rows that pass the filters of a read, by masks over whole columns. Called by arrow_batches.py on the executor.

Values to compare with come from buffers, and masks stay Arrow's: a Python value or a mask in numpy would have pyarrow
import pandas, which takes every new worker a third of a second (0.2 s of CPU).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.records.columns import Columns
from spark_connector.options.read_filters import HeaderFilter, ReadFilters
from spark_connector.options.value_sets import LOWEST, NO_END, Intervals, KeySet

Mask = Callable[[pa.Array], pa.Array]
"""Makes the mask of a column. A row passes where it is true; null is as false."""

_FEW = 3
"""Up to so many keys it is faster to compare with each than to look them up in a table."""


class RowFilter:
    """Removes rows that do not pass the filters on timestamp, key and header.

    `fields`: the columns it needs decoded; empty when all rows pass.
    """

    def __init__(self, filters: ReadFilters) -> None:
        self._masks: dict[str, Mask] = {}
        if filters.timestamps is not None:
            self._masks["timestamp"] = _within(filters.timestamps)
        if filters.keys is not None:
            self._masks["key"] = _of_keys(filters.keys)
        if filters.header is not None:
            self._masks["headers"] = _with_header(filters.header)
        self.fields = frozenset(self._masks)

    def apply(self, columns: Columns) -> Columns:
        """The rows that pass; `columns` itself when all do."""
        if not self._masks or not columns.num_rows:
            return columns
        mask = _all(make(getattr(columns, name)) for name, make in self._masks.items())
        passing = mask.true_count
        if passing == columns.num_rows:
            return columns
        arrays = {
            field.name: array.filter(mask)
            for field in fields(columns)
            if isinstance(array := getattr(columns, field.name), pa.Array)
        }
        return replace(columns, num_rows=passing, **arrays)


def _within(wanted: Intervals) -> Mask:
    """The mask of times in ms, which are never null."""

    def mask(times: pa.Array) -> pa.Array:
        within = [
            _all(compare(times, bound) for compare, bound in bounds) if bounds else times.is_valid() for bounds in parts
        ]
        return functools.reduce(pc.or_, within) if within else times.is_null()

    parts = [
        [
            *([] if first <= LOWEST else [(pc.greater_equal, _number(first))]),
            *([] if end >= NO_END else [(pc.less, _number(end))]),
        ]
        for first, end in wanted.parts
    ]
    return mask


def _of_keys(wanted: KeySet) -> Mask:
    def mask(keys: pa.Array) -> pa.Array:
        named = pc.starts_with(keys, pattern=wanted.prefix) if any_of is None else any_of(keys)
        return pc.and_(named, pc.invert(without(keys))) if wanted.without else named  # `named` is null for null

    any_of = None if wanted.any is None else _one_of(wanted.any)
    without = _one_of(wanted.without)
    return mask


def _one_of(wanted: Collection[bytes]) -> Mask:
    """Of a key that is null, the mask is null or false."""
    values = _binary(sorted(wanted))
    if 0 < len(wanted) <= _FEW:
        return lambda keys: functools.reduce(pc.or_, [pc.equal(keys, values[row]) for row in range(len(values))])
    return lambda keys: pc.is_in(keys, value_set=values)


def _with_header(wanted: HeaderFilter) -> Mask:
    name = pa.StringArray.from_buffers(1, *_buffers([wanted.name.encode()]))[0]

    def mask(headers: pa.Array) -> pa.Array:
        every = pc.list_flatten(headers)
        hit = pc.equal(every.field("key"), name)
        if wanted.prefix:
            hit = pc.and_(hit, pc.starts_with(every.field("value"), pattern=wanted.prefix))
        rows = pc.list_parent_indices(headers).filter(hit)
        found = np.zeros(len(headers), np.bool_)
        found[np.frombuffer(rows.buffers()[1] or b"", np.int64)[rows.offset : rows.offset + len(rows)]] = True
        bits = pa.py_buffer(np.packbits(found, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(headers), [None, bits])

    return mask


def _all(masks: Iterable[pa.Array]) -> pa.Array:
    return functools.reduce(pc.and_, masks)


def _number(value: int) -> pa.Scalar:
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(np.array([value], np.int64))])[0]


def _binary(values: Sequence[bytes]) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(values), [None, *_buffers(values)])


def _buffers(values: Sequence[bytes]) -> tuple[pa.Buffer, pa.Buffer]:
    """Where each value begins and ends, and their bytes."""
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.py_buffer(ends), pa.py_buffer(b"".join(values))
