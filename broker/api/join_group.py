"""JoinGroup: join the next generation of a group. The answer comes when all members have joined.

Version notes: 1 — a rebalance time-out; 4 — a new dynamic member first gets an id (KIP-394); 5 — static members; 8 — a
reason (KIP-800); 9 — a static leader that comes back may skip the assignment (KIP-814).
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.coordinator.group_messages import JoinRequest
from broker.protocol.messages import field, to_ms
from broker.protocol.permissions import JOIN_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    body = request.body
    if not context.allows(client, JOIN_GROUP, body.group_id):
        return {"error_code": JOIN_GROUP.code, "protocol_name": None if request.version >= 7 else ""}
    reply = await context.groups.join(
        JoinRequest(
            group_id=body.group_id,
            member_id=body.member_id,
            client_id=request.client_id or "",
            client_host=f"/{client.host}",
            protocol_type=body.protocol_type,
            protocols=tuple((p.name, p.metadata) for p in body.protocols),
            session_timeout_ms=to_ms(body.session_timeout),
            rebalance_timeout_ms=to_ms(field(body, "rebalance_timeout", -1)),
            group_instance_id=field(body, "group_instance_id"),
            require_known_member_id=request.version >= 4,
            can_skip_assignment=request.version >= 9,
            reason=field(body, "reason"),
        )
    )
    return {
        "error_code": reply.error,
        "generation_id": reply.generation_id,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name if request.version >= 7 else reply.protocol_name or "",
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": m.member_id, "group_instance_id": m.group_instance_id, "metadata": m.metadata}
            for m in reply.members
        ],
    }
