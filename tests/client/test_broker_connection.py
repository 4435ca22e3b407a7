"""A connection: choosing versions, the handshake, requests one by one and pipelined, and peers that misbehave."""

from __future__ import annotations

import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from broker.client import broker_connection
from broker.client.broker_connection import HIGHEST_USED, BrokerConnection, choose_version, usable_versions
from broker.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ErrorCode,
    ProtocolError,
    RequestTimedOut,
    UnsupportedVersion,
)
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_request, encode_response, known_versions
from tests.support.free_ports import refused_port
from tests.support.kafka import Kafka
from tests.support.tcp_peer import TcpPeer, read_frame, send_frame


def test_the_highest_version_both_sides_know_is_chosen() -> None:
    assert choose_version(ApiKey.METADATA, (0, 9)) == 9
    assert choose_version(ApiKey.METADATA, (0, 99)) == HIGHEST_USED[ApiKey.METADATA]


def test_a_request_may_ask_for_less() -> None:
    assert choose_version(ApiKey.FETCH, (4, 16), at_most=12) == 12


def test_a_broker_without_the_api_is_named_as_the_reason() -> None:
    with pytest.raises(UnsupportedVersion, match="does not serve INIT_PRODUCER_ID"):
        choose_version(ApiKey.INIT_PRODUCER_ID, None)


@pytest.mark.parametrize("served", [(0, 2), (17, 18)])
def test_ranges_that_do_not_meet_are_both_named(served: tuple[int, int]) -> None:
    with pytest.raises(UnsupportedVersion, match=rf"serves FETCH versions {served[0]} to {served[1]}.* needs 4 to 16"):
        choose_version(ApiKey.FETCH, served)


@pytest.mark.parametrize("api", HIGHEST_USED)
def test_every_cap_is_a_version_there_is(api: ApiKey) -> None:
    lowest, highest = known_versions(api)
    assert lowest <= HIGHEST_USED[api] <= highest
    assert usable_versions(api) == (lowest, HIGHEST_USED[api])


ALL_TOPICS = {"topics": None}
ANY = [{"api_key": int(api), "min_version": 0, "max_version": 99} for api in ApiKey]


@pytest.fixture
def connection(broker: Kafka):  # type: ignore[no-untyped-def]
    host, _, port = broker.bootstrap.partition(",")[0].rpartition(":")
    with BrokerConnection(host, int(port)) as opened:
        yield opened


def connect(peer: TcpPeer, timeout_s: float = 60.0) -> BrokerConnection:
    return BrokerConnection("127.0.0.1", peer.port, timeout_s=timeout_s)


def shake_hands(sock: socket.socket) -> None:
    """Serve every API in every version."""
    request = decode_request(read_frame(sock))
    sock.sendall(encode_response(request, {"api_keys": ANY}))


def test_a_request_is_answered_in_a_negotiated_version(connection: BrokerConnection) -> None:
    body = connection.request(ApiKey.METADATA, ALL_TOPICS)
    assert connection.port in [broker.port for broker in body.brokers]
    assert connection.version(ApiKey.METADATA) >= 12
    assert connection.version(ApiKey.METADATA, at_most=4) == 4


def test_requests_sent_ahead_are_answered_in_order(connection: BrokerConnection) -> None:
    ids = [connection.send(ApiKey.METADATA, ALL_TOPICS) for _ in range(20)]
    assert connection.in_flight == 20
    assert [connection.receive()[0] for _ in ids] == ids
    assert connection.in_flight == 0


def test_threads_may_share_a_connection_for_requests(connection: BrokerConnection) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: connection.request(ApiKey.METADATA, ALL_TOPICS), range(80)))
    assert all(connection.port in [broker.port for broker in answer.brokers] for answer in answers)


def test_a_reply_may_come_in_the_callers_own_time(connection: BrokerConnection) -> None:
    assert not connection.wait_readable(0)
    connection.send(ApiKey.METADATA, {"topics": []})  # a small reply, which comes in one piece
    assert connection.wait_readable(60)
    connection.receive(timeout_s=0)


def test_nobody_listening_is_said_with_the_address() -> None:
    with (
        refused_port() as port,
        pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}: .*refused") as raised,
    ):
        BrokerConnection("127.0.0.1", port)
    assert raised.value.retriable


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70, "bad\0host"])
def test_a_host_that_cannot_be_found_is_a_failed_connection(host: str) -> None:
    with pytest.raises(ConnectionFailed, match="no connection to"):
        BrokerConnection(host, 9092, connect_timeout_s=5)


