"""What the command line says about loads. Imports nothing that `pykafka --help` would have to wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

__all__ = ["LoadsAsked"]


class LoadsAsked(NamedTuple):
    """`urls` of `--loads`. `options` are the reader's (`kafka.…`), for the brokers that have the log."""

    urls: Sequence[str]
    zookeeper_connect: str | None
    storage_options: Mapping[str, str]
    bootstrap_servers: str
    options: Mapping[str, str]
