"""Batch writes: Spark's `DataSourceArrowWriter` over attempt.py and commit.py.

Spark pickles the writer on the driver to the tasks' `write`, and to the process that runs `commit` or `abort`: all of
them share the id of the write that is made here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from spark_connector.write.commit import abort_batch_write, commit_batch_write
from spark_connector.write.plan import WritePlan
from spark_connector.write.task import TaskMessage, all_reports, reports, write_task

__all__ = ["KafkaBatchWriter"]


class KafkaBatchWriter(DataSourceArrowWriter):
    """One batch write."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan
        self._write_id = str(uuid.uuid4())

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """The rows of one task."""
        return write_task(self._plan, self._write_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded: exactly-once, make their rows visible."""
        commit_batch_write(self._plan, all_reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good: exactly-once, no row becomes visible, and no task writes any more."""
        if self._plan.exactly_once:
            abort_batch_write(self._plan, self._write_id, reports(messages))
