"""Streaming writes: Spark's `DataSourceStreamArrowWriter` over attempt.py and commit.py.

What Spark does with it (observed on 4.0.5 and 4.3.0): for every micro-batch one process makes a writer and pickles it
to the tasks, and another makes a writer for `commit` or `abort`. All that the driver knows of a batch is in its tasks'
messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_connector.spark_versions import StreamArrowWriter
from spark_connector.write.commit import abort_batch, commit_batch
from spark_connector.write.plan import WritePlan
from spark_connector.write.task import TaskMessage, all_reports, reports, stream_task

__all__ = ["KafkaStreamWriter"]


class KafkaStreamWriter(StreamArrowWriter):
    """The writer of one micro-batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """The rows of one task."""
        return stream_task(self._plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks have succeeded: exactly-once, decide the batch and make its rows visible."""
        commit_batch(self._plan, batchId, all_reports(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The batch has failed: exactly-once, end what is known and not decided."""
        abort_batch(self._plan, batchId, reports(messages))
