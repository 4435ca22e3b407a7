"""Where the access tokens come from with which clients log in, and brokers to other brokers: an endpoint or a file.

The token endpoint of an identity provider is asked with client credentials (RFC 6749, 4.4; KIP-768). A file is read
again for each new token, because others renew it. Without either, the `unsecuredLogin…` options of Kafka make an
unsigned token. `TokenSource.token` blocks while it asks. No repr and no error has a secret or a token.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote_plus, urlencode

from broker.clock import Clock, SystemClock
from broker.errors import AuthenticationFailed, ConfigError, ConnectionFailed
from broker.security.access_token import TokenRefused, make_unsigned, read_json
from broker.security.identity_provider import ProviderFailed, is_file, provider_context, read_url, require_url, shown

LOGIN_HANDLERS: Final = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
"""Kafka's classes that do what is done here; configurations made for Kafka name them."""
_RENEW_AT: Final = 0.8
"""The share of a token's lifetime after which a new one is asked for (Kafka's sasl.login.refresh.window.factor)."""
_RETRY_S: Final = 10.0
_EXTENSION: Final = "extension_"
_UNSECURED: Final = "unsecuredLogin"
_DAY_S: Final = 86400


class _Retrieved(NamedTuple):
    token: str
    lifetime_s: float
    """0: not known, so the token is used for one login."""


class TokenSource:
    """The current token. Thread-safe."""

    def __init__(self, retrieve: Callable[[], str | _Retrieved], clock: Clock | None = None) -> None:
        self._retrieve = retrieve
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = self._expires_at = 0.0

    def token(self) -> str:
        """A token that is valid. When no new one can be had, one from before is used until it expires.

        Raises ConnectionFailed when another attempt may help, AuthenticationFailed and ConfigError when not.
        """
        with self._lock:
            now = self._clock.monotonic()
            if self._token and now < self._renew_at:
                return self._token
            try:
                retrieved = self._retrieve()
            except ProviderFailed as error:
                if self._token and now < self._expires_at:
                    self._renew_at = now + _RETRY_S
                    return self._token
                if error.refused:
                    raise AuthenticationFailed(f"there is no access token: {error}") from None
                raise ConnectionFailed(f"there is no access token: {error}") from None
            token, lifetime_s = retrieved if isinstance(retrieved, _Retrieved) else (retrieved, 0.0)
            lifetime_s = _lifetime_s(token, self._clock) or lifetime_s
            self._token = token if lifetime_s > 0 else ""
            self._renew_at, self._expires_at = now + lifetime_s * _RENEW_AT, now + lifetime_s
            return token

    def forget(self) -> None:
        """The broker refused the token: ask for another one next time."""
        with self._lock:
            self._token = ""


@dataclasses.dataclass(frozen=True)
class _Credentials:
    url: str
    client_id: str
    secret: str = dataclasses.field(repr=False)
    scope: str | None
    encoded: bool
    """Whether id and secret are URL-encoded in the header, as RFC 6749 has it and Kafka by default has not."""
    context: Callable[[], ssl.SSLContext]

    def retrieve(self) -> _Retrieved:
        quoted = quote_plus if self.encoded else str
        basic = base64.b64encode(f"{quoted(self.client_id)}:{quoted(self.secret)}".encode()).decode()
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/x-www-form-urlencoded"}
        answer = read_url(self.url, self.context(), form=urlencode(form).encode(), headers=headers)
        try:
            found = json.loads(answer)
            token, lifetime_s = found["access_token"], found.get("expires_in", 0)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            token = lifetime_s = None
        if not isinstance(token, str) or not token.strip():
            raise ProviderFailed(f"{shown(self.url)}: there is no access_token in the answer", refused=True)
        usable = isinstance(lifetime_s, int | float) and 0 < lifetime_s < 366 * _DAY_S
        return _Retrieved(token.strip(), float(lifetime_s) if usable else 0.0)


def token_source(
    url: str | None, options: Mapping[str, str], where: str, *, encoded: bool = False, clock: Clock | None = None
) -> TokenSource:
    """From `url` (sasl.oauthbearer.token.endpoint.url) and the options of an OAuthBearerLoginModule: clientId,
    clientSecret, scope, ssl.…, unsecuredLogin…; `where` they are set, for errors. Raises ConfigError."""
    if url is None:
        if not any(name.startswith(_UNSECURED) for name in options):
            raise ConfigError("OAUTHBEARER needs a token: set sasl.oauthbearer.token.endpoint.url")
        clock = clock or SystemClock()
        claims, lifetime_s = _unsecured_claims(options, where)
        return TokenSource(functools.partial(_unsecured_token, claims, lifetime_s, clock), clock)
    require_url("sasl.oauthbearer.token.endpoint.url", url)
    if is_file(url):
        return TokenSource(functools.partial(_from_file, url), clock)
    client_id, secret = options.get("clientId"), options.get("clientSecret")
    if not client_id or not secret:
        raise ConfigError(f"OAUTHBEARER: set clientId and clientSecret, the credentials at the token endpoint, {where}")
    context = functools.cache(lambda: provider_context(options, where))
    credentials = _Credentials(url, client_id, secret, options.get("scope"), encoded, context)
    return TokenSource(credentials.retrieve, clock)


def sasl_extensions(options: Mapping[str, str]) -> dict[str, str]:
    """The extensions (KIP-342) among the options of a login module: `extension_NAME`."""
    return {name[len(_EXTENSION) :]: text for name, text in options.items() if name.startswith(_EXTENSION)}


def _from_file(url: str) -> str:
    try:
        token = read_url(url).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ProviderFailed(f"{shown(url)}: there is no token in it")
    return token


def _lifetime_s(token: str, clock: Clock) -> float:
    """From the token's expiry; 0 where it has none that can be read."""
    try:
        expires = read_json(token.split(".")[1])["exp"]
        return float(expires) - clock.now_ms() / 1000
    except (TokenRefused, IndexError, KeyError, TypeError, ValueError, OverflowError):
        return 0.0


def _unsecured_claims(options: Mapping[str, str], where: str) -> tuple[dict[str, Any], float]:
    """Kafka's options: unsecuredLoginStringClaim_sub="ann", …NumberClaim_, …ListClaim_ and …LifetimeSeconds."""
    claims: dict[str, Any] = {}
    try:
        for name, text in options.items():
            kind, underscore, claim = name.removeprefix(_UNSECURED).partition("_")
            if not name.startswith(_UNSECURED) or not underscore:
                continue
            if kind == "StringClaim":
                claims[claim] = text
            elif kind == "NumberClaim":
                claims[claim] = float(text)
            elif kind == "ListClaim" and text:
                claims[claim] = text[1:].split(text[0])  # its first character separates the others
        lifetime_s = float(options.get(f"{_UNSECURED}LifetimeSeconds", "3600"))
    except ValueError:
        raise ConfigError(f"OAUTHBEARER: a number is expected for {name}, {where}") from None
    return claims, lifetime_s


def _unsecured_token(claims: Mapping[str, Any], lifetime_s: float, clock: Clock) -> str:
    now_s = clock.now_ms() / 1000
    return make_unsigned({"iat": now_s, "exp": now_s + lifetime_s, **claims})
