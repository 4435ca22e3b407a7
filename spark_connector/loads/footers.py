"""Counts of the rows that tasks have written, and whether the pages of a parquet file are whole."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from broker.protocol.topic_partition import TopicPartition
from broker.storage.storage import Storage

_ARROW = "parquet-cpp"  # how pyarrow names itself in a file


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
    if rows.num_rows and is_constant(rows.column("partition")) and is_constant(rows.column("topic")):
        bounds = pc.min_max(rows.column("offset")).as_py()
        topic, partition = (rows.column(name)[0].as_py() for name in ("topic", "partition"))
        return [Count(topic, partition, rows.num_rows, bounds["min"], bounds["max"])]
    grouped = rows.group_by(["topic", "partition"], use_threads=False)
    found = grouped.aggregate([("offset", "count"), ("offset", "min"), ("offset", "max")])
    names = ("topic", "partition", "offset_count", "offset_min", "offset_max")
    return [Count(*(row[name] for name in names)) for row in found.to_pylist()]


def is_constant(column: pa.ChunkedArray) -> bool:
    """Whether all values are the first; there is one, and no null."""
    return bool(pc.all(pc.equal(column, column[0])).as_py())


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
