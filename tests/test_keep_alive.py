"""What the kernel is told about connections to hosts that may vanish. tests/hosts cuts real links."""

from __future__ import annotations

import socket
import sys

import pytest

from broker.client.broker_connection import BrokerConnection
from broker.keep_alive import keep_alive
from tests.support.kafka import Kafka

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
