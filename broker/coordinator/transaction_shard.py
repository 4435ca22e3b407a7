"""The transactions of one `__transaction_state` partition: replay, storing, markers, time-outs, expiry.

Owned by the transaction coordinator, which routes requests here. Runs on the event loop; only a replay decodes its
records in a worker thread. A change is stored before it takes effect. On one broker the decision, the markers and the
completion are done before the request returns, unless they have to wait for the disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock
from broker.config.setting_groups import TransactionSettings
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.coordinator.record_format import MalformedRecord
from broker.coordinator.record_store import RecordStore
from broker.coordinator.record_writer import APPEND_ERRORS, RecordWriter
from broker.coordinator.transaction_markers import MarkerWriter
from broker.coordinator.transaction_records import (
    TransactionMetadata,
    TransactionState,
    decode_transaction,
    decode_transaction_key,
    encode_transaction,
    encode_transaction_key,
)
from broker.coordinator.transaction_state import Transaction
from broker.errors import BrokerError, ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import BUMPS_EPOCH, ControlType, EndMarker

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARKER_RETRY_S = 1.0
"""The longest time between two tries to write a marker. The first ones follow sooner: a leader is elected in less."""
FIRST_MARKER_RETRY_S = 0.02

COMPLETION_WAIT_S = 0.1

STORE_TIMEOUT_S = 5.0
"""How long a client waits for a change to be stored. Then it gets COORDINATOR_NOT_AVAILABLE and tries again."""

# After these errors a marker can never be written: the partition was deleted, or the producer has a newer epoch there.
# A coordinator that is fenced goes on trying until it resigns. It must not say that the transaction is complete.
_NOT_RETRIABLE = (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_producer_epoch)

# A client's error when its change cannot be stored. Every other code becomes UNKNOWN_SERVER_ERROR.
_STORE_ERRORS = {
    **APPEND_ERRORS,
    ErrorCode.none: ErrorCode.none,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
}


class TransactionShard:
    """One partition's transactions. `loaded` is False while they are replayed."""

    def __init__(
        self,
        partition: int,
        store: RecordStore,
        markers: MarkerWriter,
        clock: Clock,
        settings: TransactionSettings,
        timer: DeadlineTimer,
        coordinator_epoch: int,
    ) -> None:
        self.partition = partition
        self.transactions: dict[str, Transaction] = {}
        self.loaded = False
        self._unloaded = False
        self._store = store
        self._markers = markers
        self._clock = clock
        self._settings = settings
        self._timer = timer
        self._coordinator_epoch = coordinator_epoch
        self._writer = RecordWriter(store, partition)
        self._finishing = BackgroundTasks()
        self._changes: dict[Transaction, asyncio.Future[None]] = {}
        """For those who wait for a change of a transaction (`until_settled`)."""

    def described(self) -> list[tuple[str, TransactionMetadata]]:
        """Every transactional id with its stored state."""
        return [(name, transaction.current) for name, transaction in self.transactions.items()]

    # --- replay

    async def load(self) -> None:
        """Replay the partition and complete prepared transactions."""
        latest: dict[bytes, bytes | None] = {}
        async for run in self._store.read(self.partition):
            latest.update(run.records)
        transactions = await asyncio.to_thread(replay, latest)
        if self._unloaded:
            return  # unloaded during the replay
        self.transactions = transactions
        self.loaded = True
        for transaction in transactions.values():
            if transaction.is_prepared:
                self._finish(transaction)
        self._schedule_time_out_check()

    def unload(self, error: ErrorCode) -> None:
        """Forget the transactions. Appends that are under way end by themselves."""
        self.loaded = False
        self._unloaded = True
        if error is ErrorCode.not_coordinator:
            self._writer.close()
        self.transactions = {}

    async def flush(self) -> None:
        await self._finishing.wait()
        await self._writer.flush()

    # --- storing

    def store(
        self, transaction: Transaction, then: Callable[[ErrorCode], T], after: Callable[[], None] | None = None
    ) -> T | Awaitable[T]:
        """Store the pending change and return `then(code)`, at once or as a future if the append takes longer.

        `after` is called then if the change is stored, even if the caller stops waiting. When the followers are slow,
        the answer is COORDINATOR_NOT_AVAILABLE after a while, and the change stays pending until it is known what
        became of it (Kafka reverts it, although its record may be committed later).
        """
        results: list[T] = []
        future: asyncio.Future[T] | None = None

        def done(code: ErrorCode) -> None:
            transaction.stored(code)
            self._changed(transaction)
            results.append(then(_STORE_ERRORS.get(code, ErrorCode.unknown_server_error)))
            if code is ErrorCode.none and after is not None:
                after()
            if future is not None and not future.done():
                time_out.cancel()
                future.set_result(results[0])

        def timed_out() -> None:
            if future is not None and not future.done():
                future.set_result(then(ErrorCode.coordinator_not_available))

        assert transaction.pending is not None
        record = encode_transaction_key(transaction.transactional_id), encode_transaction(transaction.pending)
        self._writer.write_now([record], done)
        if results:
            return results[0]
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        time_out = loop.call_later(STORE_TIMEOUT_S, timed_out)
        return future

    def end(self, transaction: Transaction, then: Callable[[ErrorCode], T]) -> T | Awaitable[T]:
        """Store a decision, then write its markers. `then` is called as soon as the decision is stored."""
        return self.store(transaction, then, partial(self._finish, transaction))

    # --- markers

    async def until_settled(self, transaction: Transaction, deadline: float) -> bool:
        """Wait until no change is being stored and no marker is missing, but not after `deadline`, a time of the event
        loop. Returns whether there is time left.

        With followers and other brokers that takes some milliseconds. A client that were answered
        CONCURRENT_TRANSACTIONS would sleep longer before it tries again.
        """
        loop = asyncio.get_running_loop()
        while (left := deadline - loop.time()) > 0:
            if self._unloaded or not (transaction.is_prepared or transaction.pending is not None):
                return True
            await asyncio.wait([self._changes.setdefault(transaction, loop.create_future())], timeout=left)
        return False

    def _changed(self, transaction: Transaction) -> None:
        change = self._changes.pop(transaction, None)
        if change is not None:
            change.set_result(None)

    def _finish(
        self, transaction: Transaction, missing: Collection[TopicPartition] | None = None, tries: int = 0
    ) -> None:
        """Write the markers of a prepared transaction, or only those still `missing`, and complete it.

        A partition that fails delays the completion. The others get their markers at once, and only once.
        """
        if self._unloaded:
            return
        current = transaction.current
        marker = EndMarker(
            current.producer_id,
            current.producer_epoch,
            ControlType(current.state is TransactionState.PREPARE_COMMIT),
            self._coordinator_epoch,
            current.client_version,
        )
        unsafe: dict[TopicPartition, Awaitable[object]] = {}
        failed: dict[TopicPartition, BaseException] = {}
        for tp in current.partitions if missing is None else missing:
            try:
                waiting = self._write_marker(tp, marker)
            except Exception as error:
                failed[tp] = error
            else:
                if waiting is not None:
                    unsafe[tp] = waiting
        if unsafe:
            work = self._finish_after(transaction, unsafe, failed, tries)
            self._finishing.begin("ending a transaction", work)
        else:
            self._finished(transaction, failed, tries)

    def _write_marker(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        try:
            waiting = self._markers.write(tp, marker)
        except BrokerError as error:
            return self._refused(tp, marker, error)
        return None if waiting is None else self._written(tp, marker, waiting)

    async def _written(self, tp: TopicPartition, marker: EndMarker, waiting: Awaitable[object]) -> None:
        try:
            await waiting
        except BrokerError as error:
            if (again := self._refused(tp, marker, error)) is not None:
                await again

    def _refused(self, tp: TopicPartition, marker: EndMarker, error: BrokerError) -> Awaitable[object] | None:
        """Log an error that is final. Raise one that a retry may mend.

        An earlier release knows only EndTxn up to 4: its decision about a transaction of version 2 has the epoch of the
        records. Its marker must be one of version 1, or the partition would stay open for ever. That ends no later
        transaction: there is none before this one is complete, and a deposed coordinator is fenced by its epoch.
        """
        if error.code is ErrorCode.invalid_producer_epoch and marker.transaction_version >= BUMPS_EPOCH:
            return self._write_marker(tp, marker._replace(transaction_version=0))
        if error.code not in _NOT_RETRIABLE:
            raise error
        logger.info("no marker of producer %d into %s: %s", marker.producer_id, tp, error)
        return None

    async def _finish_after(
        self,
        transaction: Transaction,
        unsafe: Mapping[TopicPartition, Awaitable[object]],
        failed: Mapping[TopicPartition, BaseException],
        tries: int,
    ) -> None:
        ended = await asyncio.gather(*unsafe.values(), return_exceptions=True)
        lost = {tp: error for tp, error in zip(unsafe, ended, strict=True) if isinstance(error, BaseException)}
        if not self._unloaded:
            self._finished(transaction, {**failed, **lost}, tries)

    def _finished(self, transaction: Transaction, failed: Mapping[TopicPartition, BaseException], tries: int) -> None:
        if failed:
            self._retry_finish(transaction, failed, tries)
        else:
            self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        """All markers are written, so the transaction is complete. Its record is written lazily.

        If it is lost, a replay writes the markers again before the next transaction begins, which is harmless.
        """
        transaction.complete(self._clock.now_ms())
        transaction.stored(ErrorCode.none)
        self._changed(transaction)
        self._store_completion(transaction, transaction.current)

    def _store_completion(self, transaction: Transaction, complete: TransactionMetadata) -> None:
        if self._unloaded or transaction.current is not complete:
            return  # a later record includes the completion

        def done(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                retry_at = self._clock.monotonic() + MARKER_RETRY_S
                self._timer.at(retry_at, partial(self._store_completion, transaction, complete))

        if transaction.pending is not None:
            # A later record is being appended. This one must not follow it, because replay takes the last record. If
            # that append fails, the retry stores this one.
            done(ErrorCode.concurrent_transactions)
            return
        key = encode_transaction_key(transaction.transactional_id)
        self._writer.write_lazily([(key, encode_transaction(complete))], done)

    def _retry_finish(
        self, transaction: Transaction, failed: Mapping[TopicPartition, BaseException], tries: int
    ) -> None:
        """Retry later, whatever the error was: a decision must be carried out."""
        tp, error = next(iter(failed.items()))
        expected = isinstance(error, (BrokerError, OSError))
        logger.log(
            logging.WARNING if tries in (0, 6) or not expected else logging.DEBUG,
            "transaction %s cannot be completed yet: no marker in %d partitions, in %s because of: %s",
            transaction.transactional_id,
            len(failed),
            tp,
            error,
            exc_info=None if expected else error,
        )
        retry_at = self._clock.monotonic() + min(MARKER_RETRY_S, FIRST_MARKER_RETRY_S * 2 ** min(tries, 10))
        self._timer.at(retry_at, partial(self._finish, transaction, tuple(failed), tries + 1))

    # --- time

    def _schedule_time_out_check(self) -> None:
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timer.at(self._clock.monotonic() + interval_ms / 1000, self._abort_timed_out)

    def _abort_timed_out(self) -> None:
        if self._unloaded:
            return
        self._schedule_time_out_check()
        now_ms = self._clock.now_ms()
        for transaction in list(self.transactions.values()):
            if transaction.time_out(now_ms):
                self.end(transaction, partial(_timed_out, transaction.transactional_id))

    def expire(self) -> None:
        """Forget ids that were not used for long. Their tombstones are appended together, because no request waits."""
        now_ms = self._clock.now_ms()
        for transaction in list(self.transactions.values()):
            if transaction.expire(now_ms, self._settings.transactional_id_expiration_ms):
                tombstone = encode_transaction_key(transaction.transactional_id), None
                self._writer.write([tombstone], partial(self._expired, transaction))

    def _expired(self, transaction: Transaction, code: ErrorCode) -> None:
        transaction.stored(code)
        if code is ErrorCode.none and self.transactions.get(transaction.transactional_id) is transaction:
            del self.transactions[transaction.transactional_id]


def _timed_out(transactional_id: str, code: ErrorCode) -> None:
    if code is ErrorCode.none:  # otherwise the next check tries again
        logger.info("transaction %s has timed out and is aborted", transactional_id)


def replay(latest: Mapping[bytes, bytes | None]) -> dict[str, Transaction]:
    """The transactions from the last record of every key. One that cannot be read is skipped with a warning."""
    transactions = {}
    for key, value in latest.items():
        if value is None:
            continue
        try:
            transactional_id = decode_transaction_key(key)
            if transactional_id is not None:
                transactions[transactional_id] = Transaction(transactional_id, decode_transaction(value))
        except MalformedRecord as error:
            logger.warning("Skipped a record of the transactions topic that cannot be read: %s", error)
    return transactions
