"""The SASL login of one connection: mechanism, exchange of messages, principal. No I/O.

Made for each connection of a SASL listener. The handlers of SaslHandshake and SaslAuthenticate drive it, or the
connection itself for clients that send bare tokens (SaslHandshake version 0). Until it is `done`, only those two APIs
and ApiVersions are admitted. A refused client does not learn whether the user exists. A login by an access token ends
when the token does. Idea: Kafka's `SaslServerAuthenticator`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Protocol

from broker.config.security_settings import ListenerSecurity
from broker.errors import BrokerError, ErrorCode
from broker.protocol.api_keys import ApiKey
from broker.security.access_token import AccessToken
from broker.security.login import LoginRefused
from broker.security.mechanisms import OAUTHBEARER
from broker.security.oauthbearer import OAuthBearerServer
from broker.security.plain import PlainServer
from broker.security.scram import ScramCredential, ScramMechanism, ScramServer

FindCredential = Callable[[ScramMechanism, str], ScramCredential | None]
"""Returns the SCRAM credential of a user, if there is one."""
VerifyToken = Callable[[str], Awaitable[AccessToken]]
"""Checks the access token of OAUTHBEARER. Raises TokenRefused, and ConnectionFailed while it cannot tell."""

_LOGIN_APIS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.API_VERSIONS})


class _State(Enum):
    WAITING = "for the name of a mechanism"
    EXCHANGE = "messages of the mechanism"
    DONE = "logged in"
    FAILED = "never will be"


class _Exchange(Protocol):
    """The exchange of one mechanism, on the broker's side."""

    complete: bool

    @property
    def user(self) -> str: ...

    @property
    def lifetime_ms(self) -> int:
        """How long the credentials are valid; 0 means for ever."""
        ...

    def step(self, token: bytes) -> bytes | Awaitable[bytes]: ...


class SaslSession:
    """Call `start`, then `step` until `done` or `failed`."""

    def __init__(
        self, security: ListenerSecurity, find: FindCredential, verify_token: VerifyToken | None = None
    ) -> None:
        """`verify_token` is needed where OAUTHBEARER is enabled."""
        self._security = security
        self._find = find
        self._verify_token = verify_token
        self._state = _State.WAITING
        self._exchange: _Exchange
        self._mechanism = ""
        self._expires = float("inf")
        self.mechanisms = security.settings.sasl_enabled_mechanisms
        self.lifetime_ms = security.settings.connections_max_reauth_ms
        """How long a login is valid; 0 means for ever."""
        self.failure_delay_s = security.settings.connection_failed_authentication_delay_ms / 1000
        """Delay of the answer to a failed login."""
        self.max_request_bytes = security.settings.sasl_server_max_receive_size
        """Longer requests are refused before the login."""
        self.principal: str | None = None
        self.raw = False
        """Whether tokens arrive bare, without a request around them."""
        self.failure = ""
        """Why the login failed, for the broker's log."""

    @property
    def done(self) -> bool:
        return self._state is _State.DONE

    @property
    def failed(self) -> bool:
        return self._state is _State.FAILED

    def admits(self, api_key: int) -> bool:
        """Whether a request may be served now."""
        if api_key in _LOGIN_APIS:
            return not self.failed
        return self.done and time.monotonic() < self._expires

    def start(self, mechanism: str, *, raw: bool) -> ErrorCode:
        """SaslHandshake: begin a login, or a renewed one when logins expire (KIP-368)."""
        again = self.done and self.lifetime_ms > 0
        if self._state is not _State.WAITING and not again:
            return ErrorCode.illegal_sasl_state
        if mechanism not in self.mechanisms:
            self._fail(f"the SASL mechanism {mechanism[:40]!r} is not enabled")
            return ErrorCode.unsupported_sasl_mechanism
        if again and mechanism != self._mechanism:
            return ErrorCode.illegal_sasl_state
        self._mechanism = mechanism
        self._exchange = self._make(mechanism)
        self._state = _State.EXCHANGE
        self.raw = raw
        return ErrorCode.none

    async def step(self, token: bytes) -> bytes:
        """SaslAuthenticate: the answer to a message. Raises BrokerError; the session has failed then.

        Raises ConnectionFailed when nobody can tell now whether the client may log in: it may try again.
        """
        if self._state is not _State.EXCHANGE:
            raise BrokerError(ErrorCode.illegal_sasl_state, "SaslAuthenticate must follow a SaslHandshake")
        try:
            answer = self._exchange.step(token)
            if not isinstance(answer, bytes):
                answer = await answer
            if self._exchange.complete:
                self._succeed(f"User:{self._exchange.user}", self._exchange.lifetime_ms)
            return answer
        except (LoginRefused, ArithmeticError, LookupError, ValueError) as error:
            # Whatever a message does to those who read it, it is no login.
            reason = error if isinstance(error, LoginRefused) else f"its message cannot be read: {type(error).__name__}"
            self._fail(f"login by {self._mechanism} failed: {reason}")
            raise BrokerError(
                ErrorCode.sasl_authentication_failed,
                f"Authentication failed: invalid credentials with SASL mechanism {self._mechanism}",
            ) from None

    def _make(self, mechanism: str) -> _Exchange:
        if mechanism == "PLAIN":
            return PlainServer(self._security.plain_users)
        if mechanism == OAUTHBEARER:
            assert self._verify_token is not None
            return OAuthBearerServer(self._verify_token)
        scram = ScramMechanism(mechanism)
        return ScramServer(scram, lambda user: self._find(scram, user))

    def _succeed(self, principal: str, credentials_ms: int) -> None:
        if self.principal not in (None, principal):
            raise LoginRefused("a login that is renewed must be of the same user")
        self.principal = principal
        self.raw = False
        self._state = _State.DONE
        limits = [one for one in (self._security.settings.connections_max_reauth_ms, credentials_ms) if one]
        self.lifetime_ms = min(limits, default=0)
        if self.lifetime_ms:
            self._expires = time.monotonic() + self.lifetime_ms / 1000

    def _fail(self, reason: str) -> None:
        self._state = _State.FAILED
        self.failure = reason
