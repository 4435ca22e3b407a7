"""EndTxn: commit or abort a transaction (KIP-98).

Behaviour: the answer comes when the decision is stored. From then on it survives any crash. A client may repeat the
request. It needs the transactional id with its producer id and epoch.
Version notes: 5 (the second part of KIP-890) is not served.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Request
from broker.api.transaction_requests import Answer, code_for_version, encoded_once, producer_of, when_known
from broker.errors import ErrorCode
from broker.protocol.permissions import END_TRANSACTION


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    body = request.body
    if not context.allows(client, END_TRANSACTION, body.transactional_id):
        return {"error_code": END_TRANSACTION.code}
    ended = context.transactions.end(body.transactional_id, producer_of(body), commit=body.committed)

    def answer(code: ErrorCode) -> Answer:
        if code is ErrorCode.none:
            return encoded_once(request, None, lambda: {"error_code": code})
        return {"error_code": code_for_version(request.api, request.version, code)}

    return when_known(ended, answer)
