"""How soon the kernel gives up a TCP connection whose other host has vanished, so that no packet comes any more.

Called for every socket that a client opens (client/tcp_connect.py); brokers may call it for those that they accept.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Final

_PROBE_EVERY_S: Final = 5
"""A connection without traffic for so long is asked for a sign of life."""
_RETRANSMIT_MS: Final = 2000
"""Longest pause between two attempts to get a packet through: so soon a connection goes on when a cut is over. The
kernel doubles the pause up to two minutes otherwise."""
_TCP_RTO_MAX_MS: Final = 44
"""Linux 6.15 and later; Python has no name for it."""


def keep_alive(sock: socket.socket, silent_s: float) -> None:
    """Break `sock` when the other host has acknowledged nothing for `silent_s` seconds, whether there was data or not.

    The other host's kernel acknowledges, so a busy process is no silence; but with TCP_USER_TIMEOUT Linux also breaks a
    connection whose other end has read nothing for `silent_s` while its buffers were full. Choose a time in which a
    live process reads something. What the operating system does not have is left out.
    """
    tcp = {
        "TCP_KEEPIDLE": _PROBE_EVERY_S,
        "TCP_KEEPINTVL": _PROBE_EVERY_S,
        "TCP_KEEPCNT": max(1, round(silent_s / _PROBE_EVERY_S) - 1),
        "TCP_USER_TIMEOUT": round(silent_s * 1000),
    }
    options = {getattr(socket, name): value for name, value in tcp.items() if hasattr(socket, name)}
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        options[_TCP_RTO_MAX_MS] = _RETRANSMIT_MS
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options.items():
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
