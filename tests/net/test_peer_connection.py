"""A connection between brokers: whole responses of any size, reconnects, and what a broken peer does to a request."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from broker.errors import ConnectionFailed, ProtocolError, PykafkaError, RequestTimedOut
from broker.net.peer_connection import MOST_SMALL, SMALL_BYTES, PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import decode_request, encode_response
from tests.support.free_ports import refused_port
from tests.support.tcp_peer import Script, TcpPeer, read_frame, send_frame
from tests.support.vanished_peer import vanish

T = TypeVar("T")


def asked(*scripts: Script, act: Callable[[PeerConnection], Awaitable[T]], timeout_s: float = 20.0) -> T:
    """What `act` returns on a connection to a peer with these scripts."""

    async def main(port: int) -> T:
        peer = PeerConnection("127.0.0.1", port, client_id="test", timeout_s=timeout_s, max_response_bytes=1 << 24)
        try:
            return await act(peer)
        finally:
            peer.close()

    with TcpPeer(*scripts) as server:
        return asyncio.run(main(server.port))


def frame() -> bytearray:
    """A request of which only the correlation id counts."""
    return bytearray(b"\0\0\0\x08\0\x01\0\x0d\0\0\0\0")


def echo(size: int) -> Script:
    """Answers every request with its correlation id and `size` bytes."""

    def script(sock: socket.socket) -> None:
        while True:
            send_frame(sock, read_frame(sock)[4:8] + bytes(range(256)) * (size // 256))

    return script


@pytest.mark.parametrize("size", [0, 256, SMALL_BYTES - 256, SMALL_BYTES, 5 << 20])
def test_responses_of_any_size_arrive_whole(size: int) -> None:
    async def act(peer: PeerConnection) -> list[bytes]:
        return [bytes(await peer.fetch(frame())) for _ in range(3)]

    answers = asked(echo(size), act=act)
    assert [answer[:4] for answer in answers] == [number.to_bytes(4, "big") for number in (1, 2, 3)]
    assert all(answer[4:] == bytes(range(256)) * (size // 256) for answer in answers)


def test_requests_follow_each_other_while_responses_are_taken() -> None:
    async def act(peer: PeerConnection) -> tuple[list[bytes], bytes, bytes]:
        taken: list[bytes] = []

        def take(payload: memoryview) -> bytearray | None:
            if len(taken) == 3:
                return None
            taken.append(bytes(payload[:4]))
            return frame()

        left = bytes((await peer.fetch(frame(), take))[:4])
        return taken, left, bytes((await peer.fetch(frame()))[:4])

    taken, left, after = asked(echo(256), act=act)
    assert [int.from_bytes(number, "big") for number in (*taken, left, after)] == [1, 2, 3, 4, 5]


def test_what_goes_wrong_while_responses_are_taken_ends_the_request_and_the_connection() -> None:
    def once(sock: socket.socket) -> None:
        send_frame(sock, read_frame(sock)[4:8])
        read_frame(sock)
        raise ConnectionResetError

    async def act(peer: PeerConnection) -> str:
        with pytest.raises(ConnectionFailed):
            await peer.fetch(frame(), lambda payload: frame())
        return repr(peer)

    async def fail(peer: PeerConnection) -> str:
        def take(payload: memoryview) -> bytearray | None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await peer.fetch(frame(), take)
        return repr(peer)

    assert asked(once, act=act).endswith("closed>")
    assert asked(echo(0), act=fail).endswith("closed>")


def test_the_large_buffer_is_used_again_and_freed_after_many_small_responses() -> None:
    sizes = [1 << 20, 1 << 20, *[256] * (MOST_SMALL + 2)]

    def script(sock: socket.socket) -> None:
        for size in sizes:
            send_frame(sock, read_frame(sock)[4:8] + bytes(size))

    async def act(peer: PeerConnection) -> tuple[bool, int, int]:
        first = (await peer.fetch(frame())).obj
        same = (await peer.fetch(frame())).obj is first
        assert peer._stream is not None
        held = len(peer._stream._large)
        for _ in sizes[2:]:
            await peer.fetch(frame())
        return same, held, len(peer._stream._large)

    same, held, after = asked(script, act=act)
    assert same
    assert held > 1 << 20
    assert after == 0


def test_a_request_is_encoded_and_its_response_decoded() -> None:
    def script(sock: socket.socket) -> None:
        request = decode_request(read_frame(sock))
        assert request.client_id == "test"
        topics = [{"topic": request.body.topics[0].topic, "partitions": [{"leader_epoch": 3, "end_offset": 7}]}]
        sock.sendall(encode_response(request, {"topics": topics}))

    async def act(peer: PeerConnection) -> int:
        partitions = [{"partition": 0, "current_leader_epoch": 4, "leader_epoch": 3}]
        fields = {"replica_id": 1, "topics": [{"topic": "t", "partitions": partitions}]}
        body = await peer.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields)
        return int(body.topics[0].partitions[0].end_offset)

    assert asked(script, act=act) == 7


def closes(sock: socket.socket) -> None:
    read_frame(sock)
    sock.close()


def half(sock: socket.socket) -> None:
    """Announces a hundred bytes and sends ten."""
    sock.sendall(b"\0\0\0\x64" + read_frame(sock)[4:8] + b"x" * 6)
    sock.close()


def wrong_number(sock: socket.socket) -> None:
    read_frame(sock)
    send_frame(sock, b"\0\0\x03\xe7")


def too_long(sock: socket.socket) -> None:
    read_frame(sock)
    sock.sendall(b"\x7f\xff\xff\xff")


def two_answers(sock: socket.socket) -> None:
    answer = b"\0\0\0\x04" + read_frame(sock)[4:8]
    sock.sendall(answer + answer)


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (closes, ConnectionFailed, "closed the connection"),
        (half, ConnectionFailed, "closed the connection"),
        (wrong_number, ProtocolError, "came as number 999"),
        (too_long, ProtocolError, "announced a response of 2147483647 bytes"),
        (two_answers, ProtocolError, "8 bytes after its response"),
    ],
)
def test_a_request_ends_with_the_connection_and_the_next_one_connects_again(
    script: Script, error: type[PykafkaError], text: str
) -> None:
    async def act(peer: PeerConnection) -> bytes:
        with pytest.raises(error, match=text):
            await peer.fetch(frame())
        return bytes(await peer.fetch(frame()))

    assert asked(script, echo(0), act=act) == b"\0\0\0\x02"


def test_the_rest_of_a_request_that_was_given_up_never_arrives() -> None:
    """A marker that arrives after it was sent again would end another transaction."""
    given_up, ended, ends = threading.Event(), threading.Event(), []

    def late(sock: socket.socket) -> None:
        given_up.wait(60)
        try:
            while sock.recv(1 << 20):
                pass
            ends.append("everything that was sent")
        except ConnectionResetError:
            ends.append("reset")
        ended.set()

    async def act(peer: PeerConnection) -> None:
        with pytest.raises(RequestTimedOut):
            await peer.fetch(frame() + bytes(8 << 20))
        await asyncio.sleep(0)  # the transport closes its socket
        given_up.set()
        await asyncio.to_thread(ended.wait, 60)

    asked(late, act=act, timeout_s=1.0)
    assert ends == ["reset"]


def test_a_silent_peer_times_out_and_a_slow_one_does_not() -> None:
    go_on = threading.Event()  # never set: to wait is all it is for

    def slow(sock: socket.socket) -> None:
        answer = b"\0\0\0\x08" + read_frame(sock)[4:8] + b"1234"
        for place in range(len(answer)):
            sock.sendall(answer[place : place + 1])
            go_on.wait(0.3)  # all of it takes longer than the time-out
        read_frame(sock)

    async def act(peer: PeerConnection) -> bytes:
        answer = bytes(await peer.fetch(frame()))
        with pytest.raises(RequestTimedOut, match=r"sent nothing for 3 s"):
            await peer.fetch(frame())
        return answer[4:]

    assert asked(slow, act=act, timeout_s=3.0) == b"1234"


def test_close_ends_a_request_that_waits() -> None:
    async def act(peer: PeerConnection) -> bool:
        waiting = asyncio.ensure_future(peer.fetch(frame()))
        while not peer.is_waiting:
            await asyncio.sleep(0)
        peer.close()
        with pytest.raises(ConnectionFailed, match="was closed"):
            await waiting
        return peer.is_waiting

    assert asked(read_frame, act=act) is False  # type: ignore[arg-type]


def test_close_ends_a_request_whose_socket_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TLS, before the protocol hears that the connection is lost."""

    async def act(peer: PeerConnection) -> None:
        waiting = asyncio.ensure_future(peer.fetch(frame()))
        while not peer.is_waiting:
            await asyncio.sleep(0)
        stream = peer._stream
        assert stream is not None
        monkeypatch.setattr(type(stream._transport), "get_extra_info", lambda *_: None)
        peer.close()
        monkeypatch.undo()
        with pytest.raises(ConnectionFailed, match="was closed"):
            await waiting

    asked(read_frame, act=act)  # type: ignore[arg-type]


