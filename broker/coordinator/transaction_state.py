"""One transactional id as a pure state machine: requests and the time in, the next record out.

An event returns an error code, or sets the next state as `pending`. The runtime (`transaction_shard`) stores that and
calls `stored`, which makes it `current`. So memory is never ahead of the log. The rules are those of Kafka's
`TransactionCoordinator` and `TransactionMetadata` (KIP-98, KIP-360, KIP-890).

    Empty ──add──▶ Ongoing ──end──▶ PrepareCommit/PrepareAbort ──markers written──▶ CompleteCommit/CompleteAbort
      ▲               ▲                                                                     │
      └──init─────────┴──add────────────────────────────────────────────────────────────────┘

A producer that initialises again fences its predecessor: the epoch is bumped and an open transaction is aborted, as
after a time-out. (Kafka has the state PrepareEpochFence between these two steps, which are one here.)

In version 2 of transactions (KIP-890) every end bumps the epoch: the decision and its markers have the epoch that the
next transaction will have. So no late request and no late marker can belong to two transactions. A client may also
abort when it does not know whether it has written anything.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from broker.coordinator.transaction_records import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from broker.errors import ErrorCode
from broker.protocol.topic_partition import TopicPartition
from broker.records.control import BUMPS_EPOCH

MAX_EPOCH = 32767

_PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
_COMPLETE = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_AT_REST = (TransactionState.EMPTY, *_COMPLETE)


class ProducerIdAndEpoch(NamedTuple):
    """A producer's identity."""

    producer_id: int
    epoch: int