def test_an_old_broker_is_asked_again_in_version_0() -> None:
    """Before KIP-511 a broker answers an ApiVersions version it lacks in version 0, with an error and no ranges."""

    def old_broker(sock: socket.socket) -> None:
        first = decode_request(read_frame(sock))
        assert first.version == 3
        unsupported = {"error_code": ErrorCode.unsupported_version, "api_keys": []}
        sock.sendall(encode_response(first._replace(version=0), unsupported))
        second = decode_request(read_frame(sock))
        assert second.version == 0
        ranges = [{"api_key": ApiKey.METADATA, "min_version": 0, "max_version": 1}]
        sock.sendall(encode_response(second, {"api_keys": ranges}))

    with TcpPeer(old_broker) as peer, connect(peer) as connection:
        assert connection.version(ApiKey.METADATA) == 1
        with pytest.raises(UnsupportedVersion, match=f"127.0.0.1:{peer.port}: the broker does not serve FETCH"):
            connection.version(ApiKey.FETCH)


def test_a_broker_that_says_nothing_times_out_and_the_connection_is_closed() -> None:
    def silent(sock: socket.socket) -> None:
        shake_hands(sock)

    with TcpPeer(silent) as peer:
        connection = connect(peer)
        started = time.monotonic()
        with pytest.raises(RequestTimedOut, match=f"127.0.0.1:{peer.port} did not answer METADATA in time"):
            connection.request(ApiKey.METADATA, ALL_TOPICS, timeout_s=0.1)
        assert time.monotonic() - started < 10
        assert connection.closed
        with pytest.raises(ConnectionFailed, match="is closed"):
            connection.request(ApiKey.METADATA, ALL_TOPICS)


def test_a_slow_trickle_of_bytes_does_not_put_the_deadline_off() -> None:
    done = threading.Event()

    def trickle(sock: socket.socket) -> None:
        shake_hands(sock)
        read_frame(sock)
        sock.sendall((1_000_000).to_bytes(4, "big"))
        while not done.wait(0.02):
            sock.sendall(b"x")

    with TcpPeer(trickle) as peer:
        connection = connect(peer)
        started = time.monotonic()
        with pytest.raises(RequestTimedOut):
            connection.request(ApiKey.METADATA, ALL_TOPICS, timeout_s=0.2)
        assert time.monotonic() - started < 10
        done.set()


