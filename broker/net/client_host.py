"""Whether the host of a client is still there: what vanished says nothing, and must not hold its connections.

connection.py calls this. TCP_USER_TIMEOUT would do it alone, but it also breaks the connection of a client that reads
late, as one that works on the last records before it polls again; its kernel acknowledges, so it is no vanished one.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

from broker.keep_alive import keep_alive

CLIENT_SILENT_S: Final = 30.0
"""A host that acknowledges nothing for so long is gone."""
_TCP_INFO: Final = struct.Struct("=3xB20xI28xI")
"""Of Linux's `struct tcp_info`: unanswered probes, unacknowledged packets, ms since the last acknowledgement."""


def watch_host(sock: socket.socket) -> None:
    """Have the kernel break the connection while it is idle; `has_vanished` tells the others."""
    keep_alive(sock, CLIENT_SILENT_S)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 0)


def has_vanished(sock: socket.socket, silent_s: float) -> bool:
    """Whether the other host has acknowledged nothing for so long, though it was sent something.

    False where the operating system does not say.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        probes, unacknowledged, silent_ms = _TCP_INFO.unpack(told)
    except (OSError, struct.error):
        return False
    return bool(unacknowledged or probes > 1) and silent_ms >= silent_s * 1000
