"""InitProducerId: an id for an idempotent producer (KIP-98). Transactional ids are not served yet."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.errors import ErrorCode
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:
    """A fresh producer id in epoch 0; ids are taken from ZooKeeper in blocks."""
    if request.body.transactional_id is not None:
        return {"error_code": ErrorCode.invalid_request, "producer_id": -1, "producer_epoch": -1}
    ready = context.producer_ids.take()
    return _answer(ready) if ready is not None else _wait(context)


async def _wait(context: ApiContext) -> Mapping[str, Any]:
    return _answer(await context.producer_ids.take_from_new_block())


def _answer(producer_id: int) -> Mapping[str, Any]:
    return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}
