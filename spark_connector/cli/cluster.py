"""Which cluster a command of this package talks to, and how: the options that every command of the console has.

Used by `pykafka load` and `pykafka loads verify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from broker.tools.bootstrap import given_properties
from broker.tools.client_options import BootstrapServer, ConfigFile

__all__ = ["BootstrapServer", "ConfigFile", "cluster_options"]


def cluster_options(bootstrap: str | None, file: Path | None, options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """(brokers to ask first, options of the reader): the properties of `file` as `kafka.…`, and over them `options`.

    Raises ConfigError for a file that cannot be read.
    """
    properties = given_properties(file)
    servers = properties.pop("bootstrap.servers")
    properties.pop("group.id", None)  # the file may be a consumer's; a load's group is --group
    return bootstrap or servers, {f"kafka.{name}": value for name, value in properties.items()} | dict(options)
