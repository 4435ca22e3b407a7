"""Heartbeat: keep a member's session alive, and tell it whether a rebalance has begun."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.protocol.messages import field
from broker.protocol.permissions import HEARTBEAT


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    body = request.body
    if not context.allows(client, HEARTBEAT, body.group_id):
        return {"error_code": HEARTBEAT.code}
    error = await context.groups.heartbeat(
        body.group_id, body.generation_id, body.member_id, field(body, "group_instance_id")
    )
    return {"error_code": error}
