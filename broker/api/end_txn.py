"""EndTxn: commit or abort a transaction (KIP-98).

Behaviour: answered when the decision is stored; from then on it stands, whoever stops. Anybody who knows the
transactional id with its producer id and epoch may send it, and may send it again.
Version notes: 5, of KIP-890's second half, is not served.
"""

from __future__ import annotations

from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Request
from broker.api.transaction_requests import Answer, code_for_version, encoded_once, producer_of, when_known
from broker.errors import ErrorCode

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Decide the transaction."""
    body = request.body
    ended = context.transactions.end(body.transactional_id, producer_of(body), commit=body.committed)

    def answer(code: ErrorCode) -> Answer:
        if code is ErrorCode.none:
            return encoded_once(request, None, lambda: {"error_code": code})
        return {"error_code": code_for_version(request.api, request.version, code)}

    return when_known(ended, answer)
