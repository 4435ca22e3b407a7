"""DeleteGroups: delete empty groups and their offsets (KIP-229)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Each group succeeds or fails alone."""
    results = await context.groups.delete_groups(request.body.groups_names)
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}
