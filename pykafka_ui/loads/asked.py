"""What the command line says about loads. Imports nothing that `pykafka --help` would have to wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadsAsked:
    """`urls` of `--loads`. `options` are the reader's (`kafka.…`), for the brokers that have the log."""

    urls: Sequence[str] = field(repr=False)
    zookeeper_connect: str | None
    storage_options: Mapping[str, str] = field(repr=False)
    bootstrap_servers: str
    options: Mapping[str, str] = field(repr=False)
