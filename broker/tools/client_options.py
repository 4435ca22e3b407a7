"""Options that every command which talks to a broker has, and how they become the client's settings.

Called by the topics, produce and consume commands. Raises ConfigError for text that is not key=value, for a
property the client does not have, and for a file that cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from broker.client.settings import ClientSettings
from broker.errors import ConfigError
from broker.settings import read_properties_file

__all__ = ["BootstrapServer", "CommandConfig", "JsonOutput", "client_settings", "parse_pairs"]

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        help=f"Brokers to ask first; else `bootstrap.servers` of the properties file, else {DEFAULT_BOOTSTRAP}.",
        metavar="HOST:PORT,…",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option("--command-config", "--config-file", help="Properties file of the client.", metavar="FILE"),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_pairs(pairs: Iterable[str] | None, option: str) -> dict[str, str]:
    """`["a=1", "b=2"]` → `{"a": "1", "b": "2"}`."""
    parsed = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"{option} {pair}: expected KEY=VALUE")
        parsed[key] = value
    return parsed


def client_settings(bootstrap: str | None, file: Path | None, *overrides: Mapping[str, str]) -> ClientSettings:
    """The properties of `file`, then each mapping of `overrides`, then `--bootstrap-server` on top."""
    properties = {"bootstrap.servers": DEFAULT_BOOTSTRAP, **(read_properties_file(file) if file else {})}
    for mapping in overrides:
        properties.update(mapping)
    if bootstrap:
        properties["bootstrap.servers"] = bootstrap
    return ClientSettings.from_properties(properties)
