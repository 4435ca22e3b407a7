"""A client's host that is gone is told from a client that only reads late. tests/hosts cuts real links."""

from __future__ import annotations

import contextlib
import socket
import sys

import pytest

from broker.net.client_host import has_vanished, watch_host
from tests.support.vanished_peer import vanish
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what was acknowledged")

TCP = socket.IPPROTO_TCP


def test_a_host_that_acknowledges_nothing_is_told_from_a_process_that_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        ours, _ = server.accept()
        with ours:
            watch_host(ours)
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert ours.getsockopt(TCP, socket.TCP_USER_TIMEOUT) == 0, "a slow reader would be cut off"
            ours.sendall(b"x")
            eventually(lambda: not has_vanished(ours, 0.0))
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 16))
            assert not has_vanished(ours, 0.3)
            with pytest.raises(AssertionError):
                eventually(lambda: has_vanished(ours, 0.3), timeout=1)
            vanish(peer)
            eventually(lambda: has_vanished(ours, 0.3))


def test_a_host_that_vanished_before_it_acknowledged_is_noticed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        ours, _ = server.accept()
        with ours:
            vanish(peer)
            assert not has_vanished(ours, 0.0), "nothing was sent"
            ours.sendall(b"x")
            eventually(lambda: has_vanished(ours, 0.3))
