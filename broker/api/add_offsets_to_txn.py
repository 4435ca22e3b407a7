"""AddOffsetsToTxn: a transaction is going to commit a group's offsets too (KIP-98).

The group's partition of __consumer_offsets takes part as if it had been named in AddPartitionsToTxn; the
offsets themselves come with TxnOffsetCommit, to the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.api.context import ApiContext
from broker.api.transaction_requests import Answer, code_for_version, later, producer_of
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Add the partition that keeps the group."""
    body = request.body
    added = context.transactions.add_offsets(
        body.transactional_id, producer_of(body), context.groups.partition_for(body.group_id)
    )
    return later(added, lambda code: {"error_code": code_for_version(request.api, request.version, code)})