def test_a_cancelled_request_leaves_no_answer_for_the_next_one() -> None:
    async def act(peer: PeerConnection) -> bytes:
        waiting = asyncio.ensure_future(peer.fetch(frame()))
        while not peer.is_waiting:
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        return bytes(await peer.fetch(frame()))

    assert asked(read_frame, echo(0), act=act) == b"\0\0\0\x02"  # type: ignore[arg-type]


def test_a_broker_that_is_not_there_is_named() -> None:
    async def act(port: int) -> None:
        with pytest.raises(ConnectionFailed, match=f"no connection to 127.0.0.1:{port}"):
            await PeerConnection("127.0.0.1", port, client_id="test").fetch(frame())

    with refused_port() as port:
        asyncio.run(act(port))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such time-out")
def test_a_host_that_vanished_is_given_up_before_the_time_out_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.net.peer_connection.PEER_SILENT_S", 1.0)

    def vanishing(sock: socket.socket) -> None:
        send_frame(sock, read_frame(sock)[4:8])
        vanish(sock)

    async def act(peer: PeerConnection) -> float:
        await peer.fetch(frame())
        started = time.monotonic()
        with pytest.raises(ConnectionFailed):
            await peer.fetch(frame())
        return time.monotonic() - started

    assert asked(vanishing, act=act) < 25  # of 30; the system looks when it sends again, seldomer each time
