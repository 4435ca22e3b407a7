"""The messages of a SASL login, from the side that logs in: SaslHandshake version 1, then SaslAuthenticate. No I/O.

For clients, and for brokers that connect to other brokers. What is sent is the mechanism's (security/login.py). A
failed login raises AuthenticationFailed, which is not retriable and never contains a password or a token.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from broker.errors import AuthenticationFailed, ErrorCode, error_name
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.login import Exchange, Login, LoginRefused, RefusedByBroker

Ask = tuple[ApiKey, Mapping[str, Any]]
"""The API and the fields of a request; its decoded answer is sent into the generator."""


def sasl_login(login: Login, exchange: Exchange, address: str) -> Generator[Ask, Any, int]:
    """Yields requests, takes their answers, and returns the session's lifetime in ms, 0 for ever.

    `exchange` has begun with `login`. `address` is the broker's, for errors. Raises AuthenticationFailed.
    """
    answer = yield ApiKey.SASL_HANDSHAKE, {"mechanism": login.mechanism}
    _check_handshake(answer, login, address)
    try:
        message = next(exchange)
        while True:
            answer = yield ApiKey.SASL_AUTHENTICATE, {"auth_bytes": message}
            if answer.error_code is ErrorCode.none:
                message = exchange.send(answer.auth_bytes)
            else:
                message = exchange.throw(RefusedByBroker(answer.error_message or error_name(answer.error_code)))
    except StopIteration:
        return to_ms(field(answer, "session_lifetime"))
    except RefusedByBroker as error:
        raise AuthenticationFailed(
            f"{address} refused {login.described}: {error}; are {login.settings} right?"
        ) from None
    except LoginRefused as error:
        raise AuthenticationFailed(f"{address}: {login.described} failed: {error}") from None


def _check_handshake(answer: Any, login: Login, address: str) -> None:
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not offer sasl.mechanism={login.mechanism}; it has {offered}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"{address} requires no login: set security.protocol to PLAINTEXT or SSL")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(f"{address} refused the SASL handshake: {error_name(answer.error_code)}")
