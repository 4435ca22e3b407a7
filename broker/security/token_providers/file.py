"""Tokens from a file that something else renews, such as a projected token of Kubernetes."""

from __future__ import annotations

from broker.errors import ConfigError
from broker.security.identity_provider import ProviderFailed, is_file, read_url, require_url, shown
from broker.security.token_providers.provider import Options, ProvidedToken, TokenProvider

URL = "sasl.oauthbearer.token.endpoint.url"


def check(options: Options, host: str) -> None:
    url = options.get(URL, "")
    if not is_file(url):
        raise ConfigError(f"sasl.oauthbearer.token.provider=file: set {URL}=file:///path, where the token is")
    require_url(URL, url)


def retrieve(options: Options, host: str) -> ProvidedToken:
    url = options[URL]
    try:
        token = read_url(url).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token:
        raise ProviderFailed(f"{shown(url)}: there is no token in it")
    return ProvidedToken(token)


PROVIDER = TokenProvider("file", retrieve, "check that the token in the file is meant for this cluster", check)
