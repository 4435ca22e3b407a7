"""What every format gives back, and the ways to it: a whole column, halves of it, one value at a time.

Called by the decoders of this package. A column of good values is read by pyarrow as a whole. Where that fails, the
failing half is looked for, down to a few values that are then read one by one in Python: a bad record costs some
milliseconds, a good one next to nothing. Both ways must read a value alike; the tests hold them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

__all__ = ["BadValue", "Decoded", "ValueDecoder", "by_halves", "one_by_one", "scattered", "skipping_nulls"]

_FEW: Final = 128
"""Values below which halving costs more than Python does."""


class BadValue(ValueError):
    """A value that its format cannot read; the text says why."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`column` has a row per value, null where the value was null or bad; `bad` says of each bad row why it is so."""

    column: pa.Array
    bad: Mapping[int, str] = field(default_factory=dict)


class ValueDecoder(Protocol):
    """Reads the values of one column. Used by one task at a time, picklable never."""

    @property
    def type(self) -> pa.DataType:
        """Of the column it gives."""

    def decode(self, values: pa.Array) -> Decoded:
        """`values`: binary, null for a tombstone, which is no bad record. Raises for no value whatever it holds."""


def by_halves(
    values: pa.Array, kind: pa.DataType, whole: Callable[[pa.Array], pa.Array | None], one: Callable[[bytes], Any]
) -> Decoded:
    """`values` without nulls, read by `whole`, which returns None when it cannot read every one of them; then by `one`.

    `one` returns what pyarrow makes an element of `kind` from, or raises BadValue.
    """
    if len(values) == 0:
        return Decoded(pa.nulls(0, kind))
    column = whole(values)
    if column is not None:
        return Decoded(column)
    if len(values) <= _FEW:
        return one_by_one(values, kind, one)
    middle = len(values) // 2
    first, second = (by_halves(part, kind, whole, one) for part in (values[:middle], values[middle:]))
    bad = {**first.bad, **{middle + row: why for row, why in second.bad.items()}}
    return Decoded(pa.concat_arrays([first.column, second.column]), bad)


def one_by_one(values: pa.Array, kind: pa.DataType, one: Callable[[bytes], Any]) -> Decoded:
    """Every value by itself; null is null."""
    objects: list[Any] = []
    bad: dict[int, str] = {}
    for row, value in enumerate(values.to_pylist()):
        try:
            objects.append(None if value is None else one(value))
        except BadValue as error:
            objects.append(None)
            bad[row] = str(error)
    try:
        return Decoded(pa.array(objects, type=kind), bad)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return _checked(objects, kind, bad)


def _checked(objects: list[Any], kind: pa.DataType, bad: dict[int, str]) -> Decoded:
    """Some element does not fit into `kind`: find it."""
    parts = []
    for row, element in enumerate(objects):
        try:
            parts.append(pa.array([element], type=kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            parts.append(pa.nulls(1, kind))
            bad[row] = f"does not fit into {kind}: {error}"
    return Decoded(pa.concat_arrays(parts), dict(sorted(bad.items())))


def skipping_nulls(values: pa.Array, decode: Callable[[pa.Array], Decoded]) -> Decoded:
    """`decode` sees the values that are not null; its answer is laid back to where they stood."""
    if not values.null_count:
        return decode(values)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return scattered(len(values), [(np.flatnonzero(there), decode(values.drop_null()))])


def scattered(length: int, parts: list[tuple[np.ndarray[Any, Any], Decoded]]) -> Decoded:
    """One column of `length` rows in which row `rows[i]` is element i of its part; other rows are null."""
    indices = np.full(length, -1, np.int64)
    bad: dict[int, str] = {}
    begin = 0
    for rows, decoded in parts:
        indices[rows] = np.arange(begin, begin + len(rows))
        begin += len(rows)
        bad.update({int(rows[row]): why for row, why in decoded.bad.items()})
    column = pa.concat_arrays([decoded.column for _, decoded in parts])
    column = column.take(pa.array(indices, mask=indices < 0))
    return Decoded(column, dict(sorted(bad.items())))
