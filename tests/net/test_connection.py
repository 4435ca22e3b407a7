"""Connections over real sockets: order, pipelining, large frames, sendfile, limits, and what closes a connection."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.net import response
from broker.net.listener import ListenerSet
from broker.net.response import PROBED_BYTES
from broker.net.router import Client, Router
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, decode_response, encode_request
from tests.support.listening import answer_with, closed_by_peer, read_frame, request, serving
from tests.support.randomness import noise


class Slice(NamedTuple):
    """A file range, as the log hands out."""

    file: Any
    position: int
    length: int


@pytest.mark.parametrize("size", [10, 250_000, 300_000, 3_000_000])
def test_a_request_of_any_size_arrives_whole_however_it_is_cut(size: int) -> None:
    async def main() -> tuple[int, int]:
        seen = []

        def handle(request: Request, client: Client) -> Any:
            seen.append(sum(len(topic.name) for topic in request.body.topics))
            return answer_with("x")

        async with serving(handle) as (host, port, _):
            reader, writer = await asyncio.open_connection(host, port)
            names = [{"name": "n" * 1000} for _ in range(size // 1000 + 1)]
            frame = encode_request(ApiKey.METADATA, 4, 1, "t", {"topics": names}) + request(2)
            for cut in range(0, len(frame), 77_777):
                writer.write(frame[cut : cut + 77_777])
                await writer.drain()
            await read_frame(reader)
            await read_frame(reader)
            writer.close()
            return seen[0], len(names) * 1000

    got, sent = asyncio.run(main())
    assert got == sent


def test_file_ranges_are_sent_between_bytes_to_a_reader_that_is_slow(tmp_path: Path) -> None:
    data = noise(9_000_000)
    (tmp_path / "segment").write_bytes(data)

    async def main() -> bytes:
        with (tmp_path / "segment").open("rb", buffering=0) as file:

            def handle(request: Request, client: Client) -> Any:
                return [struct.pack(">i", len(data) + 6) + b"abc", Slice(file, 0, len(data)), b"xyz"]

            async with serving(handle) as (host, port, _):
                reader, writer = await asyncio.open_connection(host, port, limit=4096)
                writer.write(request(1) + request(2))
                frames = [await read_frame(reader), await read_frame(reader)]
                writer.close()
                assert frames[0] == frames[1]
                return frames[0]

    assert asyncio.run(main()) == b"abc" + data + b"xyz"


def test_a_file_range_that_is_not_in_memory_waits_for_the_disk_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = noise(3 * PROBED_BYTES + 1000)
    (tmp_path / "segment").write_bytes(data)
    gate = threading.Event()
    cached: set[int] = set()
    brought: list[int] = []

    def is_cached(descriptor: int, position: int, length: int) -> bool:
        return position // PROBED_BYTES in cached

    def warm(part: Any, length: int) -> None:
        assert threading.current_thread() is not threading.main_thread()
        assert gate.wait(30)
        brought.append(part.position)
        cached.add(part.position // PROBED_BYTES)

    monkeypatch.setattr(response, "is_cached", is_cached)
    monkeypatch.setattr(response, "warm", warm)

    async def main() -> bytes:
        with (tmp_path / "segment").open("rb", buffering=0) as file:

            def handle(request: Request, client: Client) -> Any:
                if request.correlation_id == 1:
                    return [struct.pack(">i", len(data)), Slice(file, 0, len(data))]
                return answer_with("other")

            async with serving(handle) as (host, port, _):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(request(1))
                other_reader, other = await asyncio.open_connection(host, port)
                other.write(request(2))
                assert await read_frame(other_reader)  # served while the disk is waited for
                gate.set()
                frame = await read_frame(reader)
                writer.close()
                other.close()
                return frame

    assert asyncio.run(main()) == data
    assert brought[0] == 0
    assert {position // PROBED_BYTES for position in brought} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "frame",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 0),
        struct.pack(">i", 10_001) + b"x" * 100,
        struct.pack(">i", 4) + b"abcd",
        struct.pack(">ihhi", 8, 999, 0, 1),
        struct.pack(">ihhi", 8, 3, 99, 1),
        struct.pack(">ihhi", 10, 3, 4, 1) + b"\xff\x00",
    ],
    ids=["negative", "empty", "too-large", "no-header", "unknown-api", "unknown-version", "malformed"],
)
def test_a_malformed_frame_closes_its_connection_only(frame: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> tuple[bool, int]:
        async with serving(lambda r, c: answer_with("x"), socket_request_max_bytes=10_000) as (host, port, _):
            good_reader, good = await asyncio.open_connection(host, port)
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(frame)
            closed = await closed_by_peer(reader)
            writer.close()
            good.write(request(5))
            correlation_id, _ = decode_response(ApiKey.METADATA, 4, await read_frame(good_reader))
            good.close()
            return closed, correlation_id

    assert asyncio.run(main()) == (True, 5)
    assert "closing the connection of 127.0.0.1" in caplog.text


def test_a_failing_handler_closes_the_connection_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> bool:
        def handle(request: Request, client: Client) -> Any:
            raise RuntimeError("boom")

        async with serving(handle) as (host, port, _):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request(1))
            closed = await closed_by_peer(reader)
            writer.close()
            return closed

    assert asyncio.run(main())
    assert "boom" in caplog.text


@pytest.mark.parametrize("ended_by", ["peer", "broker"])
def test_a_connection_lost_in_the_middle_of_a_response_ends_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ended_by: str
) -> None:
    """The peer reads nothing: some of the response lies in the socket's buffers, the rest waits to be sent."""
    (tmp_path / "segment").write_bytes(bytes(20_000_000))

    async def main() -> int:
        with (tmp_path / "segment").open("rb", buffering=0) as file:

            def handle(request: Request, client: Client) -> Any:
                return [bytes(5_000_000), Slice(file, 0, 20_000_000)]

            async with serving(handle) as (host, port, listeners):
                for _ in range(5):
                    sock = socket.create_connection((host, port))
                    sock.sendall(request(1))
                    while not any(c._writer.sending for c in listeners._connections):
                        await asyncio.sleep(0.001)
                    (connection,) = listeners._connections
                    if ended_by == "peer":
                        sock.close()
                    else:
                        connection.abort("test")
                    while listeners.connection_count:
                        await asyncio.sleep(0.001)
                    sock.close()
                await asyncio.sleep(0)
                return len([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])

    assert asyncio.run(main()) == 0
    assert caplog.records == []


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listeners = ListenerSet(BrokerConfig(listeners=(f"PLAINTEXT://127.0.0.1:{port}",)))
        with pytest.raises(Exception, match=f"listeners=PLAINTEXT://127.0.0.1:{port}.*in use"):
            listeners.bind()


