"""SaslHandshake: the client chooses a SASL mechanism (KIP-43).

On a listener without SASL, and after a login that does not expire, the answer is ILLEGAL_SASL_STATE.
Version notes: after version 0 the mechanism's messages come without a header, after version 1 in SaslAuthenticate
(KIP-152).
"""

from __future__ import annotations

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import ErrorCode


def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """Begin a login. The answer always has the mechanisms that are enabled."""
    if client.sasl is None:
        return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
    error = client.sasl.start(request.body.mechanism, raw=request.version == 0)
    return {"error_code": error, "mechanisms": client.sasl.mechanisms}
