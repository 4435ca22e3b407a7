"""One attempt at one task of a write, without pyspark: what runs on the executor.

Called by task.py. In an exactly-once write the attempt takes the transactional id of its task partition over, which
fences and aborts every earlier attempt, writes, and leaves the transaction open: only the driver, which is told the
handle in the report, ends it. A task without rows opens none.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from broker.client.admin_transactions import TransactionAdmin
from broker.client.cluster import Cluster
from broker.client.transactions import TransactionHandle, init_transactional_id
from broker.errors import BrokerError, ErrorCode, UnsupportedVersion
from broker.protocol.topic_partition import TopicPartition
from spark_connector.errors import ConnectorError
from spark_connector.worker_clients import worker_clients
from spark_connector.write.decision_log import DecisionLog
from spark_connector.write.names import SinkNames
from spark_connector.write.plan import WritePlan
from spark_connector.write.rows_writer import RowsWriter

__all__ = ["Attempt", "TaskReport", "run_attempt"]


@dataclass(frozen=True)
class Attempt:
    """Whose work it is: `sink` is a query's id, or that of one batch write, `batch_id` None in the latter."""

    sink: str
    batch_id: int | None
    partition: int


@dataclass(frozen=True)
class TaskReport:
    """What the driver is told. Times in ms since 1970."""

    sink: str
    partition: int
    rows: int = 0
    bytes: int = 0
    handle: TransactionHandle | None = None
    """The open transaction; None when nothing was written, or not in one."""
    written_to: TopicPartition | None = None
    """One of the partitions in it, the first."""
    opened_ms: int = 0
    decided: int | None = None
    """The batch that was found decided, and why therefore nothing was written."""


def run_attempt(plan: WritePlan, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Write all rows of `batches` and wait until they are acknowledged.

    Raises ConnectorError, ConfigError, UnknownTopic, BrokerError, TransactionError (ProducerFenced: a later attempt
    has taken over), and what connections raise.
    """
    settings = plan.options.client
    cluster = worker_clients().cluster(settings)
    rest = iter(batches)
    first = next((batch for batch in rest if batch.num_rows), None)
    if first is None:
        return TaskReport(attempt.sink, attempt.partition)
    handle = None
    opened_ms = 0
    if plan.exactly_once:
        # Asked for as late as can be: what is decided from here on, we fence or are fenced by.
        if (decided := _decided(plan, attempt, cluster)) is not None:
            for _ in rest:
                pass  # Spark's worker wants its input read
            return TaskReport(attempt.sink, attempt.partition, decided=decided)
        names = SinkNames(plan.options.transactional_id_prefix, attempt.sink)
        if attempt.batch_id is None:
            _refuse_aborted(cluster, names)
        opened_ms = time.time_ns() // 1_000_000
        handle = init_transactional_id(cluster, names.of_task(attempt.partition), timeout_ms=plan.timeout_ms)
    writer = RowsWriter(cluster, plan.options, transaction=handle, idle=worker_clients().producing(settings))
    try:
        writer.write(first)
        for batch in rest:
            writer.write(batch)
        written = writer.finish()
    finally:
        writer.close()
    return TaskReport(
        attempt.sink,
        attempt.partition,
        rows=written.rows,
        bytes=written.bytes,
        handle=handle,
        written_to=written.partitions[0] if handle else None,
        opened_ms=opened_ms,
    )


def _decided(plan: WritePlan, attempt: Attempt, cluster: Cluster) -> int | None:
    """The batch that is decided already, this one or a later one; None when ours is still to be written."""
    if attempt.batch_id is None:
        return None
    names = SinkNames(plan.options.transactional_id_prefix, attempt.sink)
    recorded = DecisionLog(cluster, names, plan.options.topic).read()
    if recorded is None or recorded.decision.settled_batch < attempt.batch_id:
        return None
    return recorded.decision.settled_batch


def _refuse_aborted(cluster: Cluster, names: SinkNames) -> None:
    """Raise when the batch write was aborted before this task began: nobody would end its transaction any more."""
    try:
        TransactionAdmin(cluster).describe_transaction(names.of_driver)
    except UnsupportedVersion:
        return  # before Kafka 3.0: such a transaction stays open until it times out
    except BrokerError as error:
        if error.retriable or error.code is ErrorCode.transactional_id_authorization_failed:
            raise
        return
    raise ConnectorError("PYKAFKA_SINK_ABORTED", f"the write {names.sink} was aborted before this task began to write.")
