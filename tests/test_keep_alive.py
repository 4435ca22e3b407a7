"""What the kernel is told about connections to hosts that may vanish. tests/hosts cuts real links."""

from __future__ import annotations

import contextlib
import socket
import sys

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.keep_alive import has_vanished, keep_alive
from tests.support.kafka import Kafka
from tests.support.vanished_peer import vanish
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have other options")

TCP = socket.IPPROTO_TCP


def test_silence_breaks_a_connection_after_the_time_given() -> None:
    with socket.socket() as sock:
        keep_alive(sock, 30.0)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert sock.getsockopt(TCP, socket.TCP_USER_TIMEOUT) == 30_000
        idle, every, count = (
            sock.getsockopt(TCP, option) for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
        assert idle + every * count == 30


def test_a_socket_without_such_options_is_left_as_it_is() -> None:
    one, other = socket.socketpair()
    with one, other:
        keep_alive(one, 30.0)
        one.sendall(b"x")
        assert other.recv(1) == b"x"


def test_a_clients_connection_breaks_with_its_request_time_out(broker: Kafka) -> None:
    host, _, port = broker.bootstrap.partition(",")[0].rpartition(":")
    with (
        BrokerConnection(host, int(port), timeout_s=17.0) as connection,
        socket.socket(fileno=connection.fileno()) as sock,
    ):
        try:
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert sock.getsockopt(TCP, socket.TCP_USER_TIMEOUT) == 17_000
        finally:
            sock.detach()  # it is the connection's


def test_a_host_that_acknowledges_nothing_is_told_from_a_process_that_reads_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as peer:
        ours, _ = server.accept()
        with ours:
            keep_alive(ours, 60.0, reads_late=True)
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
