"""Options that every command which talks to a broker has, and how they become the client's settings.

Called by all those commands. Raises UsageError for text that is not key=value, ConfigError for a property the client
does not have and for a file that cannot be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from broker.client.admin import Admin
from broker.client.client_settings import ClientSettings
from broker.client.cluster import Cluster
from broker.tools.bootstrap import BOOTSTRAP_VARIABLE, DEFAULT_BOOTSTRAP, base_properties
from broker.tools.completion import complete_groups, complete_topics
from broker.tools.usage import UsageError

__all__ = [
    "AnyTopic",
    "BootstrapServer",
    "CommandConfig",
    "ConfigFile",
    "JsonOutput",
    "OneGroup",
    "OneTopic",
    "administration",
    "client_settings",
    "parse_pairs",
]

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        help="Brokers to ask first; else `bootstrap.servers` of the properties file, else the environment's "
        f"{BOOTSTRAP_VARIABLE}, else {DEFAULT_BOOTSTRAP}.",
        metavar="HOST:PORT,…",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", "--config-file", help="Properties file of the client.", metavar="FILE"),
]
"""For `topics`, where `--config` is a topic's setting, as in Kafka."""
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", "--command-config", "--config-file", help="Properties file of the client.", metavar="FILE"
    ),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OneTopic = Annotated[
    str, typer.Option("--topic", "-t", help="Name of the topic.", metavar="NAME", autocompletion=complete_topics)
]
AnyTopic = Annotated[
    str | None, typer.Option("--topic", "-t", help="Only this topic.", metavar="NAME", autocompletion=complete_topics)
]
OneGroup = Annotated[
    str, typer.Option("--group", "-g", help="Name of the group.", metavar="NAME", autocompletion=complete_groups)
]


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` → `{"a": "1", "b": "2"}`."""
    parsed = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise UsageError(f"{option} {pair}: expected KEY=VALUE")
        parsed[key] = value
    return parsed


def client_settings(bootstrap: str | None, file: Path | None, *overrides: Mapping[str, str]) -> ClientSettings:
    """The properties of `file`, then each mapping of `overrides`, then `--bootstrap-server` on top."""
    properties = base_properties(file)
    for mapping in overrides:
        properties.update(mapping)
    if bootstrap:
        properties["bootstrap.servers"] = bootstrap
    return ClientSettings.from_properties(properties)


@contextlib.contextmanager
def administration(bootstrap: str | None, file: Path | None) -> Iterator[Admin]:
    """An `Admin` of the cluster that the options name."""
    with Cluster(client_settings(bootstrap, file)) as cluster:
        yield Admin(cluster)
