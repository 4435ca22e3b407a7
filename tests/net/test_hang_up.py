"""A client that hangs up: records that it produced with acks=0 are handled, and all else is dropped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.metrics import Metrics
from broker.net.connection import ConnectionState
from broker.net.delayed_answer import DelayedAnswer
from broker.net.listener import ListenerSet
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_request
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.quota_entity import QuotaEntity
from tests.support.listening import request, serving
from tests.support.secured import Certificates


def produce(correlation_id: int, acks: int = 0) -> bytes:
    body: dict[str, Any] = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": []}
    return encode_request(ApiKey.PRODUCE, 8, correlation_id, "t", body)


HALF = 20
"""More requests than a connection queues: what comes after them is in the socket when the client hangs up."""
FIRST = b"".join(produce(number) for number in range(HALF))
REST = b"".join(produce(number) for number in range(HALF, 2 * HALF))


class Site:
    """Handles requests when `gate` is open: those with acks=0 have no answer, Metadata waits for ever."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.handled: list[int] = []
        self.cancelled = 0

    def __call__(self, request: Request, client: Client) -> Awaitable[Any]:
        return self._handle(request)

    async def _handle(self, request: Request) -> Any:
        try:
            await (asyncio.Event() if request.api is ApiKey.METADATA else self.gate).wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        self.handled.append(request.correlation_id)
        return None if request.body.acks == 0 else {"responses": []}


class LaterSite(Site):
    """The same; what is asked with an answer is not awaited in a task."""

    def __call__(self, request: Request, client: Client) -> Awaitable[Any]:
        if request.api is not ApiKey.METADATA:
            return self._handle(request)

        def cancel() -> None:
            self.cancelled += 1

        return DelayedAnswer[Any](cancel)


async def send_and_leave(host: str, port: int, data: bytes, context: ssl.SSLContext | None = None) -> None:
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(data)
    await writer.drain()
    writer.close()


async def until_full(listeners: ListenerSet) -> None:
    """Until the broker reads no more of its only client."""
    await until(lambda: any(not connection._transport.is_reading() for connection in listeners._connections))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def secured(directory: Path) -> tuple[dict[str, Any], ssl.SSLContext]:
    certificates = Certificates.make(directory)
    settings = {"listeners": ("SSL://127.0.0.1:0",), "ssl_keystore_location": str(certificates.server)}
    return settings, ssl.create_default_context(cafile=str(certificates.ca))


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_all_that_was_produced_with_acks_0_is_handled_in_order(protocol: str, tmp_path: Path) -> None:
    site, metrics = Site(), Metrics()
    settings, context = secured(tmp_path) if protocol == "SSL" else ({}, None)
    async with serving(site, metrics, **settings) as (host, port, listeners):
        _, writer = await asyncio.open_connection(host, port, ssl=context)
        writer.write(FIRST)
        await until_full(listeners)
        writer.write(REST)
        writer.close()
        site.gate.set()
        await until(lambda: not listeners.connection_count)
        assert site.handled == list(range(2 * HALF))
        assert (site.cancelled, listeners.memory.used) == (0, 0)
    assert metrics.listeners[protocol].closed == {"client": 1}


async def hung_up_on(site: Site, data: bytes) -> None:
    """The broker knows that the client of `data` has left before it handles anything; then all that it will."""
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, data)
        await until(lambda: bool(listeners._connections))
        (connection,) = listeners._connections
        await until(lambda: connection.state is not ConnectionState.OPEN)
        site.gate.set()
        await until(lambda: not listeners.connection_count)
        assert listeners.memory.used == 0


@pytest.mark.parametrize("site", [Site(), LaterSite()])
async def test_what_has_an_answer_is_cancelled_or_dropped_and_the_rest_is_handled(site: Site) -> None:
    """Nobody may hold a connection, or the records behind it, for as long as a fetch may wait."""
    await hung_up_on(site, request(0) + produce(1) + produce(2, acks=1) + produce(3) + request(4))
    assert (site.handled, site.cancelled) == ([1, 3], 1)
    site.handled.clear()
    await hung_up_on(site, produce(0) + produce(1, acks=-1) + request(2) + produce(3))
    assert site.handled == [0, 3]


async def test_a_connection_that_is_reset_has_hung_up() -> None:
    """What the socket has is read first."""
    site = Site()
    async with serving(site) as (host, port, listeners):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(FIRST)
        await until_full(listeners)
        writer.write(REST)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        site.gate.set()
        await until(lambda: not listeners.connection_count)
        assert listeners.memory.used == 0
    assert site.handled == list(range(2 * HALF))


