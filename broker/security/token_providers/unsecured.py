"""Unsigned tokens that the client makes itself, by Kafka's options `unsecuredLogin…`; some listeners accept them."""

from __future__ import annotations

from typing import Any, Final

from broker.clock import SystemClock
from broker.errors import ConfigError
from broker.security.access_token import make_unsigned
from broker.security.token_providers.provider import Options, ProvidedToken, TokenProvider

PREFIX: Final = "unsecuredLogin"


def check(options: Options, host: str) -> None:
    _claims(options)


def retrieve(options: Options, host: str) -> ProvidedToken:
    claims, lifetime_s = _claims(options)
    now_s = SystemClock().now_ms() / 1000
    made = {"iat": now_s, "exp": now_s + lifetime_s, **claims}
    return ProvidedToken(make_unsigned(made), lifetime_s, principal=str(claims.get("sub", "")))


def _claims(options: Options) -> tuple[dict[str, Any], float]:
    """Kafka's options: unsecuredLoginStringClaim_sub="ann", …NumberClaim_, …ListClaim_ and …LifetimeSeconds."""
    claims: dict[str, Any] = {}
    name = f"{PREFIX}LifetimeSeconds"
    try:
        lifetime_s = float(options.get(name, "3600"))
        for name, text in options.items():
            kind, underscore, claim = name.removeprefix(PREFIX).partition("_")
            if not name.startswith(PREFIX) or not underscore:
                continue
            if kind == "StringClaim":
                claims[claim] = text
            elif kind == "NumberClaim":
                claims[claim] = float(text)
            elif kind == "ListClaim" and text:
                claims[claim] = text[1:].split(text[0])  # its first character separates the others
    except ValueError:
        raise ConfigError(f"OAUTHBEARER: a number is expected for {name} in sasl.jaas.config") from None
    return claims, lifetime_s


PROVIDER = TokenProvider("unsecured", retrieve, "check that its listener accepts unsigned tokens", check)