class Transaction:
    """One transactional id. An event returns an error code. If it sets `pending`, the runtime stores that."""

    __slots__ = ("current", "pending", "transactional_id")

    def __init__(self, transactional_id: str, current: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.current = current
        self.pending: TransactionMetadata | None = None

    @classmethod
    def new(cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
        """An id that is used for the first time. Nothing of it is stored yet, and its producer has no epoch."""
        empty = TransactionMetadata(producer_id, NO_EPOCH, timeout_ms, TransactionState.EMPTY, now_ms)
        return cls(transactional_id, empty)

    @property
    def is_prepared(self) -> bool:
        """Whether the decision is stored and the markers must be written."""
        return self.current.state in _PREPARED

    @property
    def is_epoch_exhausted(self) -> bool:
        """Whether the next producer needs a new producer id. One epoch is reserved for fencing."""
        return self.current.producer_epoch >= MAX_EPOCH - 1

    def stored(self, code: ErrorCode) -> None:
        """The pending state is in the log or, after an error, is not and never will be.

        When this broker was deposed it may be, but then it is the next coordinator's (which reads the log).
        """
        if code is ErrorCode.none and self.pending is not None:
            self.current = self.pending
        self.pending = None

    # --- InitProducerId

    def init_producer_id(
        self, timeout_ms: int, claimed: ProducerIdAndEpoch | None, new_producer_id: int | None, now_ms: int
    ) -> ErrorCode:
        """A producer begins or, with `claimed`, asks for a new epoch.

        `new_producer_id` is needed if the epochs are exhausted. An open transaction must be aborted first, by
        `abort_for_successor`.
        """
        current = self.current
        if self.pending is not None or self.is_prepared:
            return ErrorCode.concurrent_transactions
        if claimed is not None and not self._is_or_was(claimed):
            return ErrorCode.producer_fenced
        if current.state is TransactionState.ONGOING:
            return ErrorCode.concurrent_transactions
        empty = current._replace(
            state=TransactionState.EMPTY,
            timeout_ms=timeout_ms,
            last_update_ms=now_ms,
            start_ms=-1,
            partitions=frozenset(),
        )
        if claimed is not None and current.producer_epoch not in (NO_EPOCH, claimed.epoch):
            # The producer repeats its request because it did not get the answer: do not bump the epoch again.
            self.pending = empty
            return ErrorCode.none
        last_epoch = NO_EPOCH if claimed is None else current.producer_epoch
        if self.is_epoch_exhausted:
            assert new_producer_id is not None
            self.pending = empty._replace(
                producer_id=new_producer_id,
                producer_epoch=0,
                last_producer_epoch=last_epoch,
                previous_producer_id=current.producer_id,
            )
        else:
            self.pending = empty._replace(producer_epoch=current.producer_epoch + 1, last_producer_epoch=last_epoch)
        return ErrorCode.none

    def abort_for_successor(self, claimed: ProducerIdAndEpoch | None, now_ms: int) -> bool:
        """Abort an open transaction for a producer that begins. False if there is none, or `claimed` is fenced."""
        if self.pending is not None or self.current.state is not TransactionState.ONGOING:
            return False
        if claimed is not None and not self._is_or_was(claimed):
            return False
        self._fence(now_ms)
        return True

    def _is_or_was(self, claimed: ProducerIdAndEpoch) -> bool:
        """Whether this is the current producer, or the same one before its last bump."""
        current = self.current
        if current.producer_epoch == NO_EPOCH:
            return True  # a new id, or one that had expired
        if claimed.producer_id == current.producer_id:
            return claimed.epoch in (current.producer_epoch, current.last_producer_epoch)
        return (
            claimed.producer_id == current.previous_producer_id
            and claimed.epoch == current.last_producer_epoch >= MAX_EPOCH - 1
        )

    # --- AddPartitionsToTxn

    def add_partitions(
        self, producer: ProducerIdAndEpoch, partitions: AbstractSet[TopicPartition], now_ms: int, version: int = 0
    ) -> ErrorCode:
        """Add partitions that the transaction will write to. The first ones begin it, in the client's `version`."""
        current = self.current
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        if (code := self._check(producer)) is not ErrorCode.none:
            return code
        if current.state is TransactionState.ONGOING:
            if not partitions <= current.partitions:
                self.pending = current._replace(partitions=current.partitions | partitions, last_update_ms=now_ms)
            return ErrorCode.none
        self.pending = current._replace(
            state=TransactionState.ONGOING,
            partitions=frozenset(partitions),
            start_ms=now_ms,
            last_update_ms=now_ms,
            client_version=version,
        )
        return ErrorCode.none

    def verify(self, producer: ProducerIdAndEpoch, partition: TopicPartition) -> ErrorCode:
        """Whether `producer` may write to a partition now (KIP-890), else TRANSACTION_ABORTABLE."""
        if (code := self._check(producer)) is not ErrorCode.none:
            return code
        current = self.current
        if current.state is TransactionState.ONGOING and partition in current.partitions:
            return ErrorCode.none
        return ErrorCode.transaction_abortable

    def _check(self, producer: ProducerIdAndEpoch) -> ErrorCode:
        current = self.current
        if self.is_prepared and producer == self.next_producer:
            return ErrorCode.concurrent_transactions
        if producer.producer_id != current.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if producer.epoch != current.producer_epoch:
            return ErrorCode.producer_fenced
        return ErrorCode.none

    # --- EndTxn

    def end(self, producer: ProducerIdAndEpoch, *, commit: bool, now_ms: int) -> ErrorCode:
        """Commit or abort. A repeated request changes nothing."""
        current = self.current
        if producer.producer_id != current.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if producer.epoch != current.producer_epoch:
            return ErrorCode.producer_fenced
        if self.pending is not None:
            return ErrorCode.concurrent_transactions
        if current.state is TransactionState.ONGOING:
            self.pending = current._replace(state=_DECIDED[commit][0], last_update_ms=now_ms, client_version=0)
            return ErrorCode.none
        return self._repeated(commit)

    def end_and_bump(
        self, producer: ProducerIdAndEpoch, *, commit: bool, new_producer_id: int | None, now_ms: int
    ) -> ErrorCode:
        """Commit or abort as version 2 does: the decision has the next epoch, which `next_producer` then tells.

        The present epoch asks for something new: an abort is always possible, a commit needs an open transaction. The
        epoch before repeats a request, and changes nothing. `new_producer_id` is needed if the epochs are exhausted.
        """
        current = self.current
        if self.pending is not None or (self.is_prepared and producer == self.next_producer):
            return ErrorCode.concurrent_transactions
        if current.state in (*_PREPARED, *_COMPLETE) and self._was_bumped(producer):
            return self._repeated(commit)
        if producer.producer_id != current.producer_id:
            return ErrorCode.invalid_producer_id_mapping
        if producer.epoch != current.producer_epoch or producer.epoch == MAX_EPOCH:
            return ErrorCode.producer_fenced
        if commit and current.state is not TransactionState.ONGOING:
            return ErrorCode.invalid_txn_state
        self.pending = current._replace(
            state=_DECIDED[commit][0],
            producer_epoch=producer.epoch + 1,
            last_producer_epoch=producer.epoch,
            next_producer_id=NO_PRODUCER_ID,
            last_update_ms=now_ms,
            start_ms=current.start_ms if current.state is TransactionState.ONGOING else now_ms,
            client_version=BUMPS_EPOCH,
        )
        if self.is_epoch_exhausted:
            assert new_producer_id is not None
            self.pending = self.pending._replace(next_producer_id=new_producer_id)
        return ErrorCode.none

    def _was_bumped(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether the producer has the epoch before that of a decision of version 2. In the last epoch, which only
        fences, nobody can go on."""
        current = self.current
        if current.client_version < BUMPS_EPOCH:
            return False
        if current.producer_epoch == 0:
            return producer == (current.previous_producer_id, MAX_EPOCH - 1)
        is_usable = current.producer_epoch < MAX_EPOCH or current.next_producer_id != NO_PRODUCER_ID
        return producer == (current.producer_id, current.producer_epoch - 1) and is_usable

    @property
    def next_producer(self) -> ProducerIdAndEpoch:
        """Who writes the next transaction, once a decision of version 2 is stored."""
        current = self.current
        if current.next_producer_id != NO_PRODUCER_ID:
            return ProducerIdAndEpoch(current.next_producer_id, 0)
        return ProducerIdAndEpoch(current.producer_id, current.producer_epoch)

    def _repeated(self, commit: bool) -> ErrorCode:
        """The answer after a decision was made already."""
        state = self.current.state
        prepared, complete = _DECIDED[commit]
        if state is prepared:
            return ErrorCode.concurrent_transactions  # the client retries: the markers are being written
        return ErrorCode.none if state is complete else ErrorCode.invalid_txn_state

    # --- without a client

    def time_out(self, now_ms: int) -> bool:
        """Abort a transaction that is open for longer than its time-out, and fence the producer. False if there is
        none."""
        current = self.current
        if (
            current.state is not TransactionState.ONGOING
            or self.pending is not None
            or now_ms <= current.start_ms + current.timeout_ms
        ):
            return False
        self._fence(now_ms)
        return True

    def complete(self, now_ms: int) -> None:
        """All markers are written: `pending` is the completed state."""
        current = self.current
        commit = current.state is TransactionState.PREPARE_COMMIT
        done = current._replace(state=_DECIDED[commit][1], partitions=frozenset(), last_update_ms=now_ms)
        if current.next_producer_id != NO_PRODUCER_ID:
            done = done._replace(
                producer_id=current.next_producer_id,
                producer_epoch=0,
                previous_producer_id=current.producer_id,
                next_producer_id=NO_PRODUCER_ID,
            )
        self.pending = done

    def expire(self, now_ms: int, expiration_ms: int) -> bool:
        """Whether the id has not been used for `expiration_ms`, so that it should be forgotten."""
        current = self.current
        if self.pending is not None or current.state not in _AT_REST or current.last_update_ms > now_ms - expiration_ms:
            return False
        self.pending = current._replace(state=TransactionState.DEAD, last_update_ms=now_ms)
        return True

    def _fence(self, now_ms: int) -> None:
        """Abort with the next epoch, which no client has. In version 2 the client may ask for it after a time-out."""
        epoch = self.current.producer_epoch
        may_go_on = self.current.client_version >= BUMPS_EPOCH and not self.is_epoch_exhausted
        self.pending = self.current._replace(
            state=TransactionState.PREPARE_ABORT,
            last_update_ms=now_ms,
            producer_epoch=min(epoch + 1, MAX_EPOCH),
            last_producer_epoch=epoch if may_go_on else NO_EPOCH,
        )


_DECIDED = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}
