"""SaslAuthenticate: exchange one message of the SASL mechanism (KIP-152).

A failed login is answered after `connection.failed.authentication.delay.ms`, then its connection is closed. A login by
OAUTHBEARER may wait for the keys of the identity provider; without an answer when these cannot be had.
Version notes: from 1 the last answer of a login says how long the login is valid (KIP-368).
"""

from __future__ import annotations

import asyncio

from broker.api.context import ApiContext, Client, Fields, Request
from broker.errors import BrokerError, ErrorCode


async def handle(context: ApiContext, request: Request, client: Client) -> Fields:
    if client.sasl is None:
        return _refused(BrokerError(ErrorCode.illegal_sasl_state, "this listener has no SASL login"))
    try:
        token = await client.sasl.step(request.body.auth_bytes)
    except BrokerError as error:
        if client.sasl.failed:
            await asyncio.sleep(client.sasl.failure_delay_s)
        return _refused(error)
    lifetime_ms = client.sasl.lifetime_ms if client.sasl.done else 0
    return {"error_code": ErrorCode.none, "auth_bytes": token, "session_lifetime": lifetime_ms}


def _refused(error: BrokerError) -> Fields:
    return {"error_code": error.code, "error_message": error.message, "auth_bytes": b"", "session_lifetime": 0}
