"""EndTxn: commit or abort a transaction (KIP-98).

Behaviour: the answer comes when the decision is stored. From then on it survives any crash. A client may repeat the
request. It needs the transactional id with its producer id and epoch.
Version notes: 5 is of transactions of version 2 (KIP-890): the answer has the producer id and epoch of the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.transaction_requests import Answer, code_for_version, encoded_once, producer_of, when_known
from broker.errors import ErrorCode, PykafkaError
from broker.protocol.permissions import END_TRANSACTION

logger = logging.getLogger(__name__)

_FIRST_THAT_BUMPS = 5


def handle(context: ApiContext, request: Request, client: Client) -> Answer | Awaitable[Answer]:
    body = request.body
    if not context.allows(client, END_TRANSACTION, body.transactional_id):
        return {"error_code": END_TRANSACTION.code}
    if request.version >= _FIRST_THAT_BUMPS:
        return _end_and_bump(context, request)
    ended = context.transactions.end(body.transactional_id, producer_of(body), commit=body.committed)

    def answer(code: ErrorCode) -> Answer:
        if code is ErrorCode.none:
            return encoded_once(request, None, lambda: {"error_code": code})
        return {"error_code": code_for_version(request.api, request.version, code)}

    return when_known(ended, answer)


async def _end_and_bump(context: ApiContext, request: Request) -> Fields:
    body = request.body
    try:
        ended = await context.transactions.end_and_bump(body.transactional_id, producer_of(body), commit=body.committed)
    except PykafkaError as error:
        logger.warning("cannot assign a producer id: %s", error)
        return {"error_code": ErrorCode.coordinator_load_in_progress}  # producers retry after this error
    code = code_for_version(request.api, request.version, ended.error)
    return {"error_code": code, "producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
