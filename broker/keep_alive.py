"""How soon the kernel gives up a TCP connection whose other host has vanished, so that no packet comes any more.

Called for every socket that a client opens (client/tcp_connect.py); brokers may call it for those that they accept.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

_IDLE_S: Final = 5
"""A connection without traffic for so long is asked for a sign of life, and then every `_PROBE_EVERY_S`."""
_PROBE_EVERY_S: Final = 5
_RETRANSMIT_MS: Final = 2000
"""Longest pause between two attempts to get a packet through: so soon a connection goes on when a cut is over. The
kernel doubles the pause up to two minutes otherwise."""

_TCP_RTO_MAX_MS: Final = 44
"""Linux 6.15 and later; Python has no name for it."""


_TCP_INFO: Final = struct.Struct("=3xB20xI28xI")
"""Of Linux's `struct tcp_info`: unanswered probes, unacknowledged packets, ms since the last acknowledgement."""


def keep_alive(sock: socket.socket, silent_s: float, *, reads_late: bool = False) -> None:
    """Break `sock` when the other host has acknowledged nothing for `silent_s` seconds, whether there was data or not.

    The other host's kernel acknowledges, so a busy process is no silence; but with TCP_USER_TIMEOUT Linux also breaks a
    connection whose other end has read nothing for `silent_s` while its buffers were full. Choose a time in which a
    live process reads something. With `reads_late` only a connection without data to send is broken; `has_vanished`
    finds the others. What the operating system does not have is left out.
    """
    wanted = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", None), _IDLE_S),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", None), _PROBE_EVERY_S),
        (
            socket.IPPROTO_TCP,
            getattr(socket, "TCP_KEEPCNT", None),
            max(1, round((silent_s - _IDLE_S) / _PROBE_EVERY_S)),
        ),
        (socket.IPPROTO_TCP, None if reads_late else getattr(socket, "TCP_USER_TIMEOUT", None), round(silent_s * 1000)),
        (socket.IPPROTO_TCP, _TCP_RTO_MAX_MS if hasattr(socket, "TCP_USER_TIMEOUT") else None, _RETRANSMIT_MS),
    )
    for level, option, value in wanted:
        if option is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(level, option, value)


def has_vanished(sock: socket.socket, silent_s: float) -> bool:
    """Whether the other host has acknowledged nothing for so long, though it was sent something.

    Its kernel acknowledges what its process does not read, so this tells a host that is gone from a slow reader. False
    where the operating system does not say.
    """
    if not hasattr(socket, "TCP_INFO"):
        return False
    try:
        probes, unacknowledged, silent_ms = _TCP_INFO.unpack(
            sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        )
    except (OSError, struct.error):
        return False
    return bool(unacknowledged or probes > 1) and silent_ms >= silent_s * 1000
