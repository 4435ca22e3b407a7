"""Ports for programs that take no port 0."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator


def free_ports(count: int) -> list[int]:
    """Ports that no client is given by chance: systems take those of outgoing connections from 32768 on, and what is
    chosen here is free again until its server binds it, and whenever that is killed."""
    found: set[int] = set()
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.add(port)
    return list(found)


def free_block() -> int:
    """The first of ten such ports in a row, a multiple of ten."""
    while True:
        first = random.randrange(20_000, 32_000, 10)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + 10):
                probes.enter_context(contextlib.closing(socket.socket())).bind(("127.0.0.1", port))
            return first


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port where every connection is refused: nobody listens, and it is bound, so that no other process gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
