"""Who checks the access tokens of a listener: signed ones against the keys of its identity provider, or unsigned ones.

Made by the listener from its settings. `verify` is a coroutine: a login that comes before the keys waits for them, and
one with a key that is not known waits for the next fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from broker.clock import Clock, SystemClock
from broker.config.security_settings import ListenerSecurity
from broker.errors import ConfigError, ConnectionFailed
from broker.net.key_set import FetchSchedule, Keys, KeySet
from broker.security.access_token import AccessToken, TokenRules, UnknownKey, read_unsigned
from broker.security.identity_provider import is_file, provider_context, read_url, shown

logger = logging.getLogger(__name__)

KEYS_TIMEOUT_S: Final = 10.0
"""How long a login waits for keys; below the time-outs of clients. Then the connection is closed, and clients retry."""
_OPTION: Final = "unsecuredValidator"


class TokenVerifier(Protocol):
    def start(self) -> None: ...

    def close(self) -> None: ...

    async def verify(self, token: str) -> AccessToken:
        """Raises TokenRefused, and ConnectionFailed while there are no keys."""
        ...


class SignedTokens:
    def __init__(self, keys: KeySet, rules: TokenRules, clock: Clock, *, timeout_s: float = KEYS_TIMEOUT_S) -> None:
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._timeout_s = timeout_s

    def start(self) -> None:
        self._keys.start()

    def close(self) -> None:
        self._keys.close()

    async def verify(self, token: str) -> AccessToken:
        try:
            async with asyncio.timeout(self._timeout_s):
                claims = await self._claims(token)
        except TimeoutError:
            raise ConnectionFailed("there are no keys to verify an access token with") from None
        return self._rules.check(claims, self._clock.now_ms())

    async def _claims(self, token: str) -> Mapping[str, Any]:
        try:
            return (await self._keys.current()).claims(token)
        except UnknownKey:
            return (await self._keys.renewed()).claims(token)


class UnsignedTokens:
    """Tokens that anybody can make: for tests only."""

    def __init__(self, rules: TokenRules, clock: Clock) -> None:
        self._rules = rules
        self._clock = clock

    def start(self) -> None:
        """There is nothing to fetch."""

    def close(self) -> None:
        """There is nothing to close."""

    async def verify(self, token: str) -> AccessToken:
        return self._rules.check(read_unsigned(token), self._clock.now_ms())


def token_verifier(security: ListenerSecurity, clock: Clock | None = None) -> TokenVerifier:
    """For a listener where OAUTHBEARER is enabled. Raises ConfigError, also when the library is missing."""
    clock = clock or SystemClock()
    settings, name = security.settings, f"listener {security.listener.name}"
    if security.unsigned_tokens:
        logger.warning("%s accepts unsigned access tokens: anybody can log in under any name", name)
        return UnsignedTokens(_unsigned_rules(security), clock)
    schedule = FetchSchedule(
        settings.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
        settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
    )
    rules = TokenRules(
        subject_claim=settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=settings.sasl_oauthbearer_scope_claim_name,
        skew_s=settings.sasl_oauthbearer_clock_skew_seconds,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        audiences=frozenset(settings.sasl_oauthbearer_expected_audience),
    )
    return SignedTokens(KeySet(name, _fetch(security), schedule), rules, clock)


def _fetch(security: ListenerSecurity) -> Callable[[], Keys]:
    """Returns the function that fetches the keys."""
    try:
        # PyJWT and cryptography behind it, for listeners with signed tokens
        from broker.security.signed_tokens import SigningKeys
    except ImportError:
        raise ConfigError(
            f"listener {security.listener.name}: the signatures of access tokens are checked by PyJWT; "
            "pip install 'pykafka-spark[oauth]'"
        ) from None
    url = security.settings.sasl_oauthbearer_jwks_endpoint_url
    assert url is not None
    options = security.token_options
    context = None if is_file(url) else provider_context(options, f"listener {security.listener.name}")

    def fetch() -> Keys:
        document = read_url(url, context)
        try:
            return SigningKeys(document)
        except ValueError as error:
            raise ValueError(f"{shown(url)}: {error}") from None

    return fetch


def _unsigned_rules(security: ListenerSecurity) -> TokenRules:
    """Kafka's options of the login module."""
    options, settings = security.token_options, security.settings
    skew = options.get(f"{_OPTION}AllowableClockSkewMs", "0")
    if not skew.isdecimal():
        raise ConfigError(f"listener {security.listener.name}: {_OPTION}AllowableClockSkewMs must be a whole number")
    return TokenRules(
        subject_claim=options.get(f"{_OPTION}PrincipalClaimName") or settings.sasl_oauthbearer_sub_claim_name,
        scope_claim=options.get(f"{_OPTION}ScopeClaimName") or settings.sasl_oauthbearer_scope_claim_name,
        scopes=frozenset(options.get(f"{_OPTION}RequiredScope", "").split()),
        skew_s=int(skew) / 1000,
        issuer=settings.sasl_oauthbearer_expected_issuer,
        audiences=frozenset(settings.sasl_oauthbearer_expected_audience),
    )
