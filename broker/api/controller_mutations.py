"""The quota of controller mutations for one request: partitions that it creates or deletes (KIP-599)."""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Request
from broker.net.throttling import quota_user
from broker.quotas.client_quotas import ControllerMutations


def mutations_of(
    context: ApiContext, request: Request, client: Client, *, strict_from: int | None
) -> ControllerMutations:
    """From version `strict_from` on, what exceeds the quota is refused. Clients of older versions do not know that
    error and are throttled."""
    strict = strict_from is not None and request.version >= strict_from
    user, client_id = quota_user(client.principal, request.client_id)
    return context.quotas.mutations(user, client_id, context.clock.monotonic(), strict=strict)
