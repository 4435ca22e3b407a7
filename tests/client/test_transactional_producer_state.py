"""What a transactional producer may do when."""

from __future__ import annotations

import pytest

from broker.client.transaction_errors import (
    AbortableTransactionError,
    ProducerFenced,
)
from broker.client.transactional_producer_state import Phase, TransactionState
from broker.errors import ErrorCode, PykafkaError
from broker.protocol.topic_partition import TopicPartition

TP = TopicPartition("t", 0)
FENCED = ProducerFenced(ErrorCode.producer_fenced, "gone")
BROKEN = AbortableTransactionError(ErrorCode.message_too_large, "too large")


@pytest.fixture
def state() -> TransactionState:
    """In a transaction."""
    made = TransactionState()
    made.initialized()
    made.begin()
    return made


def test_nothing_goes_before_it_is_initialized() -> None:
    state = TransactionState()
    for act in (state.begin, state.check_open, state.start_commit, state.start_abort):
        with pytest.raises(PykafkaError, match=r"has not called init_transactions\(\) yet"):
            act()


def test_a_transaction_begins_once_and_ends_before_the_next(state: TransactionState) -> None:
    with pytest.raises(PykafkaError, match="is in a transaction"):
        state.begin()
    state.added([TP])
    assert state.begun
    state.start_commit()
    state.start_commit()
    with pytest.raises(PykafkaError, match="was told to commit"):
        state.start_abort()
    state.ended()
    assert (state.phase, state.begun) == (Phase.READY, False)
    with pytest.raises(PykafkaError, match=r"call begin_transaction\(\)"):
        state.check_open()
    state.begin()


def test_what_failed_can_only_be_aborted(state: TransactionState) -> None:
    state.failed(BROKEN)
    state.failed(AbortableTransactionError(ErrorCode.unknown_server_error, "later"))
    for act in (state.check_open, state.start_commit):
        with pytest.raises(AbortableTransactionError, match="too large"):
            act()
    assert state.unsent_error() is BROKEN
    state.start_abort()
    state.ended()
    state.begin()
    assert state.unsent_error() is None
    state.check_open()


def test_a_refused_commit_can_be_aborted(state: TransactionState) -> None:
    state.start_commit()
    state.failed(BROKEN)
    state.start_abort()
    assert state.unsent_error() is BROKEN
    state.ended()
    assert state.unsent_error() is None


def test_an_abort_dooms_what_was_not_sent(state: TransactionState) -> None:
    assert state.unsent_error() is None
    state.start_abort()
    doomed = state.unsent_error()
    assert doomed is not None
    assert "was aborted" in str(doomed)


def test_after_a_fatal_error_nothing_goes(state: TransactionState) -> None:
    state.failed(BROKEN)
    state.failed(FENCED)
    for act in (state.begin, state.check_open, state.start_commit, state.start_abort, state.initialized):
        with pytest.raises(ProducerFenced):
            act()
    assert state.unsent_error() is FENCED
