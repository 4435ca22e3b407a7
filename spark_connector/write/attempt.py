"""One attempt at one task of a write, without pyspark: it runs on the executor.

Called by writers.py. In an exactly-once write every attempt has a transactional id that no concurrent attempt has. It
writes in a transaction of this id and leaves the transaction open: only the driver ends it, by the handle in the
report. So a late attempt cannot take over a transaction that another attempt has reported (W3). A task without rows
opens none.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from broker.client.cluster import Cluster
from broker.client.transaction_requests import TransactionHandle, init_transactional_id
from broker.errors import BrokerError, ErrorCode, PykafkaError, UnsupportedVersion
from broker.freed_memory import keep_freed_memory
from spark_connector.errors import ConnectorError
from spark_connector.worker_clients import worker_clients
from spark_connector.write.decision_log import DecisionLog, Recorded
from spark_connector.write.rows_writer import RowsWriter, Written
from spark_connector.write.task_report import Attempt, TaskReport
from spark_connector.write.write_plan import SinkNames, WritePlan

_LOOK_AGAIN_S: Final = 0.1
"""If getting an id took longer, the attempt may be late, so it looks for a decision again."""

_GIVE_UP_S: Final = 5.0

_KEPT_BYTES: Final = 32 << 20
"""A worker keeps so much memory of Arrow batches and record batches for the next ones; the most that glibc takes."""


def run_attempt(plan: WritePlan, attempt: Attempt, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Write all rows of `batches` and wait until they are acknowledged.

    Raises ConnectorError, ConfigError, UnknownTopic, BrokerError, TransactionError (ProducerFenced: the driver
    continued without this attempt), and the errors of connections.
    """
    report = TaskReport(attempt, plan.options.exactly_once)
    cluster = worker_clients().cluster(plan.options.client)
    rest = iter(batches)
    first = next((batch for batch in rest if batch.num_rows), None)
    if first is None:
        return report
    if not plan.options.exactly_once:
        if attempt.batch_id is not None:
            _refuse_changed_delivery(plan, attempt, cluster)
        written = _write(plan, attempt, cluster, None, first, rest)
        return replace(report, rows=written.rows)
    report = _open(plan, report, cluster)
    if report.handle is None:
        for _ in rest:
            pass  # Spark's worker expects that its input is consumed
        return report
    try:
        written = _write(plan, attempt, cluster, report.handle, first, rest)
    except BaseException:
        # Nobody else would end the transaction. A new epoch also makes brokers refuse requests still on their way.
        with contextlib.suppress(PykafkaError):
            name = report.handle.transactional_id
            init_transactional_id(cluster, name, timeout_ms=plan.timeout_ms, timeout_s=_GIVE_UP_S)
        raise
    bad_rows_topic = plan.options.formats.bad_rows_topic
    written_to = min(written.partitions, key=lambda tp: (tp.topic == bad_rows_topic, tp))
    return replace(report, rows=written.rows, written_to=written_to)


def _write(
    plan: WritePlan,
    attempt: Attempt,
    cluster: Cluster,
    handle: TransactionHandle | None,
    first: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
) -> Written:
    keep_freed_memory(_KEPT_BYTES)
    idle = worker_clients().producing(plan.options.client)
    made = RowsWriter(cluster, plan.options, transaction=handle, idle=idle, partition=attempt.partition)
    with contextlib.closing(made) as writer:
        for batch in itertools.chain([first], rest):
            writer.write(batch)
        return writer.finish()


def _open(plan: WritePlan, report: TaskReport, cluster: Cluster) -> TaskReport:
    """Add to `report` the handle of an id that only this attempt uses, or the batch that is decided already."""
    attempt = report.attempt
    names = plan.names(attempt.sink)
    opened_ms = time.time_ns() // 1_000_000
    if attempt.batch_id is None:
        name = names.of_task(attempt.partition, attempt.task_id)
        handle = init_transactional_id(cluster, name, timeout_ms=plan.timeout_ms)
        _refuse_aborted(cluster, names)  # after init: either the abort fences us, or we see the abort
        return replace(report, handle=handle, opened_ms=opened_ms)
    log = DecisionLog(cluster, names, plan.options.topic)
    looked = time.monotonic()
    if (decided := _decided(plan, attempt, log.read())) is not None:
        return replace(report, decided=decided)
    counter = names.of_partition(attempt.partition)
    number = init_transactional_id(cluster, counter, timeout_ms=plan.timeout_ms).epoch
    name = names.of_attempt(attempt.partition, number)
    handle = init_transactional_id(cluster, name, timeout_ms=plan.timeout_ms)
    if time.monotonic() - looked > _LOOK_AGAIN_S and (decided := _decided(plan, attempt, log.read())) is not None:
        return replace(report, decided=decided)
    return replace(report, handle=handle, number=number, opened_ms=opened_ms)


def _decided(plan: WritePlan, attempt: Attempt, recorded: Recorded | None) -> int | None:
    """The decided batch if it is this one or a later one; None when this batch must still be written."""
    assert attempt.batch_id is not None
    if recorded is None or recorded.decision.final_batch < attempt.batch_id:
        return None
    if plan.options.txn_app_id is not None:
        recorded.decision.refuse_namesake(plan.options.txn_app_id, attempt.batch_id, attempt.run)
    return recorded.decision.final_batch


def _refuse_aborted(cluster: Cluster, names: SinkNames) -> None:
    """Raise if the batch write was aborted before this task began: nobody would end the task's transaction."""
    from broker.client.admin import Admin  # for such a write only

    try:
        Admin(cluster).describe_transaction(names.of_driver)
    except UnsupportedVersion:
        return  # before Kafka 3.0: such a transaction stays open until it times out
    except BrokerError as error:
        if error.retriable or error.code is ErrorCode.transactional_id_authorization_failed:
            raise
        return
    raise ConnectorError("PYKAFKA_SINK_ABORTED", f"the write {names.sink} was aborted before this task began to write.")


_checked_sinks: set[SinkNames] = set()


def _refuse_changed_delivery(plan: WritePlan, attempt: Attempt, cluster: Cluster) -> None:
    """Raise if the query was exactly-once before: its last batch may be decided, and would be written twice (W8)."""
    names = plan.names(attempt.sink)
    if names in _checked_sinks or not attempt.sink:
        return
    recorded = None
    try:
        recorded = DecisionLog(cluster, names, plan.options.topic).read()
    except (BrokerError, UnsupportedVersion) as error:
        if getattr(error, "retriable", False):
            raise  # otherwise: who may not read the group has never written it
    if recorded is not None:
        raise ConnectorError(
            "PYKAFKA_SINK_DELIVERY_CHANGED",
            f"query {attempt.sink} was exactly-once up to batch {recorded.decision.batch_id}, and is now started with "
            f"delivery=at-least-once at batch {attempt.batch_id}: a batch that is decided could be written twice. "
            "Leave option 'delivery' out to continue; to continue at least once, delete the groups "
            f"'{names.group()}' and '{names.group_of_done}' first; or start with a new checkpointLocation.",
        )
    _checked_sinks.add(names)
