"""DeleteGroups: forget empty groups and their offsets (KIP-229)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker.api.context import ApiContext
from broker.net.router import Client
from broker.protocol.messages import Request

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Mapping[str, Any]:
    """Delete each group; each succeeds or fails alone."""
    results = await context.groups.delete_groups(request.body.groups_names)
    return {"results": [{"group_id": group_id, "error_code": error} for group_id, error in results.items()]}
