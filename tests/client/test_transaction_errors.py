"""Which errors abort a transaction and which end a producer: the table of Kafka's `TransactionManager`."""

from __future__ import annotations

import pytest

from broker.client.transaction_errors import (
    AbortableTransactionError,
    FatalTransactionError,
    ProducerFenced,
    transaction_error,
)
from broker.errors import BrokerError, ErrorCode, PykafkaError, RequestTimedOut, UnsupportedVersion
from broker.protocol.api_keys import ApiKey

E = ErrorCode
FENCED = {E.producer_fenced, E.invalid_producer_epoch}
FORGOTTEN = E.invalid_producer_id_mapping
"""Fatal in Kafka's client as of 4.0, abortable before and here: the abort gets a new producer id."""

ABORTABLE = {
    ApiKey.INIT_PRODUCER_ID: {
        E.transactional_id_authorization_failed,
        E.cluster_authorization_failed,
        E.transaction_abortable,
    },
    ApiKey.ADD_PARTITIONS_TO_TXN: set(E)
    - FENCED
    - {E.none, E.transactional_id_authorization_failed, E.invalid_txn_state},
    ApiKey.ADD_OFFSETS_TO_TXN: {
        E.unknown_producer_id,
        E.group_authorization_failed,
        E.transaction_abortable,
        FORGOTTEN,
    },
    ApiKey.TXN_OFFSET_COMMIT: {
        E.group_authorization_failed,
        E.fenced_instance_id,
        E.unknown_member_id,
        E.illegal_generation,
        E.transaction_abortable,
    },
    ApiKey.END_TXN: {E.unknown_producer_id, E.transaction_abortable, FORGOTTEN},
    ApiKey.PRODUCE: set(E)
    - {
        E.none,
        E.producer_fenced,
        E.cluster_authorization_failed,
        E.transactional_id_authorization_failed,
        E.unsupported_version,
    },
}
"""Of the errors that are not retriable. Seen with every code of the table in the classes of kafka-clients 4.3.0."""


@pytest.mark.parametrize("api", ABORTABLE, ids=lambda api: str(api.name))
def test_every_error_is_classified_as_by_kafkas_own_client(api: ApiKey) -> None:
    for code in set(E) - {E.none}:
        error = transaction_error(BrokerError(code), api)
        if code in FENCED and not (api is ApiKey.PRODUCE and code is E.invalid_producer_epoch):
            assert type(error) is ProducerFenced
        elif not code.retriable:
            assert type(error) is (AbortableTransactionError if code in ABORTABLE[api] else FatalTransactionError), code
        assert error.code is code


def test_what_cannot_be_aborted_is_not_to_be_aborted_again() -> None:
    refused = BrokerError(E.transaction_abortable)
    assert type(transaction_error(refused, ApiKey.END_TXN)) is AbortableTransactionError
    assert type(transaction_error(refused, ApiKey.END_TXN, aborting=True)) is FatalTransactionError


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RequestTimedOut("late"), AbortableTransactionError), (UnsupportedVersion("no"), FatalTransactionError)],
)
def test_errors_without_a_code_are_told_apart(error: PykafkaError, kind: type[BrokerError]) -> None:
    assert type(transaction_error(error, ApiKey.PRODUCE)) is kind


def test_a_classified_error_stays_what_it_is() -> None:
    fenced = ProducerFenced(E.producer_fenced)
    assert transaction_error(fenced, ApiKey.PRODUCE) is fenced
