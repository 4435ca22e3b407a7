"""A console command as another package would bring it."""

from __future__ import annotations

from broker.errors import ConfigError


def greet() -> None:
    """Greet nobody."""
    raise ConfigError("a greeting needs a name")