def test_signals_do_not_put_the_deadline_of_a_large_reply_off() -> None:
    done, gave_up, waiting = threading.Event(), threading.Event(), threading.get_ident()

    def begin(sock: socket.socket) -> None:
        shake_hands(sock)
        read_frame(sock)
        sock.sendall((1_000_000).to_bytes(4, "big") + b"begun")
        for _ in range(400):
            if done.wait(0.02):
                return
            signal.pthread_kill(waiting, signal.SIGUSR1)
        gave_up.set()

    had = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with TcpPeer(begin) as peer:
            connection = connect(peer)
            with pytest.raises(RequestTimedOut):
                connection.request(ApiKey.METADATA, ALL_TOPICS, timeout_s=1)
            assert not gave_up.is_set()
            done.set()
    finally:
        done.set()
        signal.signal(signal.SIGUSR1, had)


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x40half a frame", b"\0\x40\0\0half of megabytes"])
def test_a_connection_cut_before_the_reply_has_failed(sent: bytes) -> None:
    def cut(sock: socket.socket) -> None:
        shake_hands(sock)
        read_frame(sock)
        sock.sendall(sent)
        sock.close()

    with TcpPeer(cut) as peer:
        connection = connect(peer)
        with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{peer.port} closed the connection before it answered"):
            connection.request(ApiKey.METADATA, ALL_TOPICS)
        assert connection.closed


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1x"])
def test_a_port_that_speaks_something_else_is_guessed_to_be_no_broker(greeting: bytes) -> None:
    def other(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(greeting)

    with TcpPeer(other) as peer, pytest.raises(ProtocolError, match="is this a Kafka broker"):
        connect(peer)


def test_a_port_that_answers_with_a_tls_alert_is_told_apart() -> None:
    def tls(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(b"\x15\x03\x03\x00\x02\x02\x46")

    with TcpPeer(tls) as peer, pytest.raises(AuthenticationFailed, match=r"speaks TLS: set security\.protocol=SSL"):
        connect(peer)


def test_a_reply_to_another_request_is_not_taken_for_ours() -> None:
    def confused(sock: socket.socket) -> None:
        shake_hands(sock)
        request = decode_request(read_frame(sock))
        sock.sendall(encode_response(request._replace(correlation_id=request.correlation_id + 1), {}))

    with TcpPeer(confused) as peer:
        connection = connect(peer)
        with pytest.raises(ProtocolError, match="the reply to request 1 came as number 2"):
            connection.request(ApiKey.METADATA, ALL_TOPICS)
        assert connection.closed


def test_a_reply_that_cannot_be_read_names_the_broker() -> None:
    def gibberish(sock: socket.socket) -> None:
        shake_hands(sock)
        request = decode_request(read_frame(sock))
        send_frame(sock, request.correlation_id.to_bytes(4, "big") + b"\xff" * 9)

    with (
        TcpPeer(gibberish) as peer,
        connect(peer) as connection,
        pytest.raises(ProtocolError, match=f"127.0.0.1:{peer.port}: METADATA response version"),
    ):
        connection.request(ApiKey.METADATA, ALL_TOPICS)


def test_a_handshake_that_is_refused_fails_the_connection_and_closes_its_socket() -> None:
    closed = threading.Event()

    def refuse(sock: socket.socket) -> None:
        request: Request = decode_request(read_frame(sock))
        sock.sendall(encode_response(request, {"error_code": ErrorCode.cluster_authorization_failed}))
        assert sock.recv(1) == b""
        closed.set()

    with TcpPeer(refuse) as peer:
        with pytest.raises(Exception, match="CLUSTER_AUTHORIZATION_FAILED"):
            connect(peer)
        assert closed.wait(60)


def test_a_connection_the_broker_hung_up_while_idle_is_not_usable() -> None:
    def hang_up(sock: socket.socket) -> None:
        shake_hands(sock)
        sock.close()

    with TcpPeer(hang_up) as peer, connect(peer) as connection:
        assert connection.wait_readable(60)  # the end of the stream has come
        assert not connection.usable


def test_an_open_connection_is_usable_also_with_a_reply_under_way(connection: BrokerConnection) -> None:
    assert connection.usable
    connection.send(ApiKey.METADATA, ALL_TOPICS)
    assert connection.usable
    connection.receive()


def test_a_login_is_renewed_by_the_time_at_which_it_was_asked_for(
    connection: BrokerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker hangs up by its own clock, however late its answer came."""
    now = time.monotonic()

    def log_in_late(*_: object) -> int:
        nonlocal now
        now += 40
        return 100_000

    monkeypatch.setattr(broker_connection, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(broker_connection, "log_in", log_in_late)
    monkeypatch.setattr(connection, "_login", object())
    connection.log_in()
    now += 44
    assert not connection.login_is_old
    now += 2
    assert connection.login_is_old


def test_a_peer_that_takes_no_bytes_times_out() -> None:
    with TcpPeer(shake_hands) as peer:
        connection = connect(peer)
        connection.timeout_s = 1.0  # from now on: a busy machine may be slow to shake hands
        topics = {"topics": [{"name": "x" * 30_000} for _ in range(500)]}
        with pytest.raises(RequestTimedOut, match="took no more bytes for"):
            connection.send(ApiKey.METADATA, topics)


def test_close_wakes_a_thread_that_waits_for_a_reply() -> None:
    with TcpPeer(shake_hands) as peer, ThreadPoolExecutor(1) as pool:
        connection = connect(peer)
        waiting = pool.submit(connection.request, ApiKey.METADATA, ALL_TOPICS)
        while not connection.in_flight:
            assert not waiting.done()
        connection.close()
        with pytest.raises(ConnectionFailed):
            waiting.result(50)


def test_close_wakes_a_thread_that_waits_for_the_rest_of_a_large_reply() -> None:
    begun = threading.Event()

    def begin(sock: socket.socket) -> None:
        shake_hands(sock)
        read_frame(sock)
        sock.sendall((4 << 20).to_bytes(4, "big") + bytes(1 << 20))
        begun.set()
        read_frame(sock)

    with TcpPeer(begin) as peer, ThreadPoolExecutor(1) as pool:
        connection = connect(peer)
        waiting = pool.submit(connection.request, ApiKey.METADATA, ALL_TOPICS)
        assert begun.wait(60)
        connection.close()
        with pytest.raises(ConnectionFailed):
            waiting.result(50)


@pytest.mark.parametrize("size", [6, 255 << 10, 256 << 10, 5 << 20])
def test_a_reply_that_comes_in_pieces_is_whole(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"z" * (size % 256)

    def answer(sock: socket.socket) -> None:
        shake_hands(sock)
        request = decode_request(read_frame(sock))
        reply = request.correlation_id.to_bytes(4, "big") + body
        rest = memoryview(len(reply).to_bytes(4, "big") + reply)
        while rest:
            rest = rest[sock.send(rest[:100_001]) :]

    with TcpPeer(answer) as peer, connect(peer) as connection:
        connection.send(ApiKey.METADATA, ALL_TOPICS)
        assert connection.receive_reply().payload[4:] == body
        assert not connection.closed


def test_receiving_without_a_request_is_refused(connection: BrokerConnection) -> None:
    with pytest.raises(ProtocolError, match="no request is waiting"):
        connection.receive()


def test_close_may_be_called_again(connection: BrokerConnection) -> None:
    connection.close()
    connection.close()
    assert connection.closed
