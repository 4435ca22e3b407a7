"""Errors in a transaction, by what can be done about them.

Raised by the transactional methods of the producer and by transaction_requests.py:

    BrokerError
    └── TransactionError
        ├── AbortableTransactionError     call abort_transaction(), then try again in a new transaction
        └── FatalTransactionError  this producer cannot continue: close it
            └── ProducerFenced     a newer producer has the same transactional id

After RequestTimedOut and ConnectionFailed call the same method again.
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
    """A transaction cannot continue; `code` says why."""

    retriable = False


class AbortableTransactionError(TransactionError):
    """The transaction can only be aborted; then the producer may begin another one."""


class FatalTransactionError(TransactionError):
    """The producer can only be closed."""


class ProducerFenced(FatalTransactionError):
    """A producer that was started later has the same `transactional.id` and a newer epoch."""


def transaction_error(error: PykafkaError, *, producing: bool = False) -> TransactionError:
    """`error` as one of the classes above.

    `producing`: the error is from a Produce request. Then an old epoch is abortable, not fatal: the log may have
    forgotten a producer that the coordinator still knows, and only the next InitProducerId tells whether it was fenced
    (KIP-360, KIP-588).
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
