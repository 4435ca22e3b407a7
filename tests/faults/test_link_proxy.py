"""The proxy that cuts, delays and breaks links, over real sockets: what each end of a connection notices, and when."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support.free_ports import refused_port
from tests.support.link_proxy import OTHERS, LinkProxy
from tests.support.randomness import noise
from tests.support.socket_holder import holder, inode_of
from tests.support.waiting import eventually

HERE, THERE = 1, 2
SILENT_S = 0.15


class EchoServer(socketserver.ThreadingTCPServer):
    """Sends back what it gets; `received` and `ended` tell what has come."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.received = b""
        self.ended = 0

    def handle_error(self, *_: object) -> None:
        """A broken connection is what some tests make."""


class EchoHandler(socketserver.BaseRequestHandler):
    server: EchoServer

    def handle(self) -> None:
        try:
            while piece := self.request.recv(65536):
                self.server.received += piece
                self.request.sendall(piece)
        finally:
            self.server.ended += 1


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def links() -> Iterator[LinkProxy]:
    """This process is node HERE."""
    with LinkProxy(lambda: {HERE: os.getpid()}) as links:
        yield links


@pytest.fixture
def port(links: LinkProxy, server: EchoServer) -> int:
    return links.listen(THERE, server.server_address[1])


@pytest.fixture
def client(port: int) -> Iterator[socket.socket]:
    """A connection from HERE to THERE that has been used."""
    with connect(port) as client:
        assert echo(client, b"first") == b"first"
        yield client


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def echo(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        piece = client.recv(count - len(found))
        if not piece:
            raise EOFError(found)
        found += piece
    return found


def is_silent(client: socket.socket) -> bool:
    """Whether neither bytes nor an end arrive for a while."""
    client.settimeout(SILENT_S)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(10)
    return False


def test_bytes_pass_both_ways_and_so_does_the_end(client: socket.socket, server: EchoServer) -> None:
    data = noise(3_000_000)
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()
    assert receive(client, len(data)) == data
    sending.join()
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    eventually(lambda: server.ended == 1)


def test_a_node_that_is_not_there_refuses(links: LinkProxy) -> None:
    with refused_port() as port:
        address = links.listen(THERE, port)
        with pytest.raises(ConnectionResetError), connect(address) as client:  # `connect` may notice it already
            client.recv(1)


def test_nothing_passes_a_cut_link_until_it_is_healed(
    client: socket.socket, links: LinkProxy, server: EchoServer, port: int
) -> None:
    links.cut(HERE, THERE)
    client.sendall(b"held up")
    with connect(port) as another:
        another.sendall(b"too")
        assert is_silent(client)
        assert is_silent(another)
        assert server.received == b"first"
        links.heal()
        assert receive(client, 7) == b"held up"
        assert receive(another, 3) == b"too"


def test_the_end_of_a_connection_does_not_pass_a_cut_link(
    client: socket.socket, links: LinkProxy, server: EchoServer
) -> None:
    links.cut(HERE, THERE)
    client.close()
    with pytest.raises(AssertionError):
        eventually(lambda: server.ended > 0, timeout=SILENT_S)
    links.heal()
    eventually(lambda: server.ended == 1)


def test_a_link_cut_in_one_direction_lets_the_other_pass(
    client: socket.socket, links: LinkProxy, server: EchoServer
) -> None:
    links.cut(THERE, HERE, one_way=True)
    client.sendall(b"heard")
    eventually(lambda: server.received == b"firstheard")
    assert is_silent(client)
    links.heal()
    assert receive(client, 5) == b"heard"


def test_a_delayed_link_is_late_but_not_narrow(client: socket.socket, links: LinkProxy) -> None:
    links.delay(HERE, THERE, 0.1)
    began = time.monotonic()
    data = noise(10_000_000)  # 150 pieces or more, which one after the other would take 30 s
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()
    assert receive(client, len(data)) == data
    sending.join()
    assert 0.2 <= time.monotonic() - began < 20
    links.heal()

    def echo_is_quick() -> bool:
        began = time.monotonic()
        assert echo(client, b"quick") == b"quick"
        return time.monotonic() - began < 0.1

    eventually(echo_is_quick)


def test_the_opener_of_a_half_open_connection_is_told_nothing(
    client: socket.socket, links: LinkProxy, server: EchoServer, port: int
) -> None:
    assert links.half_open(HERE, THERE) == 1
    eventually(lambda: server.ended == 1)
    client.sendall(b"into the void")
    assert is_silent(client)
    with connect(port) as another:
        assert echo(another, b"new ones work") == b"new ones work"
    links.heal()
    assert is_silent(client)


def test_a_cut_concerns_only_the_nodes_it_names(client: socket.socket, links: LinkProxy, port: int) -> None:
    """Another process connects through the same port."""
    program = (
        f"import socket; s = socket.create_connection(('127.0.0.1', {port}), 10); s.sendall(b'x'); "
        "s.settimeout(float(input())); print(s.recv(1))"
    )

    def other(timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program], input=f"{timeout_s}\n", capture_output=True, text=True, timeout=20
        )

    links.cut(HERE, THERE)
    assert other(10).stdout == "b'x'\n"
    assert is_silent(client)
    links.heal()
    links.cut(OTHERS, THERE)
    assert "TimeoutError" in other(SILENT_S).stderr
    assert echo(client, b"passes") == b"passes"


def test_a_port_of_one_node_needs_no_search(links: LinkProxy, server: EchoServer) -> None:
    port = links.listen(THERE, server.server_address[1], opener="another")
    with connect(port) as client:
        assert echo(client, b"ok") == b"ok"
        links.cut("another", THERE)
        client.sendall(b"held up")
        assert is_silent(client)


def test_the_holder_of_a_connection_is_found_among_processes(server: EchoServer) -> None:
    port: int = server.server_address[1]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        local = connection.getsockname()[1]
        assert inode_of(local, port) == os.fstat(connection.fileno()).st_ino
        assert holder(local, port, {"init": 1, "gone": 2**22 + 1, "this": os.getpid()}) == "this"
        assert holder(local, port, {"init": 1}) is None
    assert holder(local, port + 1, {"this": os.getpid()}) is None
