"""LeaveGroup: remove one member, or from version 3 several, also by static instance id."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.group_messages import LeavingMember
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import LEAVE_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Remove the members from the group. Before version 3 the only member's error is that of the answer."""
    body = request.body
    if not context.allows(client, LEAVE_GROUP, body.group_id):
        return {"error_code": LEAVE_GROUP.code, "members": ()}
    asked = field(body, "members")
    if asked is None:
        reply = await context.groups.leave(body.group_id, [LeavingMember(body.member_id)])
        return {"error_code": reply.error if reply.error is not ErrorCode.none else reply.members[0][1]}
    reply = await context.groups.leave(
        body.group_id, [LeavingMember(m.member_id, m.group_instance_id, field(m, "reason")) for m in asked]
    )
    return {
        "error_code": reply.error,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "error_code": error}
            for m, error in reply.members
        ],
    }
