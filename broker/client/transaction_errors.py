"""What goes wrong in a transaction, by what can be done about it.

Raised by the transactional methods of the producer and by transactions.py. Whoever catches one asks which class it is:

    BrokerError
    └── TransactionError
        ├── AbortableTransactionError     abort_transaction(), then the same may be tried again in a new transaction
        └── FatalTransactionError  this producer is of no use any more: close it
            └── ProducerFenced     because another one took its transactional id over

What is merely slow (RequestTimedOut, ConnectionFailed) is neither: call the same method again.
"""

from __future__ import annotations

from typing import Final

from broker.errors import BrokerError, ErrorCode, PykafkaError

__all__ = [
    "AbortableTransactionError",
    "FatalTransactionError",
    "ProducerFenced",
    "TransactionError",
    "transaction_error",
]

_FENCED: Final = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
_FATAL: Final = (
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.invalid_txn_state,
    ErrorCode.invalid_transaction_timeout,
    ErrorCode.unsupported_version,
    ErrorCode.unsupported_for_message_format,
)


class TransactionError(BrokerError):
    """A transaction cannot go on; `code` says why."""

    retriable = False


class AbortableTransactionError(TransactionError):
    """The transaction can only be aborted; afterwards the producer may begin another."""


class FatalTransactionError(TransactionError):
    """Nothing more can be done with this producer."""


class ProducerFenced(FatalTransactionError):
    """A producer that was started later has the same `transactional.id`, and this one's epoch is over."""


def transaction_error(error: PykafkaError, *, producing: bool = False) -> TransactionError:
    """`error` as one of the classes above.

    With `producing` an old epoch may be forgiven: the log can have forgotten a producer the coordinator still knows,
    and only the next InitProducerId tells whether it was fenced (KIP-360, KIP-588).
    """
    if isinstance(error, TransactionError):
        return error
    if not isinstance(error, BrokerError):
        return AbortableTransactionError(ErrorCode.unknown_server_error, str(error))
    if error.code is ErrorCode.producer_fenced or (error.code in _FENCED and not producing):
        return ProducerFenced(error.code, f"{error.message}: another producer took over this transactional.id")
    if error.code in _FATAL:
        return FatalTransactionError(error.code, error.message)
    return AbortableTransactionError(error.code, error.message)
