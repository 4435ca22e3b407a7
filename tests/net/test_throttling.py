"""A throttled connection: what it does with further requests."""

from __future__ import annotations

import asyncio
from typing import Any

from broker.metrics import Metrics
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.quota_entity import QuotaEntity
from tests.support.listening import answer_with, read_frame, request, serving

THROTTLE_S = 0.3


def answer(*_: Any) -> dict[str, Any]:
    """As a handler that counts mutations answers."""
    return {**answer_with("x"), "throttle_time": int(THROTTLE_S * 1000)}


def limited() -> ClientQuotas:
    """Quotas of somebody else, so that answers are looked at."""
    quotas = ClientQuotas()
    quotas.update({QuotaEntity("nobody"): {"producer_byte_rate": 1.0}})
    return quotas


async def test_a_throttled_client_is_answered_and_its_next_requests_wait() -> None:
    metrics = Metrics()
    async with serving(answer, metrics, quotas=limited()) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        loop = asyncio.get_running_loop()
        writer.write(request(1) + request(2))
        await read_frame(reader)
        begin = loop.time()
        assert listeners.throttled_count == 1
        await read_frame(reader)
        assert loop.time() - begin > THROTTLE_S * 0.8
        assert metrics.throttles["ControllerMutation"].throttles == 2
        writer.close()


async def test_it_stops_reading_with_the_next_request_and_goes_on_afterwards() -> None:
    async with serving(answer, quotas=limited()) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        await read_frame(reader)
        (connection,) = listeners._connections
        assert connection._transport.is_reading(), "so that it notices when the client leaves"
        writer.write(request(2))
        while connection._transport.is_reading():
            await asyncio.sleep(0.001)
        assert connection.muted
        await read_frame(reader)
        while connection.muted:
            await asyncio.sleep(0.001)
        assert connection._transport.is_reading()
        assert listeners.memory.used == 0
        writer.close()


async def test_it_is_not_idle() -> None:
    async with serving(answer, quotas=limited(), connections_max_idle_ms=1) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        await read_frame(reader)
        while listeners.throttled_count:
            assert listeners.close_idle() == 0
            await asyncio.sleep(0.01)
        while not listeners.close_idle():
            await asyncio.sleep(0.001)
        writer.close()


async def test_a_client_that_leaves_is_forgotten_at_once() -> None:
    async with serving(answer, quotas=limited()) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        await read_frame(reader)
        assert listeners.throttled_count == 1
        loop = asyncio.get_running_loop()
        begin = loop.time()
        writer.close()
        while listeners.connection_count:
            await asyncio.sleep(0.001)
        assert loop.time() - begin < THROTTLE_S / 2


async def test_without_quotas_nobody_waits() -> None:
    async with serving(answer) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        await read_frame(reader)
        assert listeners.throttled_count == 0
        writer.close()
