"""A writing task as Spark runs it: who it is according to `TaskContext`, and the message it leaves for the driver.

Spark puts the query's id and the batch into the local properties of every task of a micro-batch, those of writes inside
`foreachBatch` too, and with them the session's settings, `spark.*` of the driver among them (seen on 4.3). Over Spark
Connect, and from threads of the user's own, a write inside `foreachBatch` has only those settings.

Batch writes: Spark's `DataSourceArrowWriter` over attempt.py and commit.py.

Spark pickles the writer on the driver to the tasks' `write`, and to the process that runs `commit` or `abort`: all of
them share the id of the write that is made here.

Streaming writes: Spark's `DataSourceStreamArrowWriter` over attempt.py and commit.py.

What Spark does with it (observed on 4.0.5 and 4.3.0): for every micro-batch one process makes a writer and pickles it
to the tasks, and another makes a writer for `commit` or `abort`. All that the driver knows of a batch is in its tasks'
messages.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from broker.errors import ConfigError, PykafkaError
from spark_connector.spark_versions import StreamArrowWriter
from spark_connector.worker_clients import keep_imports
from spark_connector.write.attempt import Attempt, TaskReport, run_attempt
from spark_connector.write.commit_protocol import abort_batch, abort_batch_write, commit_batch, commit_batch_write
from spark_connector.write.write_plan import WritePlan, named_sink

__all__ = [
    "KafkaBatchWriter",
    "KafkaStreamWriter",
    "TaskMessage",
    "all_reports",
    "reports",
    "stream_task",
    "write_task",
]

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""Of a streaming query the id of its run, another after every start."""

_SET_BY_QUERIES: Final = ("spark.sql.cbo.enabled", "spark.sql.requireAllClusterKeysForDistribution")
"""Settings that `StreamExecution` sets to false in the session of each query, that of `foreachBatch`'s DataFrame. Both
are so by default, and hardly anybody sets them so."""

_SPECULATION: Final = "spark.speculation"


class TaskMessage(WriterCommitMessage):
    """A task's report, as Spark carries it to `commit` and `abort`."""

    def __init__(self, report: TaskReport) -> None:
        self.report = report


_UNTOLD: Final = (
    ". Spark does not tell this write its batch, as it goes through Spark Connect or comes from a thread of your own: "
    "set option 'txnVersion' to the batch's id, and let no other query have the name"
)


def write_task(plan: WritePlan, write_id: str, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """A task of the batch write with that id."""
    context = _context(plan)
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    name, version = plan.options.txn_app_id, plan.options.txn_version
    told = query is not None and batch is not None
    if not plan.exactly_once or (name is None and not told and not _in_query(context)):
        return _run(plan, context, write_id, None, batches)
    if name is None:
        raise ConfigError(
            "an exactly-once write inside foreachBatch would write its rows again when the batch is repeated after a "
            "failure: set option 'txnAppId' to a name that no other write of the function has, and a batch that was "
            f"written is not written again{'' if told else _UNTOLD}; or set option 'delivery' to at-least-once"
        )
    if version is not None:
        return _run(plan, context, named_sink(name, None), version, batches)
    if query is None or batch is None:
        raise ConfigError(
            "Option 'txnAppId' needs option 'txnVersion', a number that grows with every write. Inside foreachBatch "
            "it is the batch's id, which Spark tells the write itself unless it goes through Spark Connect or comes "
            "from a thread of your own: there set option 'txnVersion' to it, and 'txnAppId' to a name that no other "
            "query has"
        )
    run = zlib.crc32((context.getLocalProperty(_RUN_ID) or "").encode())
    return _run(plan, context, named_sink(name, query), int(batch), batches, run)


def stream_task(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """A task of a micro-batch; the query and the batch are in its local properties, the same after a restart."""
    context = _context(plan)
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        if plan.exactly_once:
            raise PykafkaError(
                f"Spark did not tell the task its query and batch ({_QUERY_ID}, {_BATCH_ID}), without which a write "
                "cannot be exactly-once: set option 'delivery' to at-least-once"
            )
        query, batch = "", "0"
    return _run(plan, context, query, int(batch), batches)


def reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of the tasks that succeeded."""
    return [message.report for message in messages if isinstance(message, TaskMessage)]


def all_reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of all tasks, as `commit` needs them: rows of one that is not known would be lost unseen."""
    found = reports(messages)
    if len(found) != len(messages):
        raise PykafkaError(
            f"Spark asks for a commit, and {len(messages) - len(found)} of {len(messages)} tasks have left no report"
        )
    return found


def _run(
    plan: WritePlan,
    context: TaskContext,
    sink: str,
    batch_id: int | None,
    batches: Iterator[pa.RecordBatch],
    run: int = 0,
) -> TaskMessage:
    keep_imports()
    number, task_id = context.attemptNumber(), context.taskAttemptId()
    return TaskMessage(run_attempt(plan, Attempt(sink, batch_id, context.partitionId(), number, task_id, run), batches))


def _in_query(context: TaskContext) -> bool:
    return all(context.getLocalProperty(name) == "false" for name in _SET_BY_QUERIES)


def _context(plan: WritePlan) -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write() in a task"
    if plan.exactly_once and (context.getLocalProperty(_SPECULATION) or "").lower() == "true":
        raise ConfigError(
            "spark.speculation=true runs a task a second time while the first may be writing still: an exactly-once "
            "write is refused then. Set spark.speculation=false, or option 'delivery' to at-least-once"
        )
    return context


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
