"""What one client, or many together, may take of the broker: connections, time, memory."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import sys
from typing import Any

import pytest

from broker.config.broker_config import BrokerConfig
from broker.errors import ConfigError
from broker.metrics import Metrics
from broker.net.listener import ListenerSet
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import encode_request
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.quota_entity import QuotaEntity
from tests.support.listening import answer_with, closed_by_peer, read_frame, request, serving
from tests.support.vanished_peer import vanish

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def answer(*_: Any) -> dict[str, Any]:
    return answer_with("x")


async def connect(stack: contextlib.AsyncExitStack, host: str, port: int) -> Streams:
    reader, writer = await asyncio.open_connection(host, port)
    stack.callback(writer.close)
    return reader, writer


async def served(streams: Streams) -> None:
    streams[1].write(request(1))
    await read_frame(streams[0])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"max_connections": 2}, "max.connections reached"),
        ({"max_connections_per_ip": 2}, "max.connections.per.ip reached"),
        (
            {"max_connections_per_ip": 0, "max_connections_per_ip_overrides": ("localhost:2",)},
            "max.connections.per.ip.overrides reached",
        ),
    ],
)
async def test_one_connection_too_many_is_closed_and_the_next_one_taken_when_one_left(
    settings: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    async with serving(answer, metrics, **settings) as (host, port, listeners), contextlib.AsyncExitStack() as stack:
        first, second = await connect(stack, host, port), await connect(stack, host, port)
        await served(first)
        await served(second)
        assert await closed_by_peer((await connect(stack, host, port))[0])
        first[1].close()
        while listeners.connection_count > 1:
            await asyncio.sleep(0)
        await served(await connect(stack, host, port))
        counts = metrics.listeners["PLAINTEXT"]
        assert (counts.accepted, dict(counts.closed)) == (4, {"limit": 1, "client": 1})
    assert named in caplog.text


@pytest.mark.parametrize("wrong", ["here", "localhost:many", ":5", "no such host:5"])
def test_overrides_that_cannot_be_read_are_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="max.connections.per.ip.overrides="):
        ListenerSet(BrokerConfig(max_connections_per_ip_overrides=(wrong,)))


@pytest.mark.parametrize("sent", [b"\0", b"\0\0\1\0", b"\0\0\1\0abc", request(1) + b"\0\0\0\x50abc"])
async def test_a_request_that_is_begun_and_not_ended_closes_its_connection(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        serving(answer, socket_request_receive_timeout_ms=20) as (host, port, listeners),
        contextlib.AsyncExitStack() as stack,
    ):
        slow, good = await connect(stack, host, port), await connect(stack, host, port)
        slow[1].write(sent)
        for _ in range(200):  # a byte every now and then does not help
            slow[1].write(b"\0") if len(sent) > 4 and sent[:4] == b"\0\0\1\0" else None
            await served(good)
            await asyncio.sleep(0.001)
            if listeners.close_idle():
                break
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await read_frame(slow[0])
        await served(good)
    assert "no whole request in socket.request.receive.timeout.ms=20" in caplog.text


def large(correlation_id: int, size: int) -> bytes:
    names = [{"name": "n" * 1000} for _ in range(size // 1000)]
    return encode_request(ApiKey.METADATA, 4, correlation_id, "t", {"topics": names})


async def test_frames_under_way_take_no_more_memory_than_there_is_and_all_arrive() -> None:
    limit, size, count = 4_000_000, 3_000_000, 12
    async with (
        serving(answer, queued_max_request_bytes=limit) as (host, port, listeners),
        contextlib.AsyncExitStack() as stack,
    ):
        frame = large(1, size)
        streams = [await connect(stack, host, port) for _ in range(count)]
        most = 0
        for _, writer in streams:
            writer.write(frame[:-1])
        while listeners.memory.waiting < count - 3:
            await asyncio.sleep(0.001)
            most = max(most, listeners.memory.used)
        for _, writer in streams:
            writer.write(frame[-1:])
        for reader, _ in streams:
            await read_frame(reader)
            most = max(most, listeners.memory.used)
        assert most < limit + size + count * 16 * 1024
        assert (listeners.memory.used, listeners.memory.waiting) == (0, 0)


async def test_who_announces_much_and_sends_little_takes_little() -> None:
    async with serving(answer) as (host, port, listeners), contextlib.AsyncExitStack() as stack:
        for _ in range(100):
            _, writer = await connect(stack, host, port)
            writer.write(struct.pack(">i", 100_000_000) + b"\0\3\0\4")
        while len([c for c in listeners._connections if c._reader.partial]) < 100:
            await asyncio.sleep(0.001)
        assert listeners.memory.used <= 100 * 65 * 1024


async def test_what_connections_queue_counts_together_and_is_given_back_when_they_leave() -> None:
    never = asyncio.Event()

    async def wait() -> dict[str, Any]:
        await never.wait()
        return answer_with("x")

    async with (
        serving(lambda *_: wait(), queued_max_request_bytes=1_000_000) as (host, port, listeners),
        contextlib.AsyncExitStack() as stack,
    ):
        for _ in range(20):
            _, writer = await connect(stack, host, port)
            writer.write(request(1) + large(2, 200_000) * 10)
        while not all(not c._transport.is_reading() for c in listeners._connections):
            await asyncio.sleep(0.001)
        assert listeners.memory.used < 1_000_000 + 200_000 + 20 * 256 * 1024
        for connection in tuple(listeners._connections):
            connection.abort("test")
        async with asyncio.timeout(60):
            while listeners.connection_count or listeners.memory.used:
                await asyncio.sleep(0)  # what was handled gives back as it ends
        assert (listeners.memory.used, listeners.memory.waiting) == (0, 0)


async def test_a_request_that_was_ended_in_time_is_not_held_against_its_connection() -> None:
    async with serving(answer, socket_request_receive_timeout_ms=1) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        frame = request(1)
        writer.write(frame[:7])
        await asyncio.sleep(0)
        writer.write(frame[7:])
        await read_frame(reader)
        await asyncio.sleep(0.005)  # longer than the limit; nothing is waited for
        assert listeners.close_idle() == 0
        writer.close()


async def test_a_throttled_client_is_not_idle() -> None:
    quotas = ClientQuotas()
    quotas.update({QuotaEntity("nobody"): {"producer_byte_rate": 1.0}})  # of somebody else: answers are looked at

    def throttle(*_: Any) -> dict[str, Any]:
        return {**answer_with("x"), "throttle_time": 300}

    async with serving(throttle, quotas=quotas, connections_max_idle_ms=1) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request(1))
        await read_frame(reader)
        while listeners.throttled_count:
            assert listeners.close_idle() == 0
            await asyncio.sleep(0.01)
        while not listeners.close_idle():
            await asyncio.sleep(0.001)
        writer.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what was acknowledged")
async def test_a_client_whose_host_vanished_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an answer on its way, and long before connections.max.idle.ms. One that only reads nothing keeps its own."""
    for module in ("connection", "listener"):
        monkeypatch.setattr(f"broker.net.{module}.CLIENT_SILENT_S", 0.3)
    metrics, asked, may_answer = Metrics(), asyncio.Event(), asyncio.Event()

    async def late(*_: Any) -> dict[str, Any]:
        asked.set()
        await may_answer.wait()
        return answer_with("x")

    async with serving(late, metrics) as (host, port, listeners), contextlib.AsyncExitStack() as stack:
        gone, slow = await connect(stack, host, port), await connect(stack, host, port)
        for streams in (gone, slow):
            asked.clear()
            streams[1].write(request(1))
            await asked.wait()
        vanish(gone[1].get_extra_info("socket"))
        may_answer.set()
        await read_frame(slow[0])
        while not listeners.close_idle():
            await asyncio.sleep(0.01)
        while listeners.connection_count > 1:
            await asyncio.sleep(0.01)
        (counts,) = metrics.listeners.values()
        assert counts.closed == {"vanished": 1}
        assert not slow[0].at_eof()
