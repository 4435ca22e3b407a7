"""ListGroups: the groups this broker coordinates, from version 4 filtered by state (KIP-518)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode
from broker.protocol.messages import field
from broker.protocol.permissions import LIST_GROUPS_ANY, LIST_GROUPS_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Every group in one of the requested states. All are of the type classic (version 5)."""
    types = field(request.body, "types_filter", ())
    if types and "classic" not in {t.lower() for t in types}:
        return {"error_code": ErrorCode.none, "groups": ()}
    error, groups = await context.groups.list_groups(field(request.body, "states_filter", ()))
    if not context.allows(client, LIST_GROUPS_ANY, asked=False):
        groups = [one for one in groups if context.allows(client, LIST_GROUPS_GROUP, one.group_id, asked=False)]
    return {
        "error_code": error,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": "classic",
            }
            for group in groups
        ],
    }