def test_a_port_that_is_taken_behind_our_back_is_named() -> None:
    """Two sockets may be bound to a port until one of them listens."""

    async def main() -> None:
        listeners = ListenerSet(BrokerConfig(listeners=("PLAINTEXT://127.0.0.1:0",)))
        (bound,) = listeners.bind()
        with socket.socket() as rival:
            rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            rival.bind(("127.0.0.1", bound.port))
            rival.listen()
            try:
                with pytest.raises(ConfigError, match=f"listeners=PLAINTEXT://127.0.0.1:{bound.port}: .*in use"):
                    await listeners.serve(Router([]))
            finally:
                await listeners.close()

    asyncio.run(main())


def test_silent_connections_are_closed_but_waiting_ones_are_not() -> None:
    async def main() -> tuple[int, bool]:
        gate = asyncio.Event()

        async def wait() -> dict[str, Any]:
            await gate.wait()
            return answer_with("x")

        async with serving(lambda r, c: wait(), connections_max_idle_ms=1) as (host, port, listeners):
            idle_reader, idle = await asyncio.open_connection(host, port)
            reader, waiting = await asyncio.open_connection(host, port)
            waiting.write(request(1))
            while not any(c.waiting for c in listeners._connections):
                await asyncio.sleep(0)
            await asyncio.sleep(0.005)  # longer than the idle limit; nothing is waited for
            closed = listeners.close_idle()
            assert await closed_by_peer(idle_reader)
            gate.set()
            await read_frame(reader)
            idle.close()
            waiting.close()
            return closed, True

    assert asyncio.run(main()) == (1, True)


def test_a_response_that_nobody_takes_counts_as_idle(tmp_path: Path) -> None:
    (tmp_path / "segment").write_bytes(bytes(20_000_000))

    async def main() -> int:
        with (tmp_path / "segment").open("rb", buffering=0) as file:

            def handle(request: Request, client: Client) -> Any:
                return [Slice(file, 0, 20_000_000)]

            async with serving(handle, connections_max_idle_ms=1) as (host, port, listeners):
                with socket.create_connection((host, port)) as sock:
                    sock.sendall(request(1))
                    while not any(c._writer.sending for c in listeners._connections):
                        await asyncio.sleep(0.001)
                    await asyncio.sleep(0.005)
                    closed = listeners.close_idle()
                    while listeners.connection_count:
                        await asyncio.sleep(0.001)
                return closed

    assert asyncio.run(main()) == 1
