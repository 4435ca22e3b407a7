"""InitProducerId: an id for an idempotent producer (KIP-98). Transactional ids are not served yet."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode, PykafkaError
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]

logger = logging.getLogger(__name__)


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    """A fresh producer id in epoch 0; ids are taken from ZooKeeper in blocks."""
    if request.body.transactional_id is not None:
        return _refused(ErrorCode.invalid_request)
    ready = context.producer_ids.take()
    return _answer(ready) if ready is not None else _wait(context)


async def _wait(context: ApiContext) -> Mapping[str, Any]:
    try:
        return _answer(await context.producer_ids.take_from_new_block())
    except PykafkaError as error:
        logger.warning("no producer id can be given: %s", error)
        return _refused(ErrorCode.coordinator_load_in_progress)  # producers ask again


def _answer(producer_id: int) -> Mapping[str, Any]:
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}


def _refused(code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
