"""A writing task as Spark runs it: who it is according to `TaskContext`, and the message it leaves for the driver."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from broker.errors import PykafkaError
from spark_connector.write.attempt import Attempt, TaskReport, run_attempt
from spark_connector.write.plan import WritePlan

__all__ = ["TaskMessage", "reports", "stream_task", "write_task"]

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class TaskMessage(WriterCommitMessage):
    """A task's report, as Spark carries it to `commit` and `abort`."""

    def __init__(self, report: TaskReport) -> None:
        self.report = report


def write_task(plan: WritePlan, write_id: str, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """A task of the batch write with that id."""
    return TaskMessage(run_attempt(plan, Attempt(write_id, None, _context().partitionId()), batches))


def stream_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """A task of a micro-batch; the query and the batch are in its local properties, the same after a restart."""
    context = _context()
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        if plan.exactly_once:
            raise PykafkaError(
                f"Spark did not tell the task its query and batch ({_QUERY_ID}, {_BATCH_ID}), without which a write "
                "cannot be exactly-once: set option 'delivery' to at-least-once"
            )
        query, batch = "", "0"
    return TaskMessage(run_attempt(plan, Attempt(query, int(batch), context.partitionId()), batches))


def reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of the tasks that succeeded."""
    return [message.report for message in messages if isinstance(message, TaskMessage)]


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write() in a task"
    return context
