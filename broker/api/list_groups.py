"""ListGroups: the groups this broker coordinates, filtered by state (version 4, KIP-518) and type (5, KIP-848)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.protocol.messages import field
from broker.protocol.permissions import LIST_GROUPS_ANY, LIST_GROUPS_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Every group in one of the requested states and of one of the requested types."""
    types = {one.lower() for one in field(request.body, "types_filter", ())}
    error, groups = await context.groups.list_groups(field(request.body, "states_filter", ()))
    groups = [one for one in groups if not types or one.kind in types]
    if not context.allows(client, LIST_GROUPS_ANY, asked=False):
        groups = [one for one in groups if context.allows(client, LIST_GROUPS_GROUP, one.group_id, asked=False)]
    return {
        "error_code": error,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type or "",
                "group_state": group.state_name,
                "group_type": group.kind.value,
            }
            for group in groups
        ],
    }
