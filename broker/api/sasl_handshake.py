"""SaslHandshake: the client names the mechanism it wants to log in by (KIP-43).

Version notes: after version 0 the mechanism's messages come bare, after version 1 in SaslAuthenticate (KIP-152). On a
listener without SASL, and when a login has succeeded that does not expire, this is ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode

__all__ = ["handle"]


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Begin a login; the mechanisms that are enabled in any case."""
    if client.sasl is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    error = client.sasl.start(request.body.mechanism, raw=request.version == 0)
    return {"error_code": error, "mechanisms": client.sasl.mechanisms}
