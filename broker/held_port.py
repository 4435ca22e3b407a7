"""A free loopback port that stays its owner's while the server that listens on it is down.

The kernel gives a port on which nobody listens to any outgoing connection, and the server cannot come back to it. A
socket that is bound and does not listen keeps the port; with SO_REUSEADDR on both, the server can listen on it.
"""

from __future__ import annotations

import socket
import weakref

__all__ = ["HeldPort"]


class HeldPort:
    """Holds `port` of `host` (0: any free one) until it is garbage. Raises OSError if another process has it."""

    def __init__(self, host: str, port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        held = socket.socket(family, socket.SOCK_STREAM)
        weakref.finalize(self, held.close)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, port))
        self.port: int = held.getsockname()[1]
