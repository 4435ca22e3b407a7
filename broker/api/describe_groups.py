"""DescribeGroups: state and members of groups.

Version notes: 3 — the operations the client is allowed, on request; 6 — an unknown group is an error (KIP-1043).
"""

from __future__ import annotations

from broker.api.context import NOT_ASKED, ApiContext, Client, Fields, Request, outcome
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import DESCRIBE_GROUPS_GROUP
from broker.security.acl_types import AclResourceType


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    return {"groups": [await _describe(context, request, client, group_id) for group_id in request.body.groups]}


async def _describe(context: ApiContext, request: Request, client: Client, group_id: str) -> Fields:
    if not context.allows(client, DESCRIBE_GROUPS_GROUP, group_id):
        return {"group_id": group_id, **outcome(context.refusal(client, DESCRIBE_GROUPS_GROUP, group_id))}
    found = await context.groups.describe(group_id)
    absent = found.error is ErrorCode.none and found.state == "Dead" and request.version >= 6
    operations = NOT_ASKED
    if found.error is ErrorCode.none and not absent and field(request.body, "include_authorized_operations", False):
        operations = context.authorized_operations(client, request.api, AclResourceType.GROUP, group_id)
    return {
        "error_code": ErrorCode.group_id_not_found if absent else found.error,
        "error_message": found.message if absent else None,
        "group_id": group_id,
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol_name,
        "authorized_operations": operations,
        "members": [
            {
                "member_id": m.member_id,
                "group_instance_id": m.group_instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.subscription,
                "member_assignment": m.assignment,
            }
            for m in found.members
        ],
    }
