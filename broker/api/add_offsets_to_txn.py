"""AddOffsetsToTxn: a transaction will commit a group's offsets (KIP-98).

The group's partition of __consumer_offsets is added to the transaction, as by AddPartitionsToTxn. The offsets come
later with TxnOffsetCommit, to the group's coordinator.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Request
from broker.api.transaction_requests import Answer, code_for_version, producer_of, when_known
from broker.protocol.permissions import ADD_OFFSETS_GROUP, ADD_OFFSETS_TRANSACTION


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    body = request.body
    for need, name in ((ADD_OFFSETS_TRANSACTION, body.transactional_id), (ADD_OFFSETS_GROUP, body.group_id)):
        if not context.allows(client, need, name):
            return {"error_code": need.code}
    added = context.transactions.add_offsets(
        body.transactional_id, producer_of(body), context.groups.partition_for(body.group_id)
    )
    return when_known(added, lambda code: {"error_code": code_for_version(request.api, request.version, code)})
