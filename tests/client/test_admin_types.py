"""What the results of `Admin` say."""

from __future__ import annotations

import pytest

from broker.client.admin_types import TransactionDescription
from broker.client.cluster_metadata import Node
from broker.client.produce_request import ProducerIdentity

PRODUCER = ProducerIdentity(7, 3)
LAST = ProducerIdentity(7, 32766)


def described(state: str, producer_id: int, epoch: int) -> TransactionDescription:
    return TransactionDescription("t", Node(1, "localhost", 9092), state, producer_id, epoch, 60_000, 0, ())


@pytest.mark.parametrize(
    ("found", "producer", "version"),
    [
        (described("CompleteAbort", 7, 4), PRODUCER, 0),
        (described("PrepareAbort", 7, 4), PRODUCER, 0),
        (described("CompleteAbort", 7, 4), PRODUCER, 2),  # seen on Kafka 4.3.0
        (described("CompleteAbort", 7, 5), PRODUCER, 2),  # seen on Kafka 4.0.0
        (described("CompleteAbort", 7, 32767), LAST, 0),
        (described("CompleteAbort", 8, 0), LAST, 2),  # seen on Kafka 4.3.0
    ],
)
def test_an_abort_by_the_broker_is_told_by_the_epoch(
    found: TransactionDescription, producer: ProducerIdentity, version: int
) -> None:
    assert found.aborted_by_broker(producer, version)


@pytest.mark.parametrize(
    ("found", "producer", "version"),
    [
        (described("CompleteAbort", 7, 3), PRODUCER, 2),  # by the producer itself
        (described("CompleteAbort", 7, 5), PRODUCER, 1),  # of a later transaction
        (described("CompleteAbort", 7, 6), PRODUCER, 2),
        (described("CompleteAbort", 8, 0), PRODUCER, 2),
        (described("CompleteAbort", 8, 1), LAST, 2),
        (described("CompleteAbort", 8, 0), LAST, 1),
        (described("CompleteCommit", 7, 4), PRODUCER, 2),
        (described("Empty", 7, 4), PRODUCER, 2),
        (described("Ongoing", 7, 4), PRODUCER, 2),
    ],
)
def test_no_other_end_is_taken_for_one(found: TransactionDescription, producer: ProducerIdentity, version: int) -> None:
    assert not found.aborted_by_broker(producer, version)