async def test_a_broker_that_stops_forgets_a_connection_that_was_reset() -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        _, writer = await asyncio.open_connection(host, port)
        writer.write(produce(0) + produce(1))
        await writer.drain()
        await until(lambda: any(len(connection._queue) == 1 for connection in listeners._connections))
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        await until(lambda: any(connection.state is ConnectionState.LOST for connection in listeners._connections))
    await until(lambda: site.cancelled == 1 and not listeners.connection_count and not listeners.memory.used)
    assert site.handled == []


@pytest.mark.parametrize("data", [request(0) + request(1), produce(0, acks=1) + produce(1, acks=-1)])
async def test_what_it_waits_for_is_cancelled_when_nothing_without_an_answer_follows(data: bytes) -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, data)
        await until(lambda: site.cancelled == 1 and not listeners.connection_count)
    assert site.handled == []


async def test_half_a_request_at_the_end_is_dropped_and_gives_its_memory_back() -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        large = encode_request(ApiKey.METADATA, 4, 2, "t", {"topics": [{"name": "x" * 30_000}] * 30})
        await send_and_leave(host, port, produce(0) + produce(1) + large[:-1])
        await until(lambda: any(connection.state is not ConnectionState.OPEN for connection in listeners._connections))
        assert listeners.memory.used == len(produce(0)) + len(produce(1)) - 2 * 4
        site.gate.set()
        await until(lambda: not listeners.connection_count)
    assert site.handled == [0, 1]


class TlsClient:
    """A client whose calls block. It gets no session tickets, which it would not read, and so reset the connection."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext) -> None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        self._socket = context.wrap_socket(socket.create_connection(address), server_hostname=address[0])

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def say_the_end(self) -> None:
        """Send a close_notify, and wait for none."""
        self._socket.setblocking(False)
        with contextlib.suppress(ssl.SSLError):
            self._socket.unwrap()

    def send_in_plain(self, megabytes: int) -> int:
        """How many were taken before the broker took nothing for a while."""
        with socket.socket(fileno=os.dup(self._socket.fileno())) as plain:
            plain.settimeout(0.5)
            for number in range(megabytes):
                try:
                    plain.sendall(bytes(1 << 20))
                except TimeoutError:
                    return number
        return megabytes

    def leave(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_tls_ends_with_and_without_a_close_notify(is_told: bool, tmp_path: Path) -> None:
    site, (settings, context) = Site(), secured(tmp_path)
    async with serving(site, **settings) as (host, port, listeners):
        client = await asyncio.to_thread(TlsClient, (host, port), context)
        await asyncio.to_thread(client.send, FIRST)
        await until_full(listeners)
        await asyncio.to_thread(client.send, REST)
        if is_told:
            client.say_the_end()
        client.leave()
        site.gate.set()
        await until(lambda: not listeners.connection_count)
    assert site.handled == list(range(2 * HALF))


async def test_what_follows_a_close_notify_is_not_read(tmp_path: Path) -> None:
    """It would wait in a buffer that has no end."""
    site, (settings, context) = Site(), secured(tmp_path)
    async with serving(site, **settings) as (host, port, listeners):
        client = await asyncio.to_thread(TlsClient, (host, port), context)
        await asyncio.to_thread(client.send, produce(0))
        client.say_the_end()
        await until(lambda: any(connection.state is not ConnectionState.OPEN for connection in listeners._connections))
        assert await asyncio.to_thread(client.send_in_plain, 64) < 64
        client.leave()
        site.gate.set()
        await until(lambda: not listeners.connection_count)
    assert site.handled == [0]


async def test_a_broker_that_stops_does_not_wait_for_them() -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, produce(0) + produce(1))
        await until(lambda: any(connection.state is not ConnectionState.OPEN for connection in listeners._connections))
    await until(lambda: site.cancelled == 1 and not listeners.connection_count)
    assert site.handled == []


async def test_a_throttled_client_is_throttled_still() -> None:
    quotas = ClientQuotas()
    quotas.update({QuotaEntity(None, "t"): {"producer_byte_rate": 10 * float(len(produce(0)))}})
    handled: list[float] = []

    def handle(request: Request, client: Client) -> None:
        handled.append(asyncio.get_running_loop().time())

    async with serving(handle, quotas=quotas) as (host, port, listeners):
        await send_and_leave(host, port, b"".join(produce(number) for number in range(6)))
        await until(lambda: len(handled) == 6)
        await until(lambda: not listeners.connection_count)
    assert handled[-1] - handled[0] > 0.3, "of 0.5 s"
