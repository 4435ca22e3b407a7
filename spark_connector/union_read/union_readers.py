"""The readers that Spark calls for a read with `history`: tasks that read files of the table beside those that fetch.

As in read/readers.py, a reader is pickled between the driver and the tasks, and holds no open table and no socket.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.entry_point import entry_point
from spark_connector.read.readers import KafkaInputPartition, read_partition
from spark_connector.union_read.history_files import FilesToRead, read_history
from spark_connector.union_read.sides import Sides


class FileInputPartition(InputPartition):
    """The work of one task that reads files of the table."""

    value: FilesToRead

    def __init__(self, value: FilesToRead) -> None:
        super().__init__(value)


class UnionBatchReader(DataSourceReader):
    """One batch query over both sides."""

    def __init__(self, sides: Sides) -> None:
        self._sides = sides

    @entry_point
    def partitions(self) -> list[InputPartition]:
        """The tasks of both sides, of one plan. Raises ConfigError, ConnectorError, LoadError, the client's errors."""
        from spark_connector.union_read.union_plan import plan_union, share_files  # for the driver only

        plan = plan_union(self._sides)
        snapshot, group = plan.snapshot, self._sides.history.group
        shared = share_files(snapshot.files, self._sides.topics.min_bytes_per_partition)
        tasks: list[InputPartition] = [FileInputPartition(FilesToRead.of(snapshot, files, group)) for files in shared]
        return tasks + [KafkaInputPartition(task, plan.topic_ids) for task in plan.tasks]

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_side(self._sides, partition)


def read_side(sides: Sides, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task, from whichever side it reads."""
    of_table, column = isinstance(partition, FileInputPartition), sides.history.column
    if isinstance(partition, FileInputPartition):
        rows = read_history(partition.value, sides.columns)
    else:
        rows = read_partition(sides.topics, partition)
    return rows if column is None else (_marked(batch, column, of_table) for batch in rows)


def _marked(batch: pa.RecordBatch, column: str, of_table: bool) -> pa.RecordBatch:
    """With the column that says which side the rows are from."""
    return batch.append_column(column, pa.repeat(pa.scalar(of_table), batch.num_rows))
