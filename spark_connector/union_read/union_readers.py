"""The readers that Spark calls for a read with `history`: tasks that read files of the table beside those that fetch.

As in read/readers.py, a reader is pickled between the driver and the tasks, and holds no open table and no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.entry_point import entry_point
from spark_connector.errors import DataLoss
from spark_connector.loads.table_snapshot import TableFile, TableSnapshot
from spark_connector.read.readers import KafkaInputPartition, read_partition
from spark_connector.read.stream_offset import Document
from spark_connector.spark_versions import ADMISSION_CONTROL
from spark_connector.union_read.history_files import FilesToRead, read_history
from spark_connector.union_read.sides import Sides, gone_since_plan

if TYPE_CHECKING or ADMISSION_CONTROL:
    from spark_connector.read.readers import LimitedStreamReader as StreamReader
else:
    from spark_connector.read.readers import OlderStreamReader as StreamReader

if TYPE_CHECKING:
    from spark_connector.union_read.union_batches import UnionBatches


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
        from spark_connector.union_read.union_plan import plan_union  # for the driver only

        plan = plan_union(self._sides)
        of_table = _file_tasks(self._sides, plan.snapshot, plan.snapshot.files)
        return of_table + [KafkaInputPartition(task, plan.topic_ids) for task in plan.tasks]

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_side(self._sides, partition)
        except DataLoss as error:
            raise gone_since_plan(self._sides, error, batch=True) from error


class UnionStreamReader(StreamReader):
    """One streaming query over both sides: the files of the table first."""

    def __init__(self, sides: Sides) -> None:
        super().__init__(sides.topics)
        self._sides = sides
        self._union: UnionBatches | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return UnionStreamReader, (self._sides,)

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_side(self._sides, partition)
        except DataLoss as error:
            raise gone_since_plan(self._sides, error, batch=False) from error

    def _tasks(self, start: Document, end: Document) -> list[InputPartition]:
        found = self._driver().files(start, end)
        if found is None:
            return super()._tasks(start, end)
        return _file_tasks(self._sides, *found)

    def _driver(self) -> UnionBatches:
        if self._union is None:
            from spark_connector.union_read.union_batches import UnionBatches  # for the driver only

            self._batches = self._union = UnionBatches(self._sides)
        return self._union


def _file_tasks(sides: Sides, snapshot: TableSnapshot, files: Sequence[TableFile]) -> list[InputPartition]:
    from spark_connector.union_read.union_plan import share_files

    shared = share_files(files, sides.topics.min_bytes_per_partition)
    return [FileInputPartition(FilesToRead.of(snapshot, task, sides.history.group)) for task in shared]


def read_side(sides: Sides, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task, from whichever side it reads."""
    of_table, column = isinstance(partition, FileInputPartition), sides.history.column
    if isinstance(partition, FileInputPartition):
        rows = read_history(partition.value, sides.columns)
    else:
        rows = map(sides.rows_of_topics, read_partition(sides.topics, partition))
    return rows if column is None else (_marked(batch, column, of_table) for batch in rows)


def _marked(batch: pa.RecordBatch, column: str, of_table: bool) -> pa.RecordBatch:
    """With the column that says which side the rows are from."""
    return batch.append_column(column, pa.repeat(pa.scalar(of_table), batch.num_rows))
