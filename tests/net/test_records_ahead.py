"""Records with acks=all are appended while earlier ones of their connection wait for followers; the answers keep order.

The handler is the test's own, over real sockets. test_connection_model.py mixes these with everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from broker.net.connection import MAX_QUEUED
from broker.net.delayed_answer import DelayedAnswer
from broker.net.listener import ListenerSet
from broker.net.router import Client
from broker.protocol.api_keys import ApiKey
from broker.protocol.messages import Request, encode_request
from broker.quotas.client_quotas import ClientQuotas
from broker.quotas.quota_entity import QuotaEntity
from tests.support.listening import answer_with, read_frame, request, serving
from tests.support.waiting import eventually

VERSION = 8
NOTHING: dict[str, Any] = {"responses": []}


def records(number: int, acks: int = -1) -> bytes:
    body: dict[str, Any] = {"transactional_id": None, "acks": acks, "timeout": 1000, "topic_data": []}
    return encode_request(ApiKey.PRODUCE, VERSION, number, "c", body)


class Broker:
    """Keeps the answers of Produce requests until the test completes them; answers others at once."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.cancelled: list[int] = []
        self.answers: dict[int, DelayedAnswer[Any]] = {}
        self.in_tasks: set[int] = set()
        """Requests that a coroutine answers: their records are not in the log yet."""

    def handle(self, request: Request, client: Client) -> Any:
        number = request.correlation_id
        self.handled.append(number)
        if request.api is not ApiKey.PRODUCE:
            return answer_with("x")
        self.answers[number] = DelayedAnswer(lambda: self.cancelled.append(number))
        return self._wait(number) if number in self.in_tasks else self.answers[number]

    async def _wait(self, number: int) -> Any:
        return await self.answers[number]


@asynccontextmanager
async def connected(
    broker: Broker, **settings: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, ListenerSet]]:
    async with serving(broker.handle, **settings) as (host, port, listeners):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            yield reader, writer, listeners
        finally:
            writer.close()


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition, interval=0.002)


async def numbers(reader: asyncio.StreamReader, count: int) -> list[int]:
    return [int.from_bytes((await read_frame(reader))[:4], "big") for _ in range(count)]


def test_records_do_not_wait_for_the_followers_of_those_before() -> None:
    async def main() -> None:
        broker = Broker()
        async with connected(broker) as (reader, writer, listeners):
            writer.write(records(1) + records(2) + records(3))
            await until(lambda: broker.handled == [1, 2, 3])
            assert listeners.memory.used == 3 * (len(records(1)) - 4), "what waits is counted"
            for number in (3, 1, 2):
                broker.answers[number].complete(NOTHING)
            assert await numbers(reader, 3) == [1, 2, 3], "answers keep the order of the requests"
            await until(lambda: listeners.memory.used == 0)

    asyncio.run(main())


def test_other_requests_wait_for_the_records_before_them() -> None:
    async def main() -> None:
        broker = Broker()
        async with connected(broker) as (reader, writer, _):
            writer.write(records(1) + records(2) + request(3) + records(4))
            await until(lambda: broker.handled == [1, 2])
            broker.answers[1].complete(NOTHING)
            assert await numbers(reader, 1) == [1]
            assert broker.handled == [1, 2]
            broker.answers[2].complete(NOTHING)
            assert await numbers(reader, 2) == [2, 3]
            await until(lambda: broker.handled == [1, 2, 3, 4])

    asyncio.run(main())


def test_records_wait_for_those_that_are_not_in_the_log_yet() -> None:
    """Also where these went ahead themselves: the log keeps the order of the requests."""

    async def main() -> None:
        broker = Broker()
        broker.in_tasks = {2}
        async with connected(broker) as (reader, writer, listeners):
            writer.write(records(1) + records(2) + records(3))
            await until(lambda: broker.handled == [1, 2])
            broker.answers[1].complete(NOTHING)
            assert await numbers(reader, 1) == [1]
            assert broker.handled == [1, 2]
            broker.answers[2].complete(NOTHING)
            assert await numbers(reader, 1) == [2]
            await until(lambda: broker.handled == [1, 2, 3])
            broker.answers[3].complete(NOTHING)
            assert await numbers(reader, 1) == [3]
            await until(lambda: listeners.memory.used == 0)

    asyncio.run(main())


def test_records_of_a_client_that_may_be_throttled_wait_for_their_turn() -> None:
    async def main() -> None:
        broker, quotas = Broker(), ClientQuotas()
        quotas.update({QuotaEntity("nobody"): {"producer_byte_rate": 1.0}})
        async with connected(broker, quotas=quotas) as (reader, writer, _):
            writer.write(records(1) + records(2))
            await until(lambda: broker.handled == [1])
            broker.answers[1].complete(NOTHING)
            assert await numbers(reader, 1) == [1]
            await until(lambda: broker.handled == [1, 2])

    asyncio.run(main())


def test_only_so_many_go_ahead() -> None:
    async def main() -> None:
        broker = Broker()
        async with connected(broker) as (reader, writer, listeners):
            count = 3 * MAX_QUEUED
            writer.write(b"".join(records(number) for number in range(1, count + 1)))
            await until(lambda: len(broker.handled) == MAX_QUEUED + 1)
            (connection,) = listeners._connections
            await until(lambda: not connection._transport.is_reading())
            for number in range(1, count + 1):
                await until(lambda number=number: number in broker.answers)  # type: ignore[misc]
                broker.answers[number].complete(NOTHING)
            assert await numbers(reader, count) == list(range(1, count + 1))
            assert broker.handled == list(range(1, count + 1))

    asyncio.run(main())


def test_who_leaves_gets_no_answers_and_all_is_given_back() -> None:
    async def main() -> None:
        broker = Broker()
        broker.in_tasks = {3}
        async with connected(broker) as (_, writer, listeners):
            writer.write(records(1) + records(2) + records(3))
            await until(lambda: broker.handled == [1, 2, 3])
            writer.close()
            await until(lambda: not listeners.connection_count)
            await until(lambda: broker.cancelled == [1, 2, 3])
            assert listeners.memory.used == 0

    asyncio.run(main())


def test_an_error_ends_the_connection_before_later_answers() -> None:
    async def main() -> None:
        broker = Broker()
        async with connected(broker) as (reader, writer, listeners):
            writer.write(records(1) + records(2))
            await until(lambda: broker.handled == [1, 2])
            broker.answers[2].complete(NOTHING)
            broker.answers[1].fail(RuntimeError("the answer is broken"))
            assert await reader.read() == b""
            await until(lambda: not listeners.connection_count)
            assert listeners.memory.used == 0

    asyncio.run(main())
