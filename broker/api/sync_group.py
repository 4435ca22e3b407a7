"""SyncGroup: the leader sends the assignments of all members, and each member gets its own.

Version notes: from 5 a member must send its protocol type and name (KIP-559).
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.group_messages import SyncRequest
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import SYNC_GROUP

_FIRST_WITH_PROTOCOL = 5


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    body = request.body
    if not context.allows(client, SYNC_GROUP, body.group_id):
        return {"error_code": SYNC_GROUP.code, "assignment": b""}
    if request.version >= _FIRST_WITH_PROTOCOL and None in (body.protocol_type, body.protocol_name):
        return {"error_code": ErrorCode.inconsistent_group_protocol, "assignment": b""}
    reply = await context.groups.sync(
        SyncRequest(
            group_id=body.group_id,
            generation_id=body.generation_id,
            member_id=body.member_id,
            assignments={a.member_id: a.assignment for a in body.assignments},
            group_instance_id=field(body, "group_instance_id"),
            protocol_type=field(body, "protocol_type"),
            protocol_name=field(body, "protocol_name"),
        )
    )
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }
