"""The identity of an idempotent producer, and how to get one (KIP-98: InitProducerId).

Called by the sender and the partition writer. With an identity the broker numbers a producer's batches per
partition: one sent twice is written once, and none is written before its predecessor.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.client.cluster import Cluster
from broker.errors import raise_for
from broker.protocol.api_keys import ApiKey

__all__ = ["MAX_SEQUENCE", "ProducerIdentity", "init_producer_id"]

MAX_SEQUENCE = 0x7FFFFFFF
"""Sequence numbers wrap to 0 after this one."""


class ProducerIdentity(NamedTuple):
    """What the broker knows an idempotent producer by."""

    producer_id: int
    epoch: int


def init_producer_id(cluster: Cluster) -> ProducerIdentity:
    """A new identity, from any broker; one attempt. Raises BrokerError, and what connections raise."""
    body = {"transactional_id": None, "transaction_timeout": -1, "producer_id": -1, "producer_epoch": -1}
    answer = cluster.any_connection().request(ApiKey.INIT_PRODUCER_ID, body)
    raise_for(answer.error_code, "asking for a producer id (enable.idempotence=true)")
    return ProducerIdentity(int(answer.producer_id), int(answer.producer_epoch))
