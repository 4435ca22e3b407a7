"""SaslAuthenticate: a message of the mechanism, and our answer to it (KIP-152).

A login that fails is answered after `connection.failed.authentication.delay.ms`, and its connection closed.
Version notes: from 1 the answer that ends a login says how long it holds (KIP-368).
"""

from __future__ import annotations

import asyncio

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode

__all__ = ["handle"]


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    """One step of the login."""
    if client.sasl is None:
        return _refused(BrokerError(ErrorCode.illegal_sasl_state, "this listener asks for no login"))
    try:
        token = client.sasl.step(request.body.auth_bytes)
    except BrokerError as error:
        if client.sasl.failed:
            await asyncio.sleep(client.sasl.failure_delay_s)
        return _refused(error)
    lifetime_ms = client.sasl.lifetime_ms if client.sasl.done else 0
    return {"error_code": ErrorCode.none, "auth_bytes": token, "session_lifetime": lifetime_ms}


def _refused(error: BrokerError) -> Fields:
    return {"error_code": error.code, "error_message": error.message, "auth_bytes": b"", "session_lifetime": 0}
