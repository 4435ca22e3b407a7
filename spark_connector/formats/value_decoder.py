"""What every value decoder returns, and how it decodes: a whole column, halves of it, or one value at a time.

pyarrow decodes a column of good values as a whole. If that fails, the failing half is searched, down to a few values,
which Python decodes one by one. So a bad record costs some milliseconds, and a good one almost nothing. Both ways must
decode a value alike; the tests compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FEW: Final = 128
"""Up to this many values, Python is faster than more halving."""


class BadValue(ValueError):
    """A value that cannot be decoded; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """`column` has a row per value, null where the value was null or bad; `bad` maps bad rows to reasons."""

    column: pa.Array
    bad: Mapping[int, str] = field(default_factory=dict)


class ValueDecoder(Protocol):
    """Decodes the values of one column. Used by one task at a time; not picklable."""

    type: pa.DataType
    """The type of the decoded column."""

    def decode(self, values: pa.Array) -> Decoded:
        """Decode `values` (binary; null is a tombstone, not a bad record). No value makes it raise."""


@runtime_checkable
class FramedDecoder(Protocol):
    """Decodes values that say of which schema they are: themselves, or by a header of their record."""

    type: pa.DataType
    reads_headers: bool

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> Decoded:
        """As ValueDecoder's. `headers`: those of each value's record, as records have them. Raises ConnectorError if a
        registry does not answer."""


def by_halves(
    values: pa.Array, kind: pa.DataType, whole: Callable[[pa.Array], pa.Array | None], one: Callable[[bytes], Any]
) -> Decoded:
    """Decode `values` with `whole`, or in halves where it returns None because it cannot decode all; few with `one`.

    If `values` may have nulls, `whole` must keep them. `one` returns what pyarrow accepts as an element of `kind`, or
    raises BadValue.
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


def in_two_ways(
    values: pa.Array,
    odd: pa.Array,
    kind: pa.DataType,
    whole: Callable[[pa.Array], pa.Array | None],
    one: Callable[[bytes], Any],
) -> Decoded:
    """Decode the values where the mask `odd` is true with `one`, and the others with `by_halves`. None is null."""
    if not pc.any(odd).as_py():
        return by_halves(values, kind, whole, one)
    rows = odd.to_numpy(zero_copy_only=False)
    parts = [
        (np.flatnonzero(rows), one_by_one(values.filter(odd), kind, one)),
        (np.flatnonzero(~rows), by_halves(values.filter(pc.invert(odd)), kind, whole, one)),
    ]
    return scattered(len(values), parts)


def as_lines(values: pa.Array) -> pa.Buffer:
    """The values joined by line feeds, for pyarrow's readers."""
    joined = pc.binary_join_element_wise(values, b"\n", b"")
    begin, *_, end = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1).tolist()
    return joined.buffers()[2].slice(begin, end - begin)


def one_by_one(values: pa.Array, kind: pa.DataType, one: Callable[[bytes], Any]) -> Decoded:
    """Decode every value with `one`; null stays null."""
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
    """Find the elements that do not fit into `kind`."""
    parts = []
    for row, element in enumerate(objects):
        try:
            parts.append(pa.array([element], type=kind))
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            parts.append(pa.nulls(1, kind))
            bad[row] = f"does not fit into {kind}: {error}"
    return Decoded(pa.concat_arrays(parts), dict(sorted(bad.items())))


def skipping_nulls(values: pa.Array, decode: Callable[[pa.Array], Decoded]) -> Decoded:
    """Apply `decode` to the values that are not null, and put its rows back to their places."""
    if not values.null_count:
        return decode(values)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    return scattered(len(values), [(np.flatnonzero(there), decode(values.drop_null()))])


def scattered(length: int, parts: list[tuple[np.ndarray[Any, Any], Decoded]]) -> Decoded:
    """One column of `length` rows: row `rows[i]` is element i of its part; other rows are null."""
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
