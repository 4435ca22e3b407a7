"""Which cluster a command of this package talks to, and how: the options that every command of the console has.

Used by `pykafka load` and `pykafka loads verify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.tools.client_options import BootstrapServer, ConfigFile, given_properties

__all__ = ["BootstrapServer", "ConfigFile", "cluster_options"]

_OF_CONSUMERS = ("group.id", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms")
"""The file may be a consumer's: a load has --group, --starting-offsets and commits of its own."""


def cluster_options(bootstrap: str | None, file: Path | None, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(brokers to ask first, options of the reader): the properties of `file` as `kafka.…`, and over them `options`.

    Raises ConfigError for a file that cannot be read.
    """
    properties = given_properties(file)
    servers = properties.pop("bootstrap.servers")
    for name in _OF_CONSUMERS:
        properties.pop(name, None)
    return bootstrap or servers, {f"kafka.{name}": value for name, value in properties.items()} | dict(options)
