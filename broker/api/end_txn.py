"""EndTxn: commit or abort a transaction (KIP-98).

Behaviour: answered when the decision is stored; from then on it stands, whoever stops. Anybody who knows the
transactional id with its producer id and epoch may send it, and may send it again.
Version notes: 5 — the client is of KIP-890's second half and is told who it is from now on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.api.transaction_requests import Answer, code_for_version, encoded_once, later, producer_of
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]

BUMPS_EPOCH = 5


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    """Decide the transaction."""
    body, producer = request.body, producer_of(request.body)
    if request.version >= BUMPS_EPOCH:
        return _end_and_bump(context, request, producer)
    ended = context.transactions.end(body.transactional_id, producer, commit=body.committed)

    def answer(code: ErrorCode) -> Answer:
        if code is ErrorCode.none:
            return encoded_once(request, None, lambda: {"error_code": code})
        return {"error_code": code_for_version(request.api, request.version, code)}

    return later(ended, answer)


async def _end_and_bump(context: ApiContext, request: Request, producer: ProducerIdAndEpoch) -> Mapping[str, Any]:
    body = request.body
    reply = await context.transactions.end_and_bump(body.transactional_id, producer, commit=body.committed)
    return {
        "error_code": reply.error,
        "producer_id": reply.producer_id,
        "producer_epoch": reply.producer_epoch,
    }
