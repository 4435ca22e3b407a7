"""The messages of a SASL login, from the side that logs in: SaslHandshake version 1, then SaslAuthenticate. No I/O.

For clients, and for brokers that connect to other brokers. The mechanism is PLAIN or SCRAM. A failed login raises
AuthenticationFailed, which is not retriable and never contains the password.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from broker.errors import AuthenticationFailed, ErrorCode, error_name
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.jaas import Login
from broker.security.scram import LoginRefused, ScramClient, ScramMechanism

__all__ = ["sasl_login"]

Ask = tuple[ApiKey, Mapping[str, Any]]
"""The API and the fields of a request; its decoded answer is sent into the generator."""


def sasl_login(login: Login, address: str) -> Generator[Ask, Any, int]:
    """Yields requests, takes their answers, and returns the session's lifetime in ms, 0 for ever.

    `address` is the broker's, for errors. Raises AuthenticationFailed.
    """
    answer = yield ApiKey.SASL_HANDSHAKE, {"mechanism": login.mechanism}
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not offer sasl.mechanism={login.mechanism}; it has {offered}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"{address} requires no login: set security.protocol to PLAINTEXT or SSL")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(f"{address} refused the SASL handshake: {error_name(answer.error_code)}")
    if login.mechanism == "PLAIN":
        last = yield _message(f"\0{login.user}\0{login.password}".encode())
        _check(last, login, address)
        return _lifetime_ms(last)
    scram = ScramClient(ScramMechanism(login.mechanism), login.user, login.password)
    try:
        first = yield _message(scram.first())
        _check(first, login, address)
        last = yield _message(scram.final(first.auth_bytes))
        _check(last, login, address)
        scram.verify(last.auth_bytes)
    except LoginRefused as error:
        raise AuthenticationFailed(f"{address}: the login of user {login.user!r} failed: {error}") from None
    return _lifetime_ms(last)


def _message(token: bytes) -> Ask:
    return ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token}


def _check(answer: Any, login: Login, address: str) -> None:
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(
            f"{address} refused the login of user {login.user!r} by {login.mechanism}: "
            f"{answer.error_message or error_name(answer.error_code)}; are {login.settings} right?"
        )


def _lifetime_ms(answer: Any) -> int:
    return to_ms(field(answer, "session_lifetime"))
