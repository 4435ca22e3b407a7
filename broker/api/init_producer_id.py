"""InitProducerId: give an idempotent producer its id (KIP-98), or start a transactional producer.

A transactional id has a producer id of its own. The producer gets it with the next epoch, which fences its predecessor.
A transaction that the predecessor left open is aborted first.
Version notes: 3 — a producer may send its present id and epoch to go on after an error (KIP-360). 6 (two-phase commit,
KIP-939) is not served.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from broker.api.context import ApiContext, Client, Fields, Request
from broker.api.transaction_requests import code_for_version
from broker.coordinator.transaction_records import NO_EPOCH, NO_PRODUCER_ID
from broker.coordinator.transaction_state import ProducerIdAndEpoch
from broker.errors import ErrorCode, PykafkaError
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import INIT_IDEMPOTENT, INIT_IDEMPOTENT_TOPIC, INIT_TRANSACTION

logger = logging.getLogger(__name__)


def handle(context: ApiContext, request: Request, client: Client) -> Fields | Awaitable[Fields]:
    """A new producer id with epoch 0, or that of the transactional id. New ids come from ZooKeeper in blocks."""
    body = request.body
    claimed = ProducerIdAndEpoch(field(body, "producer_id", NO_PRODUCER_ID), field(body, "producer_epoch", NO_EPOCH))
    if (claimed.producer_id == NO_PRODUCER_ID) is not (claimed.epoch == NO_EPOCH):
        return _refused(ErrorCode.invalid_request)
    if body.transactional_id is not None:
        if not context.allows(client, INIT_TRANSACTION, body.transactional_id):
            return _refused(INIT_TRANSACTION.code)
        return _init_transactional(context, request, None if claimed.epoch == NO_EPOCH else claimed)
    may_write = context.allows(client, INIT_IDEMPOTENT, asked=False)
    if not may_write and not context.authorizer.allows_any(client, INIT_IDEMPOTENT_TOPIC):
        return _refused(INIT_IDEMPOTENT.code)
    ready = context.producer_ids.take()
    return _answer(ready, 0) if ready is not None else _wait(context)


async def _init_transactional(context: ApiContext, request: Request, claimed: ProducerIdAndEpoch | None) -> Fields:
    body = request.body
    try:
        reply = await context.transactions.init_producer_id(
            body.transactional_id, to_ms(body.transaction_timeout), claimed
        )
    except PykafkaError as error:
        return _no_id(error)
    if reply.error is not ErrorCode.none:
        return _refused(code_for_version(request.api, request.version, reply.error))
    return _answer(reply.producer_id, reply.producer_epoch)


async def _wait(context: ApiContext) -> Fields:
    try:
        return _answer(await context.producer_ids.take_from_new_block(), 0)
    except PykafkaError as error:
        return _no_id(error)


def _no_id(error: PykafkaError) -> Fields:
    logger.warning("cannot assign a producer id: %s", error)
    return _refused(ErrorCode.coordinator_load_in_progress)  # producers retry after this error


def _answer(producer_id: int, epoch: int) -> Fields:
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": epoch}


def _refused(code: ErrorCode) -> Fields:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
