"""The readers that Spark calls for a read with `history`: tasks that read files of the table beside those that fetch.

As in read/readers.py, a reader is pickled between the driver and the tasks, and holds no open table and no socket.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_connector.entry_point import entry_point
from spark_connector.errors import DataLoss
from spark_connector.history_and_tail.fitted_read import FittedRead, gone_since_plan
from spark_connector.history_and_tail.history_files import FilesToRead, read_history
from spark_connector.loads.table_snapshot import TableFile, TableSnapshot
from spark_connector.read.readers import input_partitions, read_partition, sent_to_tasks
from spark_connector.read.stream_offset import Document
from spark_connector.shipped import shipped
from spark_connector.spark_versions import ADMISSION_CONTROL

if TYPE_CHECKING or ADMISSION_CONTROL:
    from spark_connector.read.readers import LimitedStreamReader as StreamReader
else:
    from spark_connector.read.readers import OlderStreamReader as StreamReader

if TYPE_CHECKING:
    from spark_connector.history_and_tail.batches import HistoryBatches


class FileInputPartition(InputPartition):
    """The work of one task that reads files of the table."""

    value: FilesToRead

    def __init__(self, value: FilesToRead) -> None:
        super().__init__(value)


class HistoryBatchReader(DataSourceReader):
    """One batch query over both sides."""

    def __init__(self, fitted: FittedRead) -> None:
        self._fitted = fitted

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(HistoryBatchReader, _sent(self._fitted))

    @entry_point
    def partitions(self) -> list[InputPartition]:
        """The tasks of both sides, of one plan. Raises ConfigError, ConnectorError, LoadError, the client's errors."""
        from spark_connector.history_and_tail.plan import plan_history  # for the driver only

        plan = plan_history(self._fitted)
        of_table = _file_tasks(self._fitted, plan.snapshot, plan.snapshot.files)
        return of_table + input_partitions(self._fitted.topics, plan.tasks, plan.topic_ids)

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_side(self._fitted, partition)
        except DataLoss as error:
            raise gone_since_plan(self._fitted, error, batch=True) from error


class HistoryStreamReader(StreamReader):
    """One streaming query over both sides: the files of the table first."""

    def __init__(self, fitted: FittedRead) -> None:
        super().__init__(fitted.topics)
        self._fitted = fitted
        self._history: HistoryBatches | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(HistoryStreamReader, _sent(self._fitted))

    @entry_point
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        try:
            yield from read_side(self._fitted, partition)
        except DataLoss as error:
            raise gone_since_plan(self._fitted, error, batch=False) from error

    def _tasks(self, start: Document, end: Document) -> list[InputPartition]:
        found = self._driver().files(start, end)
        if found is None:
            return super()._tasks(start, end)
        return _file_tasks(self._fitted, *found)

    def _driver(self) -> HistoryBatches:
        if self._history is None:
            from spark_connector.history_and_tail.batches import HistoryBatches  # for the driver only

            self._batches = self._history = HistoryBatches(self._fitted)
        return self._history


def _sent(fitted: FittedRead) -> FittedRead:
    """What tasks get: their partitions say how they log in."""
    topics = sent_to_tasks(fitted.topics)
    if topics is fitted.topics:
        return fitted
    return replace(fitted, topics=topics, options={}, history=replace(fitted.history, topics={}))


def _file_tasks(fitted: FittedRead, snapshot: TableSnapshot, files: Sequence[TableFile]) -> list[InputPartition]:
    from spark_connector.history_and_tail.plan import share_files

    shared = share_files(files, fitted.topics.min_bytes_per_partition)
    return [FileInputPartition(FilesToRead.of(snapshot, task, fitted.history.group)) for task in shared]


def read_side(fitted: FittedRead, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a task, from whichever side it reads."""
    of_table, column = isinstance(partition, FileInputPartition), fitted.history.column
    if isinstance(partition, FileInputPartition):
        rows = read_history(partition.value, fitted.columns)
    else:
        rows = map(fitted.rows_of_topics, read_partition(fitted.topics, partition))
    return rows if column is None else (_marked(batch, column, of_table) for batch in rows)


def _marked(batch: pa.RecordBatch, column: str, of_table: bool) -> pa.RecordBatch:
    """With the column that says which side the rows are from."""
    return batch.append_column(column, pa.repeat(pa.scalar(of_table), batch.num_rows))
