"""The transactions of one `__transaction_state` partition: replay, storing, markers, time-outs, expiry.

Owned by the transaction coordinator, which routes requests here. Runs on the event loop; only replay reads
its records in a worker thread. What a request leads to is stored before it takes effect, and on one broker
all of it — decision, markers, completion — is done by the time the request returns, unless the disk must
be waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TypeVar

from broker.clock import Clock
from broker.config.setting_groups import TransactionSettings
from broker.coordinator.deadline_timer import DeadlineTimer
from broker.coordinator.record_reader import MalformedRecord
from broker.coordinator.record_store import RecordStore
from broker.coordinator.record_writer import RecordWriter
from broker.coordinator.transaction_markers import EndMarker, MarkerWriter
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

__all__ = ["MARKER_RETRY_S", "TransactionShard", "replay"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

MARKER_RETRY_S = 1.0

# A marker that these refuse can never be written: the partition is gone, or somebody newer has it.
_GIVEN_UP = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.transaction_coordinator_fenced,
)

# What a client is told when its state cannot be stored; the rest is UNKNOWN_SERVER_ERROR.
_STORE_ERRORS = {
    ErrorCode.none: ErrorCode.none,
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
}


class TransactionShard:
    """One partition's transactions; `loaded` is false while they are replayed."""

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
        self._finishing: set[asyncio.Task[None]] = set()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def described(self) -> list[tuple[str, TransactionMetadata]]:
        """Every transactional id with what is stored of it."""
        return [(name, transaction.current) for name, transaction in self.transactions.items()]

    # --- replay

    async def load(self) -> None:
        """Replay the partition, and bring the transactions that were decided to their end."""
        latest: dict[bytes, bytes | None] = {}
        async for run in self._store.read(self.partition):
            latest.update(run.records)
        transactions = await asyncio.to_thread(replay, latest)
        if self._unloaded:
            return  # taken away while it was being read
        self.transactions = transactions
        self.loaded = True
        for transaction in transactions.values():
            if transaction.is_prepared:
                self._finish(transaction)
        self._look_for_time_outs_later()

    def unload(self, error: ErrorCode) -> None:
        """Forget the transactions; what is being stored ends by itself."""
        self.loaded = False
        self._unloaded = True
        self.transactions = {}

    async def flush(self) -> None:
        if self._finishing:
            await asyncio.wait(self._finishing)
        await self._writer.flush()

    # --- storing

    def store(self, transaction: Transaction, then: Callable[[ErrorCode], T]) -> T | Awaitable[T]:
        """Store what is pending, tell the machine, and give what `then` makes of the outcome: at once when it is
        stored at once, else a future. `then` is called though nobody waits for it any more."""
        results: list[T] = []
        future: asyncio.Future[T] | None = None

        def done(code: ErrorCode) -> None:
            transaction.stored(code)
            results.append(then(_STORE_ERRORS.get(code, ErrorCode.unknown_server_error)))
            if future is not None and not future.done():
                future.set_result(results[0])

        assert transaction.pending is not None
        record = encode_transaction_key(transaction.transactional_id), encode_transaction(transaction.pending)
        self._writer.write_now([record], done)
        if results:
            return results[0]
        future = asyncio.get_running_loop().create_future()
        return future

    def end(self, transaction: Transaction, then: Callable[[ErrorCode], T]) -> T | Awaitable[T]:
        """Store a decision, then carry it out; `then` is called with the first of the two."""

        def decided(code: ErrorCode) -> T:
            answer = then(code)
            if code is ErrorCode.none:
                self._finish(transaction)
            return answer

        return self.store(transaction, decided)

    # --- markers

    def _finish(self, transaction: Transaction, missing: Collection[TopicPartition] | None = None) -> None:
        """Write the markers of a decided transaction, or those that are `missing` yet, and store that it is complete.

        A partition that takes none holds up the transaction, but no reader of the others: they get theirs, and once.
        """
        if self._unloaded:
            return
        current = transaction.current
        marker = EndMarker(
            current.producer_id,
            current.producer_epoch,
            current.state is TransactionState.PREPARE_COMMIT,
            self._coordinator_epoch,
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
            self._begin(self._finish_after(transaction, unsafe, failed))
        else:
            self._finished(transaction, failed)

    def _write_marker(self, tp: TopicPartition, marker: EndMarker) -> Awaitable[object] | None:
        try:
            waiting = self._markers.write(tp, marker)
        except BrokerError as error:
            _give_up(tp, marker, error)
            return None
        return None if waiting is None else _written(tp, marker, waiting)

    async def _finish_after(
        self,
        transaction: Transaction,
        unsafe: Mapping[TopicPartition, Awaitable[object]],
        failed: Mapping[TopicPartition, BaseException],
    ) -> None:
        ended = await asyncio.gather(*unsafe.values(), return_exceptions=True)
        lost = {tp: error for tp, error in zip(unsafe, ended, strict=True) if isinstance(error, BaseException)}
        self._finished(transaction, {**failed, **lost})

    def _finished(self, transaction: Transaction, failed: Mapping[TopicPartition, BaseException]) -> None:
        if failed:
            self._finish_again(transaction, failed)
        else:
            self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        """All markers are written. That alone counts from here on: the record that tells it goes out with the next
        one, as without it the markers would only be written again, before anything else can begin."""
        transaction.complete(self.now_ms())
        transaction.stored(ErrorCode.none)
        self._store_completion(transaction, transaction.current)

    def _store_completion(self, transaction: Transaction, complete: TransactionMetadata) -> None:
        if self._unloaded or transaction.current is not complete:
            return  # a later record tells it too

        def done(code: ErrorCode) -> None:
            if code is not ErrorCode.none:
                retry_at = self._clock.monotonic() + MARKER_RETRY_S
                self._timer.at(retry_at, partial(self._store_completion, transaction, complete))

        if transaction.pending is not None:
            # A later record is on its way, but perhaps in vain. Behind it, ours would undo it at the next replay.
            done(ErrorCode.concurrent_transactions)
            return
        key = encode_transaction_key(transaction.transactional_id)
        self._writer.write_lazily([(key, encode_transaction(complete))], done)

    def _finish_again(self, transaction: Transaction, failed: Mapping[TopicPartition, BaseException]) -> None:
        """Whatever it was: what is decided must be carried out."""
        tp, error = next(iter(failed.items()))
        expected = isinstance(error, (BrokerError, OSError))
        logger.warning(
            "transaction %s cannot be completed yet: no marker in %d partitions, in %s because of: %s",
            transaction.transactional_id,
            len(failed),
            tp,
            error,
            exc_info=None if expected else error,
        )
        retry_at = self._clock.monotonic() + MARKER_RETRY_S
        self._timer.at(retry_at, partial(self._finish, transaction, tuple(failed)))

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    # --- time

    def _look_for_time_outs_later(self) -> None:
        interval_ms = self._settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timer.at(self._clock.monotonic() + interval_ms / 1000, self._abort_timed_out)

    def _abort_timed_out(self) -> None:
        if self._unloaded:
            return
        self._look_for_time_outs_later()
        now_ms = self.now_ms()
        for transaction in list(self.transactions.values()):
            if transaction.time_out(now_ms):
                logger.info("transaction %s took too long and is aborted", transaction.transactional_id)
                self.end(transaction, lambda code: None)

    def expire(self) -> None:
        """Forget ids that nobody used for long: many at a time, and together, for nobody waits for it."""
        now_ms = self.now_ms()
        for transaction in list(self.transactions.values()):
            if transaction.expire(now_ms, self._settings.transactional_id_expiration_ms):
                tombstone = encode_transaction_key(transaction.transactional_id), None
                self._writer.write([tombstone], partial(self._expired, transaction))

    def _expired(self, transaction: Transaction, code: ErrorCode) -> None:
        transaction.stored(code)
        if code is ErrorCode.none and self.transactions.get(transaction.transactional_id) is transaction:
            del self.transactions[transaction.transactional_id]


async def _written(tp: TopicPartition, marker: EndMarker, waiting: Awaitable[object]) -> None:
    try:
        await waiting
    except BrokerError as error:
        _give_up(tp, marker, error)


def _give_up(tp: TopicPartition, marker: EndMarker, error: BrokerError) -> None:
    """Raises what may be otherwise the next time."""
    if error.code not in _GIVEN_UP:
        raise error
    logger.info("no marker of producer %d into %s: %s", marker.producer_id, tp, error)


def replay(latest: Mapping[bytes, bytes | None]) -> dict[str, Transaction]:
    """Bring transactions back from the last record of every key of one partition.

    One that cannot be read is skipped with a warning: it must not take
    the other transactions of the partition away.
    """
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
