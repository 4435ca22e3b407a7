"""DescribeGroups: state and members of groups.

Version notes: 3 — the operations the client is allowed, on request; 6 — an unknown group is an error (KIP-1043).
"""

from __future__ import annotations

from broker.api.authorized_operations import GROUP_OPERATIONS, NOT_ASKED
from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.messages import field

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    operations = GROUP_OPERATIONS if field(request.body, "include_authorized_operations", False) else NOT_ASKED
    return {
        "groups": [await _describe(context, group_id, request.version, operations) for group_id in request.body.groups]
    }


async def _describe(context: ApiContext, group_id: str, version: int, operations: int) -> Fields:
    found = await context.groups.describe(group_id)
    absent = found.error is ErrorCode.none and found.state == "Dead" and version >= 6
    return {
        "error_code": ErrorCode.group_id_not_found if absent else found.error,
        "error_message": f"Group {group_id} not found." if absent else None,
        "group_id": group_id,
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol_name,
        "authorized_operations": operations if found.error is ErrorCode.none and not absent else NOT_ASKED,
        "members": [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.metadata,
                "member_assignment": m.assignment,
            }
            for m in found.members
        ],
    }
