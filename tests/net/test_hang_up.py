"""A client that hangs up: records that it produced with acks=0 are handled, and all else is dropped."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.metrics import Metrics
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_request
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.quota_entity import QuotaEntity
from tests.support.listening import request, serving
from tests.support.secured import Certificates

RECORDS = 40
"""More than a connection queues, so that some are in the socket when the client hangs up."""


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


def produce(correlation_id: int, acks: int = 0) -> bytes:
    body: dict[str, Any] = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": []}
    return encode_request(ApiKey.PRODUCE, 8, correlation_id, "t", body)


async def send_and_leave(host: str, port: int, data: bytes, context: ssl.SSLContext | None = None) -> None:
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(data)
    await writer.drain()
    writer.close()


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
        await send_and_leave(host, port, b"".join(produce(number) for number in range(RECORDS)), context)
        await until(lambda: any(connection.waiting for connection in listeners._connections))
        site.gate.set()
        await until(lambda: not listeners.connection_count)
        assert site.handled == list(range(RECORDS))
        assert (site.cancelled, listeners.memory.used) == (0, 0)
    assert metrics.listeners[protocol].closed == {"client": 1}


async def hung_up_on(site: Site, data: bytes) -> None:
    """The broker knows that the client of `data` has left before it handles anything; then all that it will."""
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, data)
        await until(lambda: bool(listeners._connections))
        (connection,) = listeners._connections
        await until(lambda: connection._hung_up)
        site.gate.set()
        await until(lambda: not listeners.connection_count)
        assert listeners.memory.used == 0


async def test_nothing_is_handled_after_the_first_that_has_an_answer() -> None:
    """Its client does not know what became of it, and would produce the others again."""
    site = Site()
    await hung_up_on(site, produce(0) + produce(1, acks=1) + produce(2) + produce(3, acks=1))
    assert site.handled == [0, 1]


@pytest.mark.parametrize("data", [request(0) + request(1), produce(0, acks=1) + produce(1, acks=-1)])
async def test_what_it_waits_for_is_cancelled_when_nothing_without_an_answer_follows(data: bytes) -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, data)
        await until(lambda: site.cancelled == 1 and not listeners.connection_count)
    assert site.handled == []


async def test_half_a_request_at_the_end_is_dropped() -> None:
    site = Site()
    await hung_up_on(site, produce(0) + produce(1) + produce(2)[:-1])
    assert site.handled == [0, 1]


async def test_a_broker_that_stops_does_not_wait_for_them() -> None:
    site = Site()
    async with serving(site) as (host, port, listeners):
        await send_and_leave(host, port, produce(0) + produce(1))
        await until(lambda: any(connection._hung_up for connection in listeners._connections))
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
