"""DescribeTransactions: state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.transaction_coordinator import TransactionDescription
from broker.protocol.topic_partition import TopicPartition, by_topic

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Describe each id. An unknown one gets TRANSACTIONAL_ID_NOT_FOUND."""
    described = (context.transactions.describe(name) for name in request.body.transactional_ids)
    return {"transaction_states": [_describe(found) for found in described]}


def _describe(found: TransactionDescription) -> Fields:
    known = found.metadata
    if known is None:
        return {
            "error_code": found.error,
            "transactional_id": found.transactional_id,
            "transaction_start_time": -1,
            "producer_id": 0,
            "producer_epoch": 0,
        }
    return {
        "error_code": found.error,
        "transactional_id": found.transactional_id,
        "transaction_state": known.state.title,
        "transaction_timeout": known.timeout_ms,
        "transaction_start_time": known.start_ms,
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "topics": _topics(known.partitions),
    }


def _topics(partitions: Iterable[TopicPartition]) -> list[Fields]:
    topics = by_topic((tp, tp.partition) for tp in sorted(partitions))
    return [{"topic": topic, "partitions": indexes} for topic, indexes in topics.items()]
