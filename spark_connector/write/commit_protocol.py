"""How the driver commits or aborts an exactly-once write, without pyspark.

Called by writers.py. For a streaming batch the driver takes the query over, reads the last decision, checks that the
prepared transactions are still open, records the decision, and commits the transactions. A batch write has no decision,
because no later driver would finish it: its transactions are committed once all tasks have succeeded.

If a write cannot be made whole, ConnectorError (`PYKAFKA_SINK_…`) says what is visible, what is not, and what to do
(W5). If a broker is unreachable, the client's error is raised, and the next driver continues from the decision.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Sequence
from typing import Final

from broker.client.admin import Admin
from broker.client.transaction_errors import ProducerFenced
from broker.client.transaction_requests import (
    TransactionHandle,
    check_open,
    end_transaction,
    end_transactions,
    init_transactional_id,
    transaction_version,
)
from broker.errors import BrokerError, ErrorCode, PykafkaError, UnsupportedVersion
from spark_connector.errors import ConnectorError
from spark_connector.worker_clients import worker_clients
from spark_connector.write.decision import (
    Decision,
    Fail,
    Finish,
    Prepared,
    Record,
    Standing,
    may_withdraw,
    next_step,
    overtaken,
)
from spark_connector.write.decision_log import DecisionLog, Recorded
from spark_connector.write.task_report import TaskReport
from spark_connector.write.write_plan import SinkNames, WritePlan, named_sink

logger = logging.getLogger("pykafka.spark")

_GONE: Final = (
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_producer_id_mapping,
    ErrorCode.unknown_producer_id,
)
"""The transaction is no longer open: it timed out, or another driver has aborted it."""

_swept: set[SinkNames] = set()


def commit_batch(plan: WritePlan, batch_id: int, reports: Sequence[TaskReport]) -> None:
    """All tasks of the batch have succeeded: decide it and commit its transactions, or finish an earlier decision.

    Only the reports of the tasks determine what is done, not the plan of this process.
    """
    once = [report for report in reports if report.exactly_once]
    if not once:
        return
    batch = _StreamBatch(plan, once[0].attempt.sink, batch_id)
    if any(report.handle or report.decided is not None for report in once) or batch.is_decided():
        batch.commit(once)
    batch.sweep()


def abort_batch(plan: WritePlan, batch_id: int, reports: Sequence[TaskReport]) -> None:
    """The batch has failed: abort its open transactions, unless it is decided; its own commit may have failed."""
    _swept.clear()  # tasks without a report may leave transactions open whose ids the next attempt does not use
    if left_open := _left_open(reports):
        _StreamBatch(plan, left_open[0].attempt.sink, batch_id).abort(left_open)


def commit_batch_write(plan: WritePlan, reports: Sequence[TaskReport]) -> None:
    """All tasks of a batch write have succeeded: make it visible. A write with `txnAppId` is decided like a stream's
    batch.

    Raises ConnectorError when nothing is visible, or when the rows it names are missing.
    """
    if (batch_id := _batch_of(reports)) is not None:
        commit_batch(plan, batch_id, reports)
    elif left_open := _left_open(reports):
        write = _Sink(plan, left_open[0].attempt.sink)
        write.check_open(left_open, "of this write")
        lost = write.commit_all([_handle_of(report) for report in left_open])
        if lost:
            raise ConnectorError(
                "PYKAFKA_SINK_TRANSACTION_LOST",
                f"{len(lost)} of {len(left_open)} transactions of this write ended before they were committed: "
                f"{sum(left_open[index].rows for index in lost)} rows are missing, the others are visible.",
            )
        write.fence_open("Ongoing")  # open transactions of lost attempts would block readers


def abort_batch_write(plan: WritePlan, write_id: str, reports: Sequence[TaskReport]) -> None:
    """Abort the open transactions of all tasks of the write, and fence tasks that still run.

    Spark does not wait for the other tasks when one has failed. Tasks that have an id are fenced. Tasks that get an id
    later see that the driver's id is in use, and give up. Before Kafka 3.0 brokers do not list transactions: there the
    transactions of killed tasks stay open until they time out.

    A write with `txnAppId` has the ids of a sink. Its open transactions are aborted; one that a task opens later is
    aborted by the next commit, or times out. Inside foreachBatch only the tasks' reports tell the query, so without any
    report all transactions wait for the next commit or their timeout.
    """
    left_open = _left_open(reports)
    if plan.options.txn_app_id is not None:
        batch_id, sink = _batch_of(reports), next((report.attempt.sink for report in reports), None)
        if batch_id is None and (batch_id := plan.options.txn_version) is not None:
            sink = named_sink(plan.options.txn_app_id, None)
        if batch_id is not None and sink is not None:
            _StreamBatch(plan, sink, batch_id).abort(left_open, unreported=True)
        return
    write = _Sink(plan, write_id)
    write.fence(write.names.of_driver)
    for report in left_open:
        write.abort_transaction(_handle_of(report))
    write.fence_open("Ongoing", "Empty")


def _left_open(reports: Sequence[TaskReport]) -> list[TaskReport]:
    return [report for report in reports if report.handle is not None]


def _batch_of(reports: Sequence[TaskReport]) -> int | None:
    """The batch or `txnVersion` of a write with `txnAppId`; None for any other batch write."""
    return next((report.attempt.batch_id for report in reports), None)


def _handle_of(report: TaskReport) -> TransactionHandle:
    assert report.handle is not None
    return report.handle


class _Sink:
    """The transactions of one sink at the brokers."""

    def __init__(self, plan: WritePlan, sink: str) -> None:
        self.names = plan.names(sink)
        self._plan = plan
        self._cluster = worker_clients().cluster(plan.options.client)

    def check_open(self, left_open: Sequence[TaskReport], whose: str) -> None:
        """Raise unless every transaction is still open. The check adds a partition that the transaction has already."""
        now_ms = time.time_ns() // 1_000_000
        oldest_ms = now_ms - min((report.opened_ms for report in left_open), default=now_ms)
        if oldest_ms > self._plan.timeout_ms // 2:
            logger.warning(
                "the transactions %s have been open for %d s; brokers abort them after %d s "
                "(kafka.transaction.timeout.ms)",
                whose,
                oldest_ms // 1000,
                self._plan.timeout_ms // 1000,
            )
        asked = [(_handle_of(report), report.written_to) for report in left_open if report.written_to is not None]
        for report, error in zip(left_open, check_open(self._cluster, asked), strict=True):
            if error is None:
                continue
            if error.code not in _GONE:
                raise error
            raise ConnectorError(
                "PYKAFKA_SINK_TRANSACTION_LOST",
                f"the transaction of task {report.attempt.partition} {whose} ({report.rows} rows, opened "
                f"{(now_ms - report.opened_ms) // 1000} s ago, kafka.transaction.timeout.ms={self._plan.timeout_ms}) "
                f"ended before it was decided: {error}. Nothing is visible; run the write again.",
            ) from error

    def commit_all(self, handles: Sequence[TransactionHandle]) -> list[int]:
        """Commit each; returns the indexes of the transactions that are no longer open."""
        lost = []
        for index, error in enumerate(end_transactions(self._cluster, handles, commit=True)):
            if error is not None:
                if error.code not in _GONE:
                    raise error
                lost.append(index)
        return lost

    def abort_transaction(self, handle: TransactionHandle) -> None:
        """Best effort: otherwise the next attempt fences it, or it times out."""
        try:
            end_transaction(self._cluster, handle, commit=False)
        except PykafkaError as error:
            logger.info("could not abort %s: %s", handle.transactional_id, error)

    def fence(self, transactional_id: str) -> None:
        """Abort what is open under this id, and refuse what its producer still sends."""
        init_transactional_id(self._cluster, transactional_id, timeout_ms=self._plan.timeout_ms)

    def fence_open(self, *states: str, spared: Collection[str] = ()) -> None:
        """Abort the transactions of the sink's tasks that are in one of `states`, and fence their producers.

        Best effort: brokers before Kafka 3.0 cannot list transactions, and others may refuse to.
        """
        with contextlib.suppress(PykafkaError):
            for found in Admin(self._cluster).list_transactions(states=states):
                if found.transactional_id not in spared and self.names.task_of(found.transactional_id) is not None:
                    logger.info("aborting %s, which an earlier attempt left open", found.transactional_id)
                    self.fence(found.transactional_id)


class _StreamBatch(_Sink):
    """The driver's side of one micro-batch, or of a write with `txnAppId`."""

    def __init__(self, plan: WritePlan, sink: str, batch_id: int) -> None:
        super().__init__(plan, sink)
        self._batch_id = batch_id
        self._log = DecisionLog(self._cluster, self.names, plan.options.topic)

    def is_decided(self) -> bool:
        """Also if no task reports it: this time all tasks may have no rows."""
        recorded = self._log.read()
        return recorded is not None and recorded.decision.final_batch >= self._batch_id

    def abort(self, left_open: Sequence[TaskReport], *, unreported: bool = False) -> None:
        """Abort, unless the batch is decided. `unreported`: also undecided transactions of tasks without a report."""
        recorded = self._log.read()
        if recorded is not None and recorded.decision.final_batch >= self._batch_id:
            return
        for report in left_open:
            self.abort_transaction(_handle_of(report))
        if unreported:  # a driver that died may have left an earlier version decided but not committed
            decided = recorded.decision.prepared if recorded is not None else ()
            self.fence_open("Ongoing", spared={self._handle(one).transactional_id for one in decided})

    def commit(self, reports: Sequence[TaskReport]) -> None:
        """Raises ConnectorError if the batch cannot be committed as a whole, and the client's errors."""
        driver = self._log.take_over()
        recorded = self._log.read()
        left_open = _left_open(reports)
        decided = [report.decided for report in reports if report.decided is not None]
        decision = recorded.decision if recorded else None
        if decision is not None and self._plan.options.txn_version is not None:
            # As in Delta, a version below the last one counts as written.
            self._batch_id = max(self._batch_id, decision.final_batch)
        run = reports[0].attempt.run
        step = next_step(decision, self._batch_id, [_prepared(report) for report in left_open], decided, run)
        if isinstance(step, Fail):
            raise ConnectorError(step.condition, f"Query {self.names.sink}: {step.message}")
        if isinstance(step, Record):
            self._record(driver, step.decision, left_open)
            self._fence_overtaken(decision, left_open)
        elif isinstance(step, Finish) and recorded is not None:
            if left_open and (name := self._plan.options.txn_app_id) is not None:
                step.decision.refuse_namesake(name, self._batch_id, run)
            for stray in step.strays:
                self.abort_transaction(self._handle(stray))
            self._finish(driver, recorded)

    def _record(self, driver: TransactionHandle, decision: Decision, left_open: Sequence[TaskReport]) -> None:
        self.check_open(left_open, f"of batch {self._batch_id}")
        topics = {report.written_to.topic for report in left_open if report.written_to is not None}
        bad_rows_topic = self._plan.options.formats.bad_rows_topic
        # A task may have only bad rows, and the topic of these may be one that is emptied by deleting it.
        topic = self._plan.options.topic or min(topics, key=lambda name: (name == bad_rows_topic, name))
        try:
            self._log.record(driver, decision, topic)
        except ProducerFenced as error:
            raise ConnectorError(
                "PYKAFKA_SINK_SUPERSEDED",
                f"Query {self.names.sink}: another driver took the query over while batch {self._batch_id} was "
                "being committed; this driver has committed nothing of it. Run a query from its checkpoint only once "
                "at a time.",
            ) from error
        self._end_all(driver, Recorded(decision, topic), nothing_visible=True)

    def _finish(self, driver: TransactionHandle, recorded: Recorded) -> None:
        """Finish what an earlier driver has decided, or withdraw the decision if nothing of it can become visible."""
        logger.info("query %s: batch %d was decided earlier; finishing it", self.names.sink, self._batch_id)
        if self._log.is_done(recorded):
            if self._plan.options.topic not in (None, recorded.topic):
                raise self._written_elsewhere(recorded)
            return
        if may_withdraw(recorded.decision, self._standings(recorded.decision)):
            self._withdraw(driver, recorded)
        self._end_all(driver, recorded, nothing_visible=False)

    def _end_all(self, driver: TransactionHandle, recorded: Recorded, *, nothing_visible: bool) -> None:
        """Commit every transaction of the decision. `nothing_visible`: it is certain that none is committed yet."""
        handles = [self._handle(one) for one in recorded.decision.prepared]
        if nothing_visible and self.commit_all(handles[:1]):
            self._withdraw(driver, recorded)
        lost = [recorded.decision.prepared[index] for index in self.commit_all(handles)]
        if lost:
            raise self._incomplete(recorded.decision, lost)
        self._log.mark_done(recorded)

    def _withdraw(self, driver: TransactionHandle, recorded: Recorded) -> None:
        """Withdraw the decision, so that a restart writes the batch again, and raise ConnectorError.

        First the open transactions are aborted, so that an earlier driver that still runs cannot commit them. If it has
        just committed one, there is nothing to withdraw, and this returns.
        """
        handles = [self._handle(one) for one in recorded.decision.prepared]
        outcomes = end_transactions(self._cluster, handles, commit=False)
        if any(error is not None and error.code is ErrorCode.invalid_txn_state for error in outcomes):
            return
        self._log.record(driver, Decision(self._batch_id, (), withdrawn=True), recorded.topic)
        raise ConnectorError(
            "PYKAFKA_SINK_BATCH_WITHDRAWN",
            f"Query {self.names.sink}: the transactions of batch {self._batch_id} ended before they were committed "
            f"(kafka.transaction.timeout.ms={self._plan.timeout_ms}). Nothing of it is visible, and its decision is "
            "withdrawn; a restart of the query writes it again.",
        )

    def _written_elsewhere(self, recorded: Recorded) -> ConnectorError:
        """The next driver of a query writes to the same topic, so another topic means another query."""
        return ConnectorError(
            "PYKAFKA_SINK_SUPERSEDED",
            f"Query {self.names.sink}: its batch {self._batch_id} was already written to topic '{recorded.topic}', "
            f"and nothing of it to '{self._plan.options.topic}'. A query that uses a copy of another query's "
            "checkpoint needs its own option 'transactionalIdPrefix'; so does a query with a changed topic, to write "
            "this batch to the new topic too.",
        )

    def _incomplete(self, decision: Decision, lost: Sequence[Prepared]) -> ConnectorError:
        tasks = ", ".join(f"{one.partition} ({one.rows} rows)" for one in lost[:20])
        more = f" and {len(lost) - 20} more" if len(lost) > 20 else ""
        return ConnectorError(
            "PYKAFKA_SINK_BATCH_INCOMPLETE",
            f"Query {self.names.sink}: batch {self._batch_id} was decided, but {len(lost)} of its "
            f"{len(decision.prepared)} transactions had ended before they were committed; up to "
            f"{sum(one.rows for one in lost)} rows are missing, those of tasks {tasks}{more}. The others are visible. "
            "To write the whole batch again, with duplicates of the visible rows, delete the group "
            f"'{self.names.group()}' and restart the query.",
        )

    def _standings(self, decision: Decision) -> list[Standing | None]:
        """The state of each transaction; None if unknown (DescribeTransactions needs Kafka 3.0)."""
        admin = Admin(self._cluster)
        version = transaction_version(self._cluster)
        standings: list[Standing | None] = []
        for handle in map(self._handle, decision.prepared):
            try:
                found = admin.describe_transaction(handle.transactional_id)
                if found.aborted_by_broker(handle.identity, version):
                    standings.append(Standing(found.state, handle.epoch + 1))
                else:
                    same = found.producer_id == handle.producer_id
                    standings.append(Standing(found.state, found.producer_epoch) if same else None)
            except (BrokerError, UnsupportedVersion) as error:
                if getattr(error, "retriable", False):
                    raise
                standings.append(None)
        return standings

    def _handle(self, one: Prepared) -> TransactionHandle:
        return TransactionHandle(self.names.of_attempt(one.partition, one.number), one.producer_id, one.epoch)

    def _fence_overtaken(self, earlier: Decision | None, left_open: Sequence[TaskReport]) -> None:
        """Abort the transactions that attempts without a report may have left open, because readers of committed data
        wait for them. Best effort: otherwise they time out."""
        reported = [(one.attempt.partition, one.number, one.attempt.tries) for one in left_open]
        with contextlib.suppress(PykafkaError):
            for partition, number in overtaken(earlier, reported):
                logger.info("aborting the transaction that attempt %d of task %d may have left open", number, partition)
                self.fence(self.names.of_attempt(partition, number))

    def sweep(self) -> None:
        """Abort transactions that nobody will end, such as those of an earlier driver with more tasks.

        Runs once per process and query and after a failed batch, while this driver has no transaction open.
        """
        if self.names not in _swept:
            _swept.add(self.names)
            self.fence_open("Ongoing")


def _prepared(report: TaskReport) -> Prepared:
    handle = _handle_of(report)
    return Prepared(report.attempt.partition, report.number, handle.producer_id, handle.epoch, report.rows)
