"""The transactions of one producer: Kafka's `TransactionManager`, without a queue of its own.

Made by producer.py when `transactional.id` is set. The application's thread calls `init`, `begin`, `send_offsets`,
`commit` and `abort`, which wait for the coordinator. The sender's thread calls `admit` to add partitions before it
writes to them, and `failed` when a batch failed. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from broker.client.accumulator import PartitionQueue
from broker.client.cluster import Cluster
from broker.client.committed_offsets import GroupMetadata
from broker.client.produce_request import ProducerIdentity
from broker.client.transaction_errors import TransactionError, transaction_error
from broker.client.transaction_requests import (
    TransactionHandle,
    add_offsets,
    add_partitions,
    commit_offsets,
    end_transaction,
    init_transactional_id,
)
from broker.client.transactional_producer_state import Phase, TransactionState
from broker.errors import BrokerError, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

_Batch = TypeVar("_Batch")

_STILL_ENDING_S: Final = 0.02
"""Wait while the coordinator completes the previous transaction; as in Kafka, shorter than `retry.backoff.ms`."""


class TransactionManager:
    """`flush(timeout_s)` waits until every record sent so far is acknowledged or has failed."""

    def __init__(self, cluster: Cluster, flush: Callable[[float | None], object]) -> None:
        self._cluster = cluster
        self._settings = cluster.settings
        self._flush = flush
        self._lock = threading.Lock()
        self._state = TransactionState()
        self._handle: TransactionHandle | None = None
        self._retry_at = 0.0
        self._failures = 0

    # --- the application's thread --------------------------------------------------------------

    def init(self) -> None:
        """Get a producer id and fence earlier producers. May be called again after a time-out."""
        with self._lock:
            self._state.check_uninitialized()
        settings = self._settings
        self._handle = init_transactional_id(
            self._cluster,
            settings.transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            timeout_s=settings.max_block_ms / 1000,
        )
        with self._lock:
            self._state.initialized()

    def begin(self) -> None:
        """Begin a transaction; the coordinator learns of it when the first partition is added."""
        with self._lock:
            self._state.begin()

    def check_open(self) -> None:
        self._state.check_open()

    def send_offsets(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        with self._lock:
            self._state.check_open()
        if not offsets:
            return
        handle, timeout_s = self._current(), self._settings.max_block_ms / 1000
        try:
            if not self._state.has_offsets:
                add_offsets(self._cluster, handle, group.group_id, timeout_s=timeout_s)
                with self._lock:
                    self._state.has_offsets = True
            commit_offsets(self._cluster, handle, offsets, group, timeout_s=timeout_s)
        except TransactionError as error:
            self.failed(error)
            raise

    def commit(self) -> None:
        """Send what is left, then commit. Raises AbortableTransactionError when a record failed."""
        with self._lock:
            if self._state.phase is not Phase.COMMITTING:
                self._state.check_open()
        self._flush(None)
        with self._lock:
            self._state.start_commit()
        self._end(self._settings.max_block_ms / 1000, commit=True)

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop unsent records, then abort; each waits at most `timeout_s`."""
        with self._lock:
            self._state.start_abort()
        self._flush(timeout_s)  # the sender fails the unsent records
        self._end(self._settings.max_block_ms / 1000 if timeout_s is None else timeout_s, commit=False)

    @property
    def open(self) -> bool:
        """Whether there is a transaction to abort."""
        return self._state.phase in (Phase.IN_TRANSACTION, Phase.ABORTING)

    def _end(self, timeout_s: float, *, commit: bool) -> None:
        try:
            if self._state.begun:
                self._end_at_coordinator(commit=commit, timeout_s=timeout_s)
            if self._state.needs_new_epoch:
                self._handle = init_transactional_id(
                    self._cluster,
                    self._settings.transactional_id,
                    timeout_ms=self._settings.transaction_timeout_ms,
                    previous=self._current().identity,
                    timeout_s=timeout_s,
                )
                self._state.renewed()
        except TransactionError as error:
            self.failed(error)
            raise
        with self._lock:
            self._state.ended()

    def _end_at_coordinator(self, *, commit: bool, timeout_s: float) -> None:
        try:
            end_transaction(self._cluster, self._current(), commit=commit, timeout_s=timeout_s)
        except TransactionError as error:
            if commit or error.code is not ErrorCode.invalid_producer_id_mapping:
                raise
            # The coordinator has forgotten the producer: nothing to abort, and it begins like a new one.
            self._handle = TransactionHandle(self._settings.transactional_id, -1, -1)
            self._state.needs_new_epoch = True

    def _current(self) -> TransactionHandle:
        if self._handle is None:
            raise PykafkaError(f"the transactional producer {Phase.UNINITIALIZED.value}")
        return self._handle

    # --- the sender's thread -------------------------------------------------------------------

    @property
    def identity(self) -> ProducerIdentity | None:
        """The producer id and epoch of batches; None before `init`."""
        handle = self._handle
        return handle.identity if handle else None

    def give_up_unsent(self, unsent: Callable[[], Iterable[_Batch]]) -> list[tuple[_Batch, TransactionError]]:
        """The batches that cannot be sent any more, taken out by `unsent()`, each with the error that it fails with.

        None while the transaction can be committed. Under the lock, so that it cannot end in between: the first records
        of the next transaction would be among them.
        """
        with self._lock:
            error = self._state.unsent_error()
            return [] if error is None else [(batch, error) for batch in unsent()]

    def admit(self, queues: Sequence[PartitionQueue], now: float) -> tuple[list[PartitionQueue], float]:
        """Those of `queues` that are part of the transaction, and when (monotonic seconds) to retry the others.

        Adds missing partitions to the transaction in one attempt, for which the sender waits.
        """
        missing = [queue.tp for queue in queues if queue.tp not in self._state.partitions]
        if not missing:
            return list(queues), now + 60.0
        if now >= self._retry_at:
            try:
                add_partitions(self._cluster, self._current(), missing, timeout_s=0)
            except PykafkaError as error:
                self._note(error, now)
            else:
                self._failures, self._retry_at = 0, now
                with self._lock:
                    self._state.added(missing)
                return list(queues), now + 60.0
        return [queue for queue in queues if queue.tp in self._state.partitions], self._retry_at

    def failed(self, error: PykafkaError, *, gap: bool = False) -> None:
        """A record or a request of the transaction failed; with `gap`, its sequence numbers are missing now."""
        with self._lock:
            self._state.needs_new_epoch |= gap
            self._state.failed(transaction_error(error, ApiKey.PRODUCE))

    def _note(self, error: PykafkaError, now: float) -> None:
        if not error.retriable:
            self.failed(error)
            return
        self._failures += 1
        still_ending = isinstance(error, BrokerError) and error.code is ErrorCode.concurrent_transactions
        self._retry_at = now + (_STILL_ENDING_S if still_ending else self._cluster.backoff_s(self._failures))
