"""DeleteGroups: delete empty groups and their offsets (KIP-229)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.protocol.permissions import DELETE_GROUPS_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    names = request.body.groups_names
    allowed = [name for name in dict.fromkeys(names) if context.allows(client, DELETE_GROUPS_GROUP, name)]
    refused = dict.fromkeys(set(names) - set(allowed), DELETE_GROUPS_GROUP.code)
    results = {**refused, **await context.groups.delete_groups(allowed)}
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}
