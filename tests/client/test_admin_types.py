"""What the results of `Admin` say."""

from __future__ import annotations

import pytest

from broker.client.admin_types import TransactionDescription
from broker.client.cluster_metadata import Node
from broker.client.produce_request import ProducerIdentity

PRODUCER = ProducerIdentity(7, 3)


def described(state: str, producer_id: int, epoch: int) -> TransactionDescription:
    return TransactionDescription("t", Node(1, "localhost", 9092), state, producer_id, epoch, 60_000, 0, ())


@pytest.mark.parametrize(
    ("found", "version"),
    [
        (described("CompleteAbort", 7, 4), 0),
        (described("PrepareAbort", 7, 4), 0),
        (described("CompleteAbort", 7, 4), 2),  # seen on Kafka 4.3.0
        (described("CompleteAbort", 7, 5), 2),  # seen on Kafka 4.0.0
    ],
)
def test_an_abort_by_the_broker_is_told_by_the_epoch(found: TransactionDescription, version: int) -> None:
    assert found.aborted_by_broker(PRODUCER, version)


@pytest.mark.parametrize(
    ("found", "version"),
    [
        (described("CompleteAbort", 7, 3), 2),  # by the producer itself
        (described("CompleteAbort", 7, 5), 1),  # of a later transaction
        (described("CompleteAbort", 7, 6), 2),
        (described("CompleteAbort", 8, 4), 2),
        (described("CompleteCommit", 7, 4), 2),
        (described("Empty", 7, 4), 2),
        (described("Ongoing", 7, 4), 2),
    ],
)
def test_no_other_end_is_taken_for_one(found: TransactionDescription, version: int) -> None:
    assert not found.aborted_by_broker(PRODUCER, version)
