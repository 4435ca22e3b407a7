"""Which process holds the other end of a local TCP connection: the kernel is asked for one socket (sock_diag(7)).

To read the table of all sockets (/proc/net/tcp, psutil) takes 10 to 90 ms on a machine that runs many tests, and
connections to a dead broker come faster than that.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping
from typing import TypeVar

Name = TypeVar("Name")

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_ASKED = struct.Struct("=BBBBI")
_ANY_INTERFACE, _ANY_COOKIE = 0, 0xFFFFFFFF
_LOOPBACK = socket.inet_aton("127.0.0.1").ljust(16, b"\0")
_INODE_AT = _HEADER.size + 4 + 48 + 16
"""Behind family, state, addresses, and the queues' sizes of struct inet_diag_msg."""


def inode_of(port: int, peer: int) -> int:
    """The inode of the socket 127.0.0.1:`port` that is connected to 127.0.0.1:`peer`; 0 if there is none."""
    addresses = struct.pack(">HH", port, peer) + 2 * _LOOPBACK
    interface = struct.pack("=III", _ANY_INTERFACE, _ANY_COOKIE, _ANY_COOKIE)
    body = _ASKED.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 0, 0xFFFFFFFF) + addresses + interface
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        answer = kernel.recv(4096)
    if _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return 0
    inode: int = struct.unpack_from("=I", answer, _INODE_AT)[0]
    return inode


def holder(port: int, peer: int, pids: Mapping[Name, int]) -> Name | None:
    """Whose process has that socket open; None if nobody among `pids` does."""
    wanted = f"socket:[{inode_of(port, peer)}]"
    for name, pid in pids.items():
        directory = f"/proc/{pid}/fd"
        try:
            files = os.listdir(directory)
        except OSError:  # it has just ended
            continue
        if any(_link(f"{directory}/{file}") == wanted for file in files):
            return name
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""
