"""The `stats` of Delta's add actions: rows, nulls and bounds of columns, with which readers skip files.

Readers differ in what they make of a bound that is not there. deltalake's dataset (`to_pandas(filters=…)`) takes it for
one that no value fulfils, and finds no row of the file. So a file has the bounds of all columns that readers look at,
or of none: then every reader opens it, and skips by its footer.

There are none for a date or time outside of the years 1 to 9999: where a file has one as its bound, deltalake cannot
open the table as a dataset. And none for NaN, which is above all numbers for some readers and no number for others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from spark_connector.loads.column_bounds import (
    LONGEST_TEXT,
    Bounds,
    Leaf,
    Path,
    Raw,
    footer_bounds,
    leaves,
    lower_text,
    upper_text,
)
from spark_connector.loads.tasks.written_file import WrittenFile
from spark_connector.loads.times import PYTHONS_DAYS, PYTHONS_MICROSECONDS

_NAMED, _NUMBER = "delta.dataSkippingStatsColumns", "delta.dataSkippingNumIndexedCols"
_FIRST: Final = 32  # columns, where the table does not say
_EXACT: Final = Context(prec=80)
_INFINITE: Final = float("inf")

Tree = dict[str, Any]
"""Name → JSON text, or the tree of a struct's fields."""


class TableStatistics:
    """Describes the files of one table: `schema` has the columns in the table's order, `partitioning` those whose
    values are in the log."""

    def __init__(self, schema: pa.Schema, partitioning: Sequence[str], configuration: Mapping[str, str]) -> None:
        self._leaves = measured_leaves(schema, partitioning, configuration)

    @classmethod
    def of_table(cls, table: DeltaTable) -> TableStatistics:
        metadata = table.metadata()
        return cls(pa.schema(table.schema().to_arrow()), metadata.partition_columns, metadata.configuration)

    def of(self, file: WrittenFile) -> str:
        """JSON in UTF-8: some readers read pairs of surrogates wrongly."""
        footer, unsaid = file.metadata(), file.unsaid
        nulls, bounds = {**_nulls(footer), **unsaid.nulls}, footer_bounds(footer, unsaid)
        counts: Tree = {}
        low: Tree | None = {}
        high: Tree | None = {}
        for leaf in self._leaves:
            rows = nulls.get(leaf.path, footer.num_rows)  # a column that the file does not have is null
            if rows is None:
                continue
            _put(counts, leaf.path, str(rows))
            if rows == footer.num_rows or low is None or high is None or not _has_bounds(leaf.type):
                continue
            texts = None if unsaid.nans.get(leaf.path) else _texts(leaf.type, bounds.get(leaf.path))
            if texts is not None:
                _put(low, leaf.path, texts[0])
                _put(high, leaf.path, texts[1])
            elif len(leaf.path) == 1:
                low = high = None
        return _object(
            {
                "numRecords": str(footer.num_rows),
                **({} if low is None or high is None else {"minValues": low, "maxValues": high}),
                "nullCount": counts,
            }
        )


def measured_leaves(schema: pa.Schema, partitioning: Sequence[str], configuration: Mapping[str, str]) -> list[Leaf]:
    """The columns and fields of which a file's statistics tell; see `TableStatistics`."""
    there = [leaf for leaf in leaves(schema) if leaf.plain]
    is_measured = _measured(schema.names, configuration)
    return [leaf for place, leaf in enumerate(there) if leaf.path[0] not in partitioning and is_measured(place, leaf)]


def _measured(names: Sequence[str], configuration: Mapping[str, str]) -> Callable[[int, Leaf], bool]:
    """Which columns readers expect to be described. Some count the fields of structs, others do not."""
    if named := configuration.get(_NAMED):
        wanted = {name.strip().strip("`") for name in named.split(",")}
        return lambda place, leaf: bool(wanted & {".".join(leaf.path[:end]) for end in range(1, len(leaf.path) + 1)})
    number = int(configuration.get(_NUMBER, _FIRST))
    if number < 0:
        return lambda place, leaf: True
    first = set(names[:number])
    return lambda place, leaf: place < number or (len(leaf.path) == 1 and leaf.path[0] in first)


def _nulls(footer: Any) -> dict[Path, int | None]:
    """Rows in which a field is null; None where the footer does not tell."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    found: dict[Path, int | None] = {}
    for number, leaf in enumerate(leaves(footer.schema.to_arrow_schema())):
        statistics = [group.column(number).statistics for group in groups]
        known = all(one is not None and one.has_null_count for one in statistics)
        found[leaf.path] = sum(one.null_count for one in statistics) if known else None
    return found


def _has_bounds(type: pa.DataType) -> bool:
    kinds = pa.types
    tests = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_string)
    return any(test(type) for test in (*tests, kinds.is_date, kinds.is_timestamp))


def _texts(type: pa.DataType, bounds: Bounds | None) -> tuple[str, str] | None:
    """The bounds as JSON, around all values; None where Delta's readers have no such value."""
    if bounds is None:
        return None
    if pa.types.is_string(type):
        low, high = lower_text(bounds.low, LONGEST_TEXT), upper_text(bounds.high, LONGEST_TEXT)
        return (_text(low), _text(high)) if low is not None and high is not None else None
    if pa.types.is_date(type):
        return _dates(bounds)
    if pa.types.is_timestamp(type):
        return _timestamps(type, bounds)
    if pa.types.is_decimal(type):
        return _decimal(type, bounds.low), _decimal(type, bounds.high)
    return _plain(bounds.low), _plain(bounds.high)


def _decimal(type: pa.DataType, raw: Raw) -> str:
    """With all its digits."""
    return format(_EXACT.scaleb(Decimal(raw), -type.scale), "f")


def _plain(raw: Raw) -> str:
    """Infinity as Spark writes it: JSON has no such number."""
    if raw in (_INFINITE, -_INFINITE):
        return '"Infinity"' if raw == _INFINITE else '"-Infinity"'
    return json.dumps(raw)


def _text(raw: bytes) -> str:
    return json.dumps(raw.decode(), ensure_ascii=False)


def _dates(bounds: Bounds) -> tuple[str, str] | None:
    if not PYTHONS_DAYS[0] <= bounds.low <= bounds.high <= PYTHONS_DAYS[1]:
        return None
    low, high = (f'"{np.datetime64(raw, "D")}"' for raw in bounds)
    return low, high


def _timestamps(type: pa.DataType, bounds: Bounds) -> tuple[str, str] | None:
    """In milliseconds, the resolution of the statistics: rounded down and up, but for the last in the year 9999."""
    if type.unit != "us" or not PYTHONS_MICROSECONDS[0] <= bounds.low <= bounds.high <= PYTHONS_MICROSECONDS[1]:
        return None
    low, high = bounds.low // 1000, -(-bounds.high // 1000)
    last = (
        np.datetime64(high, "ms")
        if high * 1000 <= PYTHONS_MICROSECONDS[1]
        else np.datetime64(PYTHONS_MICROSECONDS[1], "us")
    )
    zone = "Z" if type.tz else ""
    return f'"{np.datetime64(low, "ms")}{zone}"', f'"{last}{zone}"'


def _put(tree: Tree, path: Path, text: str) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = text


def _object(tree: Mapping[str, Any]) -> str:
    parts = (f"{json.dumps(name, ensure_ascii=False)}:{_json(value)}" for name, value in tree.items())
    return "{" + ",".join(parts) + "}"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else _object(value)
