"""Counts of the rows that tasks have written, and statistics of parquet files from their footers.

delta/delta_log.py makes the statistics of the files that a commit adds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from broker.protocol.topic_partition import TopicPartition
from spark_connector.loads.request import LOAD_COLUMN
from spark_connector.storage import Storage

_MEASURED = ("topic", "partition", "offset", "timestamp", LOAD_COLUMN)
_ARROW = "parquet-cpp"  # how pyarrow names itself in a file
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Count(NamedTuple):
    """Rows that were written of one partition, and their lowest and highest offset."""

    topic: str
    partition: int
    rows: int
    low: int
    high: int


def sum_counts(counts: Iterable[Count]) -> dict[TopicPartition, Count]:
    """Counts of files or tasks, added up per partition."""
    total: dict[TopicPartition, Count] = {}
    for count in counts:
        tp = TopicPartition(count.topic, count.partition)
        before = total.get(tp, count._replace(rows=0))
        low, high = min(before.low, count.low), max(before.high, count.high)
        total[tp] = Count(*tp, before.rows + count.rows, low, high)
    return total


def count_positions(rows: pa.Table) -> list[Count]:
    """The rows of a table with the columns topic, partition and offset."""
    grouped = rows.group_by(["topic", "partition"], use_threads=False)
    found = grouped.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
    names = ("topic", "partition", "offset_count", "offset_min", "offset_max")
    return [Count(*(row[name] for name in names)) for row in found.to_pylist()]


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


def _as_delta(value: Any, *, up: bool = False) -> Any:
    """Timestamps in milliseconds, the resolution of the statistics: rounded down for the lowest, up for the highest."""
    if not isinstance(value, datetime):
        return value
    micros = (value - _EPOCH) // timedelta(microseconds=1)
    millis = -(-micros // 1000) if up else micros // 1000
    return (_EPOCH + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def pages_are_whole(storage: Storage, path: str) -> bool:
    """Whether the pages of a parquet file have the bytes that a task wrote, by the checksums in them.

    True where there are none: Spark's own writer leaves checksums beside its files. Raises OSError, ArrowException.
    """
    if not path.endswith(".parquet"):
        return True
    with storage.open_input(path) as source:
        file = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        if file.metadata.created_by.startswith(_ARROW):
            try:
                for _ in file.iter_batches():
                    pass
            except OSError as error:
                if "CRC" not in str(error):
                    raise
                return False
    return True
