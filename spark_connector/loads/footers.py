"""Counts of the rows that tasks have written, and statistics of parquet files from their footers.

delta/delta_log.py makes the statistics of the files that a commit adds.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from datetime import MAXYEAR, UTC, date, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage

_MOST_MEASURED = 32  # columns, as other writers of Delta have it
_LONGEST_BOUND = 128  # characters
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
    if rows.num_rows and _is_constant(rows.column("partition")) and _is_constant(rows.column("topic")):
        bounds = pc.min_max(rows.column("offset")).as_py()
        topic, partition = (rows.column(name)[0].as_py() for name in ("topic", "partition"))
        return [Count(topic, partition, rows.num_rows, bounds["min"], bounds["max"])]
    grouped = rows.group_by(["topic", "partition"], use_threads=False)
    found = grouped.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
    names = ("topic", "partition", "offset_count", "offset_min", "offset_max")
    return [Count(*(row[name] for name in names)) for row in found.to_pylist()]


def _is_constant(column: pa.ChunkedArray) -> bool:
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def delta_statistics(footer: Any) -> str:
    """The `stats` of Delta's add action: rows, and nulls and bounds of columns, with which readers skip files."""
    types = {one.name: one.type for one in footer.schema.to_arrow_schema() if _is_bounded(one.type)}
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    paths = [footer.schema.column(number).path for number in range(footer.num_columns)]
    for name in list(types)[:_MOST_MEASURED]:
        if paths.count(name) != 1:
            continue  # the field b of a column a has the path of a column "a.b"
        column = paths.index(name)
        groups = [footer.row_group(number).column(column).statistics for number in range(footer.num_row_groups)]
        if not all(one is not None and one.has_null_count for one in groups):
            continue
        nulls[name] = sum(one.null_count for one in groups)
        with contextlib.suppress(OverflowError, ValueError, AttributeError):  # a time that Python does not have
            found = [bound for one in groups if one.num_values for bound in (one.min, one.max)]
            if found and None not in found:  # parquet leaves out bounds of more than 4 KiB
                low, high = min(found), max(found)
                if _fits(low) and _fits(high):
                    bounds[name] = (low, high)
    return json.dumps(
        {
            "numRecords": footer.num_rows,
            "minValues": {name: _as_delta(low) for name, (low, _) in bounds.items()},
            "maxValues": {name: _as_delta(high, up=True) for name, (_, high) in bounds.items()},
            "nullCount": nulls,
        }
    )


def _is_bounded(kind: pa.DataType) -> bool:
    of_numbers = pa.types.is_integer(kind) or pa.types.is_date(kind)
    return of_numbers or pa.types.is_string(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None)


def _fits(value: Any) -> bool:
    """Whether Delta can hold the bound: a long text would be in the log for every file, a time is rounded up."""
    if isinstance(value, datetime):
        return value.year < MAXYEAR
    return not isinstance(value, str) or len(value) <= _LONGEST_BOUND


def _as_delta(value: Any, *, up: bool = False) -> Any:
    """Timestamps in milliseconds, the resolution of the statistics: rounded down for the lowest, up for the highest."""
    if not isinstance(value, datetime):
        return value.isoformat() if isinstance(value, date) else value
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
