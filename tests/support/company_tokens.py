"""A token provider as a company writes its own: `sasl.oauthbearer.token.provider=tests.support.company_tokens:read`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.security.token_providers.provider import ProvidedToken


def read(options: Mapping[str, str], host: str) -> ProvidedToken:
    """From the vault, here a file."""
    return ProvidedToken(Path(options["vault"]).read_text(), principal="ben")
