"""Where a transactional producer stands and what it may do next; a pure state machine.

Held by transaction_manager.py, which does the requests and the locking. Kafka's `TransactionManager.State`:

    UNINITIALIZED → READY → IN_TRANSACTION → COMMITTING → READY
                                           → ABORTING   → READY
    anything → FATAL

An error in a transaction leaves it IN_TRANSACTION with `error` set: then all but abort is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from broker.client.transaction_errors import AbortableTransactionError, FatalTransactionError, TransactionError
from broker.errors import ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Phase", "TransactionState"]


class Phase(Enum):
    """What the producer is doing; the values complete "the producer …"."""

    UNINITIALIZED = "has not called init_transactions() yet"
    READY = "is in no transaction: call begin_transaction()"
    IN_TRANSACTION = "is in a transaction"
    COMMITTING = "was told to commit: call commit_transaction() again until it succeeds"
    ABORTING = "is aborting: call abort_transaction() again until it succeeds"
    FATAL = "had a fatal error: close it"


class TransactionState:
    """Events in, refusals out. Not thread-safe."""

    def __init__(self) -> None:
        self.phase = Phase.UNINITIALIZED
        self.error: TransactionError | None = None
        """Why the transaction cannot be committed, or nothing be done at all."""
        self.partitions: set[TopicPartition] = set()
        """What the coordinator knows to be part of the transaction."""
        self.has_offsets = False
        self.needs_new_epoch = False
        """A batch with a sequence number was lost: the next ones would not follow on it (KIP-360)."""

    @property
    def begun(self) -> bool:
        """Whether the coordinator knows of the transaction, so that it has to be ended there."""
        return bool(self.partitions) or self.has_offsets

    def check_uninitialized(self) -> None:
        """Refuse to fence ourselves."""
        if self.phase is Phase.READY:
            raise PykafkaError("init_transactions() was called before")
        self._require(Phase.UNINITIALIZED)

    def initialized(self) -> None:
        """There is a producer id."""
        self._require(Phase.UNINITIALIZED)
        self.phase = Phase.READY

    def begin(self) -> None:
        """A transaction begins. Raises PykafkaError when one is open."""
        self._require(Phase.READY)
        self.phase = Phase.IN_TRANSACTION

    def check_open(self) -> None:
        """Refuse to add to anything but a healthy transaction."""
        self._require(Phase.IN_TRANSACTION)
        if self.error is not None:
            raise self.error

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        """The coordinator took these in."""
        self.partitions.update(partitions)

    def start_commit(self) -> None:
        """From now on only the commit may be tried again. Raises what the transaction failed with."""
        if self.phase is not Phase.COMMITTING:
            self.check_open()
            self.phase = Phase.COMMITTING

    def start_abort(self) -> None:
        """From now on only the abort may be tried again."""
        if self.phase is not Phase.ABORTING:
            self._require(Phase.IN_TRANSACTION)
            self.phase = Phase.ABORTING

    def ended(self) -> None:
        """The coordinator has noted the end."""
        self.phase = Phase.READY
        self.error = None
        self.partitions.clear()
        self.has_offsets = False

    def renewed(self) -> None:
        """There is a new epoch: sequence numbers begin at 0."""
        self.needs_new_epoch = False

    def failed(self, error: TransactionError) -> None:
        """Something could not be done; the first reason stands, but a fatal one goes above."""
        if isinstance(error, FatalTransactionError):
            if self.phase is not Phase.FATAL:
                self.phase, self.error = Phase.FATAL, error
        elif self.phase is Phase.COMMITTING:  # the coordinator refused it, so it can be aborted still
            self.phase, self.error = Phase.IN_TRANSACTION, error
        elif self.error is None and self.phase is Phase.IN_TRANSACTION:
            self.error = error

    def unsent_error(self) -> TransactionError | None:
        """What records that wait to be sent fail with; None while they may go."""
        if self.phase is Phase.ABORTING:
            return self.error or AbortableTransactionError(
                ErrorCode.transaction_abortable, "the transaction was aborted"
            )
        return self.error

    def _require(self, phase: Phase) -> None:
        if self.phase is Phase.FATAL and self.error is not None:
            raise self.error
        if self.phase is not phase:
            raise PykafkaError(f"the transactional producer {self.phase.value}")
