"""A peer whose packets vanish, without root and without hosts: its kernel drops what comes for one socket.

tests/support/hosts.py cuts the links of whole hosts; this is for tests of one connection.
"""

from __future__ import annotations

import ctypes
import socket
import struct

_SO_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""One instruction of BPF: accept no byte of a packet."""


def vanish(sock: socket.socket) -> None:
    """From now on nothing arrives at `sock`, and nothing that arrives is acknowledged. Linux."""
    program = ctypes.create_string_buffer(_DROP, len(_DROP))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))
