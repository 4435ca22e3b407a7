"""DeleteGroups: delete empty groups and their offsets (KIP-229), also share groups with their states (KIP-932)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode
from broker.protocol.permissions import DELETE_GROUPS_GROUP


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    results = {}
    for name in dict.fromkeys(request.body.groups_names):
        allowed = context.allows(client, DELETE_GROUPS_GROUP, name)
        results[name] = await _delete_states(context, name) if allowed else DELETE_GROUPS_GROUP.code
    results |= await context.groups.delete_groups(name for name, code in results.items() if code is ErrorCode.none)
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}


async def _delete_states(context: ApiContext, group_id: str) -> ErrorCode:
    """Before a share group is deleted. One of another kind or at another coordinator has none here."""
    try:
        context.groups.share_group(group_id)
    except BrokerError:
        return ErrorCode.none
    try:
        results = await context.share.states.delete(group_id)
    except BrokerError as error:
        return error.code
    return next((error.code for error in results.values() if error is not None), ErrorCode.none)
