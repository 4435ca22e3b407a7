"""DescribeTransactions: state, producer and partitions of transactional ids (KIP-664)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.transaction_records import TransactionMetadata
from broker.errors import ErrorCode
from broker.protocol.permissions import DESCRIBE_TRANSACTION, DESCRIBE_TRANSACTION_TOPIC
from broker.protocol.topic_partition import topic_rows


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Describe each id. An unknown one gets TRANSACTIONAL_ID_NOT_FOUND."""
    names = request.body.transactional_ids
    return {"transaction_states": [_describe(context, client, name) for name in names]}


def _describe(context: ApiContext, client: Client, transactional_id: str) -> Fields:
    found: TransactionMetadata | ErrorCode = DESCRIBE_TRANSACTION.code
    if context.allows(client, DESCRIBE_TRANSACTION, transactional_id):
        found = context.transactions.describe(transactional_id)
    if isinstance(found, ErrorCode):
        return {
            "error_code": found,
            "transactional_id": transactional_id,
            "transaction_start_time": -1,
            "producer_id": 0,
            "producer_epoch": 0,
        }
    rows = (
        (tp, tp.partition)
        for tp in sorted(found.partitions)
        if context.allows(client, DESCRIBE_TRANSACTION_TOPIC, tp.topic, asked=False)
    )
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transactional_id,
        "transaction_state": found.state.title,
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": topic_rows(rows, topic="topic"),
    }
