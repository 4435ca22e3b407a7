"""DeleteGroups: delete empty groups and their offsets (KIP-229), also share groups with their states (KIP-932)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import DELETE_GROUPS_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    names = request.body.groups_names
    allowed = [name for name in dict.fromkeys(names) if context.allows(client, DELETE_GROUPS_GROUP, name)]
    refused = dict.fromkeys(set(names) - set(allowed), DELETE_GROUPS_GROUP.code)
    for name in tuple(allowed):
        try:
            context.groups.share_group(name)
        except BrokerError:
            continue  # it is of another kind, or its coordinator is another broker
        code = await _delete_states(context, name)
        if code is not ErrorCode.none:
            allowed.remove(name)
            refused[name] = code
    results = {**refused, **await context.groups.delete_groups(allowed)}
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}


async def _delete_states(context: ApiContext, group_id: str) -> ErrorCode:
    """Before a share group is deleted."""
    try:
        results = await context.share.states.delete(group_id)
    except BrokerError as error:
        return error.code
    return next((error.code for error in results.values() if error is not None), ErrorCode.none)
