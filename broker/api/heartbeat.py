"""Heartbeat: a member says it lives, and learns whether a rebalance has begun."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.protocol.messages import field

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Renew the member's session."""
    body = request.body
    error = await context.groups.heartbeat(
        body.group_id, body.generation_id, body.member_id, field(body, "group_instance_id")
    )
    return {"error_code": error}
