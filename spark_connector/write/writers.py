"""The writers that Spark calls: `DataSourceArrowWriter` for batches and streams, over attempt.py and
commit_protocol.py.

A batch writer is pickled on the driver for the tasks' `write`, and for the process that runs `commit` or `abort`, so
all share the id of the write. For every micro-batch one process makes a stream writer and pickles it for the tasks, and
another makes one for `commit` or `abort` (observed on 4.0.5 and 4.3.0), which needs no schemas and asks no registry. So
the driver knows of a batch only what its tasks' messages say.

Every task of a micro-batch has the query's id and the batch in its local properties; so have the tasks of writes inside
`foreachBatch`. The session's settings are there too, including `spark.*` of the driver (observed on 4.3). Over Spark
Connect, and in the user's own threads, a write inside `foreachBatch` has only these settings.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from broker.errors import ConfigError, PykafkaError
from spark_connector.entry_point import entry_point
from spark_connector.shipped import shipped
from spark_connector.spark_versions import StreamArrowWriter
from spark_connector.worker_clients import keep_imports
from spark_connector.write.task_report import Attempt, TaskReport
from spark_connector.write.write_plan import WritePlan, named_sink

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""In a streaming query the id of its run, which changes with every start."""

_SET_BY_QUERIES: Final = ("spark.sql.cbo.enabled", "spark.sql.requireAllClusterKeysForDistribution")
"""Settings that `StreamExecution` sets to false in the session of a query, which is the session of `foreachBatch`'s
DataFrame. A session that has them without being a query's is rare."""

_SPECULATION: Final = "spark.speculation"
_NO_BATCH_ID: Final = (
    ". Spark does not tell this write its batch, because it goes through Spark Connect or comes from a thread of your "
    "own: set option 'txnVersion' to the batch's id, and use the name in no other query"
)


class TaskMessage(WriterCommitMessage):
    """A task's report, which Spark passes to `commit` and `abort`."""

    def __init__(self, report: TaskReport) -> None:
        self.report = report


class KafkaBatchWriter(DataSourceArrowWriter):
    """One batch write of one query."""

    def __init__(self, plan: WritePlan, write_id: str | None = None) -> None:
        self._plan = plan
        self._write_id = write_id or str(uuid.uuid4())

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(type(self), self._plan, self._write_id)

    @entry_point
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        plan = self._plan
        context = _context(plan)
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        name, version = plan.options.txn_app_id, plan.options.txn_version
        has_batch_id = query is not None and batch is not None
        if not plan.options.exactly_once or (name is None and not has_batch_id and not _in_query(context)):
            return _run(plan, context, self._write_id, None, iterator)
        if name is None:
            raise ConfigError(
                "an exactly-once write inside foreachBatch would write its rows again when the batch is repeated after "
                "a failure: set option 'txnAppId' to a name that no other write of the function has, and a batch that "
                f"was written is not written again{'' if has_batch_id else _NO_BATCH_ID}; or set option 'delivery' to "
                "at-least-once"
            )
        if version is not None:
            return _run(plan, context, named_sink(name, None), version, iterator)
        if query is None or batch is None:
            raise ConfigError(
                "Option 'txnAppId' needs option 'txnVersion', a number that grows with every write. Inside "
                "foreachBatch it is the batch's id. Spark tells the write this id, except through Spark Connect and in "
                "a thread of your own: there set option 'txnVersion' to it, and 'txnAppId' to a name that no other "
                "query has"
            )
        run = zlib.crc32((context.getLocalProperty(_RUN_ID) or "").encode())
        return _run(plan, context, named_sink(name, query), int(batch), iterator, run)

    @entry_point
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have succeeded: make the rows of an exactly-once write visible."""
        reports = _all_reports(messages)
        if any(report.exactly_once for report in reports):
            from spark_connector.write.commit_protocol import commit_batch_write  # for this process only

            commit_batch_write(self._plan, reports)

    @entry_point
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """A task has failed for good: no row of an exactly-once write becomes visible, and no task writes any more."""
        if self._plan.options.exactly_once:
            from spark_connector.write.commit_protocol import abort_batch_write

            abort_batch_write(self._plan, self._write_id, _reports(messages))


class KafkaStreamWriter(StreamArrowWriter):
    """The writer of one micro-batch."""

    def __init__(self, plan: WritePlan) -> None:
        self._plan = plan

    def __reduce__(self) -> tuple[object, ...]:
        return shipped(type(self), self._plan)

    @entry_point
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write the rows of one task, whose local properties hold the query and the batch, the same after a restart."""
        context = _context(self._plan)
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query is None or batch is None:
            if self._plan.options.exactly_once:
                raise PykafkaError(
                    f"Spark did not tell the task its query and batch ({_QUERY_ID}, {_BATCH_ID}), without which a "
                    "write cannot be exactly-once: set option 'delivery' to at-least-once"
                )
            query, batch = "", "0"
        return _run(self._plan, context, query, int(batch), iterator)

    @entry_point
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks have succeeded: decide the batch of an exactly-once write and make its rows visible."""
        reports = _all_reports(messages)
        if any(report.exactly_once for report in reports):
            from spark_connector.write.commit_protocol import commit_batch

            commit_batch(self._plan, batchId, reports)

    @entry_point
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The batch has failed: abort the known transactions of an exactly-once write that is not decided."""
        from spark_connector.write.commit_protocol import abort_batch

        abort_batch(self._plan, batchId, _reports(messages))


def _reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of the tasks that succeeded."""
    return [message.report for message in messages if isinstance(message, TaskMessage)]


def _all_reports(messages: list[WriterCommitMessage | None]) -> list[TaskReport]:
    """The reports of all tasks; PykafkaError if one is missing, because its rows would be lost silently."""
    found = _reports(messages)
    if len(found) != len(messages):
        raise PykafkaError(
            f"Spark asks for a commit, but {len(messages) - len(found)} of {len(messages)} tasks have left no report"
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
    from spark_connector.pandas_later import next_array_without_pandas, without_pandas  # for tasks only
    from spark_connector.write.attempt import run_attempt

    keep_imports()
    attempt = Attempt(sink, batch_id, context.partitionId(), context.attemptNumber(), context.taskAttemptId(), run)
    with without_pandas():
        report = run_attempt(plan, attempt, batches)
    next_array_without_pandas()
    return TaskMessage(report)


def _in_query(context: TaskContext) -> bool:
    return all(context.getLocalProperty(name) == "false" for name in _SET_BY_QUERIES)


def _context(plan: WritePlan) -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "Spark calls write() in a task"
    if plan.options.exactly_once and (context.getLocalProperty(_SPECULATION) or "").lower() == "true":
        raise ConfigError(
            "spark.speculation=true may start a second attempt of a task while the first one still writes, so an "
            "exactly-once write is refused. Set spark.speculation=false, or option 'delivery' to at-least-once"
        )
    return context
