"""The lowest and highest value of each column of a parquet file, by which readers skip files.

They come from the footer. What the footer does not say is taken from the rows while they are written (`RowWatch`): it
has no bounds of texts of more than 4 KiB, and leaves out NaN.

Values are as parquet holds them (`Raw`), never Python's dates, times and decimals: a date may lie after the year 9999.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

Raw = Any
"""A bool, a number or bytes: a date in days, a time in parquet's unit, a decimal without its point, a text in UTF-8."""

Path = tuple[str, ...]
"""Names from a column to a field of primitive type in it, as parquet has them (`list`, `element`)."""

LONGEST_TEXT = 128
"""Characters of a text in a bound; a longer one is cut, and the upper bound rounded up."""
_LONG = 1024  # bytes from which on a text is looked at: parquet leaves out bounds of more than 4096
_LAST, _SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)


class Bounds(NamedTuple):
    low: Raw
    high: Raw


class Leaf(NamedTuple):
    """A field of primitive type, and `plain` if no list or map is around it."""

    path: Path
    type: pa.DataType
    plain: bool = True


@dataclass(frozen=True)
class Unsaid:
    """What the footer of a file does not say.

    `nans` and `nulls` have the number of NaN and of nulls in each column of floats outside of lists, `texts` the bounds
    of long texts, already cut; None where a text has no upper bound.
    """

    nans: Mapping[Path, int] = field(default_factory=dict)
    nulls: Mapping[Path, int] = field(default_factory=dict)
    texts: Mapping[Path, Bounds | None] = field(default_factory=dict)


class RowWatch:
    """Takes in the rows of one file as they are written, row group by row group."""

    def __init__(self, schema: pa.Schema) -> None:
        plain = [leaf for leaf in leaves(schema) if leaf.plain]
        self._texts = [leaf.path for leaf in plain if pa.types.is_string(leaf.type)]
        self._nans = dict.fromkeys(floats(schema), 0)
        self._nulls = dict.fromkeys(self._nans, 0)
        self._bounds: dict[Path, Bounds | None] = {}

    def take_in(self, rows: pa.Table) -> None:
        for path in self._nans:
            column = _column(rows, path)
            self._nans[path] += pc.sum(pc.is_nan(column)).as_py() or 0
            self._nulls[path] += column.null_count
        for path in self._texts:
            column = _column(rows, path)
            if (pc.max(pc.binary_length(column)).as_py() or 0) > _LONG:
                # As bytes, because these are in the order of parquet.
                low, high = pc.min_max(column.cast(pa.binary())).as_py().values()
                low, high = lower_text(low, LONGEST_TEXT), upper_text(high, LONGEST_TEXT)
                bounds = None if low is None or high is None else Bounds(low, high)
                self._bounds[path] = _joined(path, self._bounds, bounds)

    def unsaid(self) -> Unsaid:
        return Unsaid(self._nans, self._nulls, self._bounds)


def floats(schema: pa.Schema) -> list[Path]:
    """The columns that may hold NaN, outside of lists."""
    return [leaf.path for leaf in leaves(schema) if leaf.plain and pa.types.is_floating(leaf.type)]


def with_nan(rows: pa.Table, paths: Iterable[Path]) -> frozenset[Path]:
    """Those of the columns of floats that hold NaN."""
    return frozenset(path for path in paths if pc.any(pc.is_nan(_column(rows, path))).as_py())


def with_statistics(schema: pa.Schema, without: Collection[Path]) -> bool | list[str]:
    """`write_statistics` of a parquet file of which some columns may hold NaN, and so get no bounds in its footer.

    Readers take the bounds there for those of all values, so that they would skip rows, but arrow's writer leaves NaN
    out of them (that of Spark leaves out the bounds).
    """
    if not without:
        return True
    return [".".join(leaf.path) for leaf in leaves(schema) if leaf.path not in without]


def leaves(schema: pa.Schema) -> list[Leaf]:
    """The fields of primitive type, in the order of the columns of a parquet file."""
    return [leaf for one in schema for leaf in _leaves(one.type, (one.name,), True)]


def footer_bounds(footer: Any, unsaid: Unsaid) -> dict[Path, Bounds]:
    """Of pyarrow's FileMetaData. Without the columns of which a row group has values without bounds, and of nulls.

    NaN is in no bound.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found: dict[Path, Bounds] = {}
    for number, leaf in enumerate(leaves(footer.schema.to_arrow_schema())):
        statistics = [group.column(number).statistics for group in groups]
        if bounds := _bounds(statistics, leaf, unsaid):
            found[leaf.path] = bounds
    return found


def lower_text(text: bytes, length: int) -> bytes | None:
    """A text of at most `length` characters that is not above this one, in UTF-8. None for what is no UTF-8."""
    whole = _decoded(text)
    return None if whole is None else whole[:length].encode()


def upper_text(text: bytes, length: int) -> bytes | None:
    """One that is not below. None when there is none, because all characters are the last of Unicode."""
    whole = _decoded(text)
    if whole is None or len(whole) <= length:
        return text if whole is not None else None
    begin = whole[:length].rstrip(chr(_LAST))
    following = ord(begin[-1]) + 1 if begin else 0
    if following == _SURROGATES[0]:  # which are no characters
        following = _SURROGATES[1] + 1
    return (begin[:-1] + chr(following)).encode() if begin else None


def _decoded(text: bytes) -> str | None:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return None


def _leaves(type: pa.DataType, path: Path, plain: bool) -> Iterator[Leaf]:
    if pa.types.is_struct(type):
        for one in type:
            yield from _leaves(one.type, (*path, one.name), plain)
    elif pa.types.is_map(type):
        yield from _leaves(type.key_type, (*path, "key_value", "key"), False)
        yield from _leaves(type.item_type, (*path, "key_value", "value"), False)
    elif pa.types.is_list(type) or pa.types.is_large_list(type):
        yield from _leaves(type.value_type, (*path, "list", "element"), False)
    else:
        yield Leaf(path, type, plain)


def _column(rows: pa.Table, path: Path) -> pa.ChunkedArray:
    """Null where a struct around it is null."""
    column = rows.column(path[0])
    return pc.struct_field(column, list(path[1:])) if path[1:] else column


def _bounds(statistics: list[Any], leaf: Leaf, unsaid: Unsaid) -> Bounds | None:
    found = unsaid.texts.get(leaf.path)
    if found is None and leaf.path in unsaid.texts:
        return None
    for group in statistics:
        if group is not None and group.has_min_max:
            low, high = (_number(leaf.type, raw) for raw in (group.min_raw, group.max_raw))
            found = _around(found, Bounds(low, high))
        elif group is None or (group.num_values and leaf.path not in unsaid.texts):
            return None
    return found


def _number(type: pa.DataType, raw: Any) -> Raw:
    """Decimals of many digits are bytes in parquet, whose order is another."""
    if pa.types.is_decimal(type) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _around(one: Bounds | None, other: Bounds) -> Bounds:
    if one is None:
        return other
    return Bounds(min(one.low, other.low), max(one.high, other.high))


def _joined(path: Path, known: Mapping[Path, Bounds | None], more: Bounds | None) -> Bounds | None:
    if path not in known:
        return more
    before = known[path]
    return None if before is None or more is None else _around(before, more)
