"""Counts and statistics of parquet files from their footers, without reading rows.

write.py counts the written rows with them, delta/delta_log.py makes the statistics of the files that a commit adds.
Columns that a partitioned layout keeps in directory names are taken from there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow.parquet

from spark_connector.loads.request import LOAD_COLUMN, values_in_path
from spark_connector.storage import Storage

_THREADS = 8
_MEASURED = ("topic", "partition", "offset", "timestamp", LOAD_COLUMN)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Count(NamedTuple):
    """Rows that were written of one partition, and their lowest and highest offset."""

    topic: str
    partition: int
    rows: int
    low: int
    high: int


def read_footers(storage: Storage, directory: str, names: Collection[str]) -> dict[str, Any]:
    """Name → pyarrow's `FileMetaData` of the files below `directory`."""

    def read_footer(name: str) -> Any:
        with storage.open_input(f"{directory}/{name}") as file:
            return pyarrow.parquet.read_metadata(file)

    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(names, pool.map(read_footer, names), strict=True))


def count_rows(name: str, footer: Any) -> list[Count] | None:
    """One count per row group of a file; None when a row group mixes partitions or has no statistics."""
    given = values_in_path(name)
    counts = []
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        bounds = _bounds(group)
        topic = _only(given.get("topic"), bounds.get("topic"))
        partition = _only(given.get("partition"), bounds.get("partition"))
        if topic is None or partition is None or "offset" not in bounds:
            return None
        counts.append(Count(str(topic), int(partition), group.num_rows, *bounds["offset"]))
    return counts


def delta_statistics(footer: Any) -> str:
    """The `stats` of Delta's add action: rows, and the bounds with which readers skip files."""
    merged: dict[str, tuple[Any, Any]] = {}
    complete = set(_MEASURED)
    for number in range(footer.num_row_groups):
        bounds = _bounds(footer.row_group(number))
        complete &= set(bounds)
        for name, (low, high) in bounds.items():
            before = merged.get(name, (low, high))
            merged[name] = (min(low, before[0]), max(high, before[1]))
    bounds = {name: merged[name] for name in _MEASURED if name in complete and name in merged}
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": {name: _as_delta(low) for name, (low, _) in bounds.items()},
            "maxValues": {name: _as_delta(high, up=True) for name, (_, high) in bounds.items()},
            "nullCount": dict.fromkeys(bounds, 0),
        }
    )


def _bounds(group: Any) -> dict[str, tuple[Any, Any]]:
    """Lowest and highest value per column of a row group, for columns without nulls."""
    found = {}
    for index in range(group.num_columns):
        column = group.column(index)
        statistics = column.statistics
        if column.path_in_schema not in _MEASURED or statistics is None or not statistics.has_min_max:
            continue
        if statistics.has_null_count and statistics.null_count == 0:
            with contextlib.suppress(OverflowError, ValueError):  # a time before the year 1 or after 9999
                low, high = statistics.min, statistics.max
                if not (isinstance(high, datetime) and high.year == MAXYEAR):  # could not be rounded up
                    found[column.path_in_schema] = (low, high)
    return found


def _only(given: str | None, bounds: tuple[Any, Any] | None) -> Any:
    """The value of a column in a row group, if all rows have the same."""
    if given is not None:
        return given
    return bounds[0] if bounds is not None and bounds[0] == bounds[1] else None


def _as_delta(value: Any, *, up: bool = False) -> Any:
    """Timestamps in milliseconds, the resolution of the statistics: rounded down for the lowest, up for the highest."""
    if not isinstance(value, datetime):
        return value
    micros = (value - _EPOCH) // timedelta(microseconds=1)
    millis = -(-micros // 1000) if up else micros // 1000
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
