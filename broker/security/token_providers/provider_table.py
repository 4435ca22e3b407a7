"""The token providers by name: those that are here, those of entry points, and `module:function`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final

from broker.errors import ConfigError
from broker.security.identity_provider import is_file
from broker.security.token_providers import aws_msk, azure, file, google_cloud, oidc, unsecured
from broker.security.token_providers.provider import TokenProvider

ENTRY_POINTS: Final = "pykafka.token_providers"
BUILT_IN: Final[Mapping[str, TokenProvider]] = {
    module.PROVIDER.name: module.PROVIDER for module in (oidc, file, aws_msk, google_cloud, azure, unsecured)
}


def usual_provider(options: Mapping[str, str]) -> str:
    """The name of the one for `options` that name none: as in Kafka, by the URL of the tokens. Raises ConfigError."""
    url = options.get(file.URL)
    if url is not None:
        return "file" if is_file(url) else "oidc"
    if any(name.startswith(unsecured.PREFIX) for name in options):
        return "unsecured"
    raise ConfigError(
        f"OAUTHBEARER needs a token: set {file.URL}, or sasl.oauthbearer.token.provider to one of "
        f"{', '.join(BUILT_IN)} or module:function"
    )


def find_provider(name: str) -> TokenProvider:
    """Raises ConfigError when there is none of this name in this process."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    from importlib.metadata import entry_points

    setting = f"sasl.oauthbearer.token.provider={name}"
    try:
        for found in entry_points(group=ENTRY_POINTS, name=name):
            return _own(name, found.load(), setting)
        module, colon, function = name.partition(":")
        if colon:
            return _own(name, getattr(importlib.import_module(module), function), setting)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{setting}: it cannot be imported in this process ({error}); install its module wherever clients run, on "
            "Spark's executors too"
        ) from None
    others = sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))
    raise ConfigError(f"{setting}: there are {', '.join([*BUILT_IN, *others])}, or name a module:function")


def _own(name: str, found: object, setting: str) -> TokenProvider:
    if not callable(found):
        raise ConfigError(f"{setting}: it is not callable; see broker.security.token_providers.provider")
    return TokenProvider(name, found, f"check what {name} asks for, and whether the broker accepts its tokens")
