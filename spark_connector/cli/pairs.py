"""Options of the form NAME=VALUE, given any number of times. Used by the commands of this package."""

from __future__ import annotations

from collections.abc import Iterable

from broker.errors import ConfigError

__all__ = ["parse_pairs"]


def parse_pairs(given: Iterable[str] | None, option: str) -> dict[str, str]:
    """Name → value. Raises ConfigError, naming the option, for what has no `=`."""
    pairs = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option} {text}: expected NAME=VALUE")
        pairs[name] = value
    return pairs
