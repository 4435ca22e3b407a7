"""Access tokens (JWT, RFC 7519): their claims, the rules that these must meet, and unsigned tokens. Pure.

The broker checks claims whose signature is verified (signed_tokens.py), or those of unsigned tokens where a listener
accepts these. The client reads the expiry of its own token. Errors name the rule that is broken and never repeat a
token or a claim.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from broker.security.login import LoginRefused

_MOST_LIFETIME_MS = 10**12
"""A lifetime above 31 years is reported as this."""


class TokenRefused(LoginRefused):
    """A token that is malformed, expired, from elsewhere or for somebody else. `status` is RFC 6750's error code."""

    def __init__(self, reason: str, status: str = "invalid_token") -> None:
        super().__init__(reason)
        self.status = status


class UnknownKey(TokenRefused):
    """No key is known that could have signed the token. The identity provider may have a new one."""


@dataclasses.dataclass(frozen=True)
class AccessToken:
    """A token that was accepted. It has no text, so that none can be shown."""

    subject: str
    lifetime_ms: int
    """How long it is still valid, at least 1."""
    scopes: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenRules:
    """What a listener requires of the claims of a token."""

    subject_claim: str = "sub"
    scope_claim: str = "scope"
    skew_s: float = 30
    """How far the clocks of the identity provider and of this machine may differ."""
    issuer: str | None = None
    audiences: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    """All of them must be in the token."""

    def check(self, claims: Mapping[str, Any], now_ms: int) -> AccessToken:
        """Raises TokenRefused."""
        now_s = now_ms / 1000
        expires, not_before, issued = (_seconds(claims, name) for name in ("exp", "nbf", "iat"))
        if expires is None:
            raise TokenRefused("the token has no expiry (exp)")
        if expires <= now_s - self.skew_s:
            raise TokenRefused("the token has expired")
        if not_before is not None and not_before > now_s + self.skew_s:
            raise TokenRefused("the token is not valid yet (nbf)")
        if issued is not None and (issued > now_s + self.skew_s or issued > expires):
            raise TokenRefused("the token was issued in the future, or after its expiry (iat)")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefused("the token is not of sasl.oauthbearer.expected.issuer")
        self._check_audience(claims.get("aud"))
        subject = claims.get(self.subject_claim)
        if not isinstance(subject, str) or not subject.strip() or not subject.isprintable():
            raise TokenRefused(f"the token has no usable name in the claim {self.subject_claim!r}")
        scopes = _scopes(claims.get(self.scope_claim))
        if not self.scopes <= scopes:
            raise TokenRefused("the token lacks a required scope", "insufficient_scope")
        left_ms = int(min(expires * 1000 - now_ms, _MOST_LIFETIME_MS))
        return AccessToken(subject.strip(), max(1, left_ms), scopes)

    def _check_audience(self, audience: Any) -> None:
        """A token that names audiences is for nobody else (RFC 7519, 4.1.3)."""
        named = [audience] if isinstance(audience, str) else audience
        if named is None and not self.audiences:
            return
        if not isinstance(named, list) or not self.audiences.intersection(
            name for name in named if isinstance(name, str)
        ):
            reason = "it is not for sasl.oauthbearer.expected.audience"
            if not self.audiences:
                reason = "it names an audience, and sasl.oauthbearer.expected.audience is not set"
            raise TokenRefused(f"the token is for somebody else: {reason}")


def read_unsigned(token: str) -> dict[str, Any]:
    """The claims of a token with `"alg": "none"`. Raises TokenRefused for every other one."""
    header, dot, rest = token.partition(".")
    payload, second_dot, signature = rest.partition(".")
    if not dot or not second_dot or read_json(header).get("alg") != "none":
        raise TokenRefused("the token is not an unsigned one")
    if signature:
        raise TokenRefused("an unsigned token must not have a signature")
    return read_json(payload)


def make_unsigned(claims: Mapping[str, Any]) -> str:
    """A token with `"alg": "none"`, for listeners that accept these."""
    header, payload = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({"alg": "none"}, claims)
    )
    return f"{header}.{payload}."


def read_json(part: str) -> dict[str, Any]:
    """The JSON object in a part of a token, which is base64url without padding. Raises TokenRefused."""
    try:
        data = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
        found = json.loads(data)
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("the token cannot be read") from None
    if not isinstance(found, dict):
        raise TokenRefused("the token cannot be read")
    return found


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"the token's {name} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TokenRefused(f"the token's {name} is out of range")
    return number


def _scopes(value: Any) -> frozenset[str]:
    """Scopes are a text with spaces (RFC 8693) or a list of texts."""
    if value is None:
        return frozenset()
    words = value.split() if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TokenRefused("the token's scope is neither a text nor a list of texts")
    return frozenset(words)
