"""Tokens of an identity provider's token endpoint, for client credentials (RFC 6749, 4.4; KIP-768)."""

from __future__ import annotations

import base64
import json
from typing import Final
from urllib.parse import quote_plus, urlencode

from broker.errors import ConfigError
from broker.security.identity_provider import ProviderFailed, is_file, provider_context, read_url, require_url, shown
from broker.security.token_providers.file import URL
from broker.security.token_providers.provider import Options, ProvidedToken, TokenProvider

ENCODED: Final = "sasl.oauthbearer.header.urlencode"
"""true: id and secret are URL-encoded in the header, as RFC 6749 has it and Kafka by default has not."""
_YEAR_S: Final = 366 * 86400


def check(options: Options, host: str) -> None:
    if is_file(options.get(URL, "")):
        raise ConfigError(f"{URL} names a file: set sasl.oauthbearer.token.provider=file")
    if not options.get(URL):
        raise ConfigError(f"OAUTHBEARER needs a token: set {URL}")
    require_url(URL, options[URL])
    if not options.get("clientId") or not options.get("clientSecret"):
        raise ConfigError(
            "OAUTHBEARER: set clientId and clientSecret, the credentials at the token endpoint, in sasl.jaas.config; "
            "clients may set sasl.oauthbearer.client.credentials.client.id and …secret instead"
        )


def retrieve(options: Options, host: str) -> ProvidedToken:
    url, client_id = options[URL], options["clientId"]
    quoted = quote_plus if options.get(ENCODED) == "true" else str
    basic = base64.b64encode(f"{quoted(client_id)}:{quoted(options['clientSecret'])}".encode()).decode()
    form = {"grant_type": "client_credentials"}
    form |= {name: options[name] for name in ("scope", "audience") if options.get(name)}
    headers = {"Authorization": f"Basic {basic}", "Content-Type": "application/x-www-form-urlencoded"}
    context = provider_context(options, "the options of the login module")
    answer = read_url(url, context, form=urlencode(form).encode(), headers=headers)
    try:
        found = json.loads(answer)
        token, lifetime_s = found["access_token"], found.get("expires_in", 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        token = lifetime_s = None
    if not isinstance(token, str) or not token.strip():
        raise ProviderFailed(f"{shown(url)}: there is no access_token in the answer", refused=True)
    usable = isinstance(lifetime_s, int | float) and 0 < lifetime_s < _YEAR_S
    return ProvidedToken(token.strip(), float(lifetime_s) if usable else 0.0, principal=client_id)


PROVIDER = TokenProvider(
    "oidc",
    retrieve,
    f"check {URL}, the credentials for it, and that the broker accepts this issuer, its audience and its keys",
    check,
)
