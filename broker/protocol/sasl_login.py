"""The messages of a SASL login, from the side that logs in: SaslHandshake version 1, then SaslAuthenticate. No I/O.

For clients, and for brokers that connect to other brokers. The mechanism is PLAIN, SCRAM or OAUTHBEARER. A failed login
raises AuthenticationFailed, which is not retriable and never contains a password or a token.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

from broker.errors import AuthenticationFailed, ErrorCode, error_name
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.jaas import Login
from broker.security.oauthbearer import ACKNOWLEDGED, client_first, error_status
from broker.security.scram import LoginRefused, ScramClient, ScramMechanism

Ask = tuple[ApiKey, Mapping[str, Any]]
"""The API and the fields of a request; its decoded answer is sent into the generator."""


def sasl_login(login: Login, address: str) -> Generator[Ask, Any, int]:
    """Yields requests, takes their answers, and returns the session's lifetime in ms, 0 for ever.

    `login` is ready: it has its token. `address` is the broker's, for errors. Raises AuthenticationFailed.
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
    if login.tokens is not None:
        return (yield from _with_token(login, address))
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


def _with_token(login: Login, address: str) -> Generator[Ask, Any, int]:
    """OAUTHBEARER. A JSON error is acknowledged before the login ends (RFC 7628, 3.2.3)."""
    assert login.tokens is not None
    answer = yield _message(client_first(login.password, login.extensions))
    if answer.error_code is ErrorCode.none and not answer.auth_bytes:
        return _lifetime_ms(answer)
    login.tokens.forget()
    _check(answer, login, address)
    yield _message(ACKNOWLEDGED)
    raise AuthenticationFailed(
        f"{address} refused the access token: {error_status(answer.auth_bytes)}; its log says why. "
        f"Are {login.settings} right?"
    )


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
