"""Groups of the early generation, which keep members and offsets in ZooKeeper, for the console.

Called by groups.py and offsets.py where `--zookeeper` is given.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from broker.zookeeper.client import ZooKeeper
from broker.zookeeper.consumer_registry import ConsumerRegistry

__all__ = ["ZooKeeperOption", "zookeeper_groups"]

SESSION_TIMEOUT_MS = 5_000

ZooKeeperOption = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        help="Groups of the early generation, which live in this ZooKeeper.",
        metavar="HOST:PORT[/CHROOT]",
    ),
]


@contextlib.contextmanager
def zookeeper_groups(connect: str) -> Iterator[ConsumerRegistry]:
    """The registry at `connect`. Raises ConfigError, ConnectionFailed."""
    with ZooKeeper(connect, SESSION_TIMEOUT_MS) as zk:
        yield ConsumerRegistry(zk)
