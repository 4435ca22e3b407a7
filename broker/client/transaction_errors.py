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

from collections.abc import Mapping
from typing import Final

from broker.errors import BrokerError, ErrorCode, PykafkaError, UnsupportedVersion
from broker.protocol.api_keys import ApiKey

_FENCED: Final = (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)

_ABORTABLE: Final[Mapping[ApiKey, frozenset[ErrorCode]]] = {
    ApiKey.INIT_PRODUCER_ID: frozenset(
        {
            ErrorCode.transactional_id_authorization_failed,
            ErrorCode.cluster_authorization_failed,
            ErrorCode.transaction_abortable,
        }
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: frozenset(
        {
            ErrorCode.unknown_producer_id,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.group_authorization_failed,
            ErrorCode.transaction_abortable,
        }
    ),
    ApiKey.TXN_OFFSET_COMMIT: frozenset(
        {
            ErrorCode.group_authorization_failed,
            ErrorCode.fenced_instance_id,
            ErrorCode.unknown_member_id,
            ErrorCode.illegal_generation,
            ErrorCode.transaction_abortable,
        }
    ),
    ApiKey.END_TXN: frozenset(
        {
            ErrorCode.unknown_producer_id,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.transaction_abortable,
        }
    ),
}
"""What an answer of these APIs leaves to be aborted; any other error is fatal. As in the `TransactionManager` of Kafka
4.3.0, but for INVALID_PRODUCER_ID_MAPPING: that is abortable as in its clients up to 3.9 (KIP-360), because the abort
gets a new producer id."""

_FATAL: Final[Mapping[ApiKey, frozenset[ErrorCode]]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: frozenset(
        {ErrorCode.transactional_id_authorization_failed, ErrorCode.invalid_txn_state}
    ),
    ApiKey.PRODUCE: frozenset(
        {
            ErrorCode.cluster_authorization_failed,
            ErrorCode.transactional_id_authorization_failed,
            ErrorCode.unsupported_version,
        }
    ),
}
"""What is fatal in an answer of these APIs; any other error is abortable."""


class TransactionError(BrokerError):
    """A transaction cannot continue; `code` says why."""

    retriable = False


class AbortableTransactionError(TransactionError):
    """The transaction can only be aborted; then the producer may begin another one."""


class FatalTransactionError(TransactionError):
    """The producer can only be closed."""


class ProducerFenced(FatalTransactionError):
    """A producer that was started later has the same `transactional.id` and a newer epoch."""


def transaction_error(error: PykafkaError, api: ApiKey, *, aborting: bool = False) -> TransactionError:
    """`error`, which ends the attempts at a request of `api`, as one of the classes above.

    `aborting`: the request is to abort, so to abort again does not help. An old epoch is abortable in an answer to
    Produce: the log may have forgotten a producer that the coordinator still knows, and only the next InitProducerId
    tells whether it was fenced (KIP-360, KIP-588).
    """
    if isinstance(error, TransactionError):
        return error
    if not isinstance(error, BrokerError):
        unsupported = isinstance(error, UnsupportedVersion)
        kind = FatalTransactionError if unsupported else AbortableTransactionError
        return kind(ErrorCode.unsupported_version if unsupported else ErrorCode.unknown_server_error, str(error))
    code = error.code
    if code is ErrorCode.producer_fenced or (code in _FENCED and api is not ApiKey.PRODUCE):
        return ProducerFenced(code, f"{error.message}: another producer took over this transactional.id")
    fatal = code not in _ABORTABLE[api] if api in _ABORTABLE else code in _FATAL[api]
    if fatal or (aborting and code is ErrorCode.transaction_abortable):
        return FatalTransactionError(code, error.message)
    return AbortableTransactionError(code, error.message)
