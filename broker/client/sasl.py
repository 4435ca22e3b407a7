"""The login of a client by SASL: PLAIN and SCRAM, in SaslHandshake version 1 and SaslAuthenticate.

Called by connection.py once versions are agreed. A login that fails is AuthenticationFailed: it is not tried again, and
says what to look at, never the password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.client.security_settings import Login
from broker.errors import AuthenticationFailed, ErrorCode, error_name
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import field, to_ms
from broker.security.scram import LoginRefused, ScramClient, ScramMechanism

__all__ = ["log_in"]

Ask = Callable[[ApiKey, Mapping[str, Any]], Any]


def log_in(login: Login, ask: Ask, address: str) -> int:
    """Log in by `ask(api, body)`, which gives the decoded answer; how long the login holds in ms, 0 for ever.

    Raises AuthenticationFailed, and what `ask` raises.
    """
    answer = ask(ApiKey.SASL_HANDSHAKE, {"mechanism": login.mechanism})
    if answer.error_code is ErrorCode.unsupported_sasl_mechanism:
        offered = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationFailed(f"{address} does not offer sasl.mechanism={login.mechanism}; it has {offered}")
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise AuthenticationFailed(f"{address} asks for no login: set security.protocol to PLAINTEXT or SSL")
    if answer.error_code is not ErrorCode.none:
        raise AuthenticationFailed(f"{address} refused the SASL handshake: {error_name(answer.error_code)}")

    def send(token: bytes) -> Any:
        answer = ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": token})
        if answer.error_code is not ErrorCode.none:
            raise AuthenticationFailed(
                f"{address} did not let user {login.user!r} in ({login.mechanism}): "
                f"{answer.error_message or error_name(answer.error_code)}; are sasl.username and sasl.password right?"
            )
        return answer

    if login.mechanism == "PLAIN":
        return _lifetime_ms(send(f"\0{login.user}\0{login.password}".encode()))
    scram = ScramClient(ScramMechanism(login.mechanism), login.user, login.password)
    try:
        proof = scram.final(send(scram.first()).auth_bytes)
        last = send(proof)
        scram.verify(last.auth_bytes)
    except LoginRefused as error:
        raise AuthenticationFailed(f"{address}: the login of {login.user!r} broke off: {error}") from None
    return _lifetime_ms(last)


def _lifetime_ms(answer: Any) -> int:
    return to_ms(field(answer, "session_lifetime"))
