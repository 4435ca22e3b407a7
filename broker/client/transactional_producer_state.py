"""The state of a transactional producer, and what it may do next; a pure state machine.

transaction_manager.py holds it and does the requests and the locking. Kafka's `TransactionManager.State`:

    UNINITIALIZED → READY → IN_TRANSACTION → COMMITTING → READY
                                           → ABORTING   → READY
    anything → FATAL

After an error in a transaction it stays IN_TRANSACTION with `error` set: then only abort is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from broker.client.transaction_errors import AbortableTransactionError, FatalTransactionError, TransactionError
from broker.errors import ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition


class Phase(Enum):
    """The phases; in messages their values follow "the transactional producer"."""

    UNINITIALIZED = "has not called init_transactions() yet"
    READY = "is in no transaction: call begin_transaction()"
    IN_TRANSACTION = "is in a transaction"
    COMMITTING = "was told to commit: call commit_transaction() again until it succeeds"
    ABORTING = "is aborting: call abort_transaction() again until it succeeds"
    FATAL = "had a fatal error: close it"


class TransactionState:
    """Each event changes the phase or raises why it is not allowed. Not thread-safe."""

    def __init__(self) -> None:
        self.phase = Phase.UNINITIALIZED
        self.error: TransactionError | None = None
        """Why the transaction can only be aborted, or in phase FATAL why nothing can be done."""
        self.partitions: set[TopicPartition] = set()
        """The partitions that the coordinator has added to the transaction."""
        self.has_offsets = False
        self.needs_new_epoch = False
        """A batch with a sequence number failed, so there is a gap: a new epoch is needed (KIP-360)."""

    @property
    def begun(self) -> bool:
        """Whether the coordinator knows the transaction and has to end it."""
        return bool(self.partitions) or self.has_offsets

    def check_uninitialized(self) -> None:
        """Raise unless `init_transactions` may be called: a second call would fence the producer itself."""
        if self.phase is Phase.READY:
            raise PykafkaError("init_transactions() was called before")
        self._require(Phase.UNINITIALIZED)

    def initialized(self) -> None:
        self._require(Phase.UNINITIALIZED)
        self.phase = Phase.READY

    def begin(self) -> None:
        """Begin a transaction. Raises PykafkaError while one is open."""
        self._require(Phase.READY)
        self.phase = Phase.IN_TRANSACTION

    def check_open(self) -> None:
        """Raise unless a transaction is open and has not failed."""
        self._require(Phase.IN_TRANSACTION)
        if self.error is not None:
            raise self.error

    def added(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions.update(partitions)

    def start_commit(self) -> None:
        """Start to commit: from now on only commit may be called again. Raises the error of a failed transaction."""
        if self.phase is not Phase.COMMITTING:
            self.check_open()
            self.phase = Phase.COMMITTING

    def start_abort(self) -> None:
        """Start to abort: from now on only abort may be called again."""
        if self.phase is not Phase.ABORTING:
            self._require(Phase.IN_TRANSACTION)
            self.phase = Phase.ABORTING

    def ended(self) -> None:
        """The coordinator has stored the commit or abort."""
        self.phase = Phase.READY
        self.error = None
        self.partitions.clear()
        self.has_offsets = False

    def renewed(self) -> None:
        """There is a new epoch: sequence numbers begin at 0 again."""
        self.needs_new_epoch = False

    def failed(self, error: TransactionError) -> None:
        """Something failed. The first error is kept, unless a fatal one follows."""
        if isinstance(error, FatalTransactionError):
            if self.phase is not Phase.FATAL:
                self.phase, self.error = Phase.FATAL, error
        elif self.phase is Phase.COMMITTING:  # the coordinator refused the commit: abort is still possible
            self.phase, self.error = Phase.IN_TRANSACTION, error
        elif self.error is None and self.phase is Phase.IN_TRANSACTION:
            self.error = error

    def unsent_error(self) -> TransactionError | None:
        """The error that unsent records must fail with; None while they may be sent."""
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
