"""What a token provider is, and what it returns.

A provider is a callable: `provider(options, host)` asks its identity provider with the credentials of this process, and
returns a ProvidedToken, or a tuple of its fields. `options` are those that were set for it, `host` is the first
one of bootstrap.servers. It may block, and it is called by one thread at a time:

    def corporate(options: Mapping[str, str], host: str) -> ProvidedToken:
        answer = vault.read(options["path"])
        return ProvidedToken(answer["jwt"], lifetime_s=answer["ttl"], principal=answer["user"])

What it raises ends the login. Connections are tried again after ConnectionError and TimeoutError, and not after others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker.errors import ConfigError


class ProvidedToken(NamedTuple):
    """A token for SASL OAUTHBEARER. Its repr has no token."""

    token: str
    lifetime_s: float = 0.0
    """Seconds that it is valid from now on, if a JWT's exp is not sooner. 0: as the JWT says, or else for one login."""
    extensions: Mapping[str, str] = MappingProxyType({})
    """SASL extensions to send with it (KIP-342)."""
    principal: str = ""
    """Whose token it is, for logs and errors."""

    def __repr__(self) -> str:
        return f"ProvidedToken(lifetime_s={self.lifetime_s}, principal={self.principal!r})"


Options = Mapping[str, str]
Retrieve = Callable[[Options, str], ProvidedToken]


def _accept(options: Options, host: str) -> None:
    """Whatever is set."""


class TokenProvider(NamedTuple):
    name: str
    """As sasl.oauthbearer.token.provider has it."""
    retrieve: Retrieve
    advice: str
    """What to look at when its tokens are refused: "check …"."""
    check: Callable[[Options, str], None] = _accept
    """Raises ConfigError for options that cannot work; asks nobody."""


def missing_library(provider: str, extra: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f'sasl.oauthbearer.token.provider={provider} needs a library: pip install "pykafka-spark[{extra}]" wherever '
        f"clients run, on Spark's executors too ({error})"
    )


def only_known(provider: str, options: Options, known: Mapping[str, str] | tuple[str, ...]) -> None:
    """Raise ConfigError for an option that the provider has not: it might change who logs in."""
    if unknown := sorted(set(options) - set(known)):
        raise ConfigError(
            f"sasl.oauthbearer.token.provider={provider} has no option {unknown[0]}; "
            f"it has {', '.join(known) or 'none'}"
        )
