"""Requests of a coordinator to other brokers. What is due for one broker at a time travels in one request.

Nothing is retried here. Lives on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Generic, TypeVar

from broker.background_tasks import BackgroundTasks
from broker.cluster.metadata_cache import MetadataCache
from broker.errors import ErrorCode, PykafkaError
from broker.net.peer_connection import PeerConnection

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

Connect = Callable[[int], PeerConnection]
"""A connection, not opened yet, to the broker with this id. Raises PykafkaError when its address is not known."""

MOST_CONNECTIONS = 4
"""To one broker. A request that waits for one slow partition must not delay all others."""


class PeerRequests(Generic[Item]):
    """Sends items to brokers. While as many requests as allowed are under way, further items are collected."""

    def __init__(
        self,
        connect: Connect,
        send: Callable[[PeerConnection, Sequence[Item]], Awaitable[Mapping[Item, ErrorCode]]],
    ) -> None:
        """`send` makes one request of several items, and gives the result of each."""
        self._connect = connect
        self._send = send
        self._asked: dict[asyncio.Future[ErrorCode], tuple[int, Item]] = {}
        """Every item without an answer, and the broker that is asked."""
        self._sent_through: dict[asyncio.Future[ErrorCode], PeerConnection] = {}
        """The connections of the items whose request is under way."""
        self._waiting: dict[int, list[asyncio.Future[ErrorCode]]] = {}
        """By broker: those that are in no request yet."""
        self._idle: dict[int, list[PeerConnection]] = {}
        self._senders: Counter[int] = Counter()
        """By broker: how many send to it."""
        self._tasks = BackgroundTasks()
        self._failed: dict[int, str] = {}
        """Broker → the last failure, which is logged once."""
        self._is_closed = False

    def ask(self, broker_id: int, item: Item) -> asyncio.Future[ErrorCode]:
        """The broker's answer about an item, or NETWORK_EXCEPTION if none came: then it may have acted or not."""
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            future.set_result(ErrorCode.network_exception)
            return future
        self._asked[future] = broker_id, item
        future.add_done_callback(self._asked.pop)
        self._waiting.setdefault(broker_id, []).append(future)
        if self._senders[broker_id] < MOST_CONNECTIONS:
            self._senders[broker_id] += 1
            self._tasks.begin("asking other brokers", self._send_all(broker_id))
        return future

    def follow(self, topics: MetadataCache, leader_of: Callable[[Item], int | None], code: ErrorCode) -> None:
        """From now on give up, with `code`, what another broker leads than the one that is asked."""

        def leaders_changed(names: Collection[str]) -> None:
            self.give_up(lambda broker_id, item: leader_of(item) != broker_id, code)

        topics.add_change_listener(leaders_changed)

    def give_up(self, is_moved: Callable[[int, Item], bool], code: ErrorCode) -> None:
        """Answer `code` for all items of which `is_moved(broker, item)` says that another broker should be asked.

        A request that has such an item and is under way ends with its connection: what the broker has not got of it
        must not arrive later. A late marker would end a later transaction.
        """
        for future, (broker_id, item) in list(self._asked.items()):
            if not future.done() and is_moved(broker_id, item):
                future.set_result(code)
                if (peer := self._sent_through.get(future)) is not None:
                    peer.close()

    async def close(self) -> None:
        """End all requests."""
        self._is_closed = True
        try:
            await self._tasks.close()
        finally:
            self.give_up(lambda broker_id, item: True, ErrorCode.network_exception)
        for peers in self._idle.values():
            for peer in peers:
                peer.close()

    async def _send_all(self, broker_id: int) -> None:
        try:
            while waiting := self._waiting.pop(broker_id, None):
                asked = {future: self._asked[future][1] for future in waiting if not future.done()}
                if asked:
                    await self._answer(broker_id, asked)
        finally:
            self._senders[broker_id] -= 1

    async def _answer(self, broker_id: int, asked: Mapping[asyncio.Future[ErrorCode], Item]) -> None:
        codes: Mapping[Item, ErrorCode] = {}
        failure = ""
        try:
            codes = await self._sent(broker_id, asked)
        except PykafkaError as error:
            failure = str(error)
            if self._failed.get(broker_id) != failure:
                logger.warning("broker %d has not answered a coordinator: %s", broker_id, failure)
        except Exception:
            logger.exception("a request to broker %d failed", broker_id)
        self._failed[broker_id] = failure
        for future, item in asked.items():
            if not future.done():
                future.set_result(codes.get(item, ErrorCode.network_exception))

    async def _sent(self, broker_id: int, asked: Mapping[asyncio.Future[ErrorCode], Item]) -> Mapping[Item, ErrorCode]:
        peer = self._connect(broker_id)
        idle = self._idle.setdefault(broker_id, [])
        while idle:
            kept = idle.pop()
            if kept.address == peer.address:
                peer = kept
                break
            kept.close()
        self._sent_through.update(dict.fromkeys(asked, peer))
        try:
            codes = await self._send(peer, list(asked.values()))
        except BaseException:
            peer.close()
            raise
        finally:
            for future in asked:
                del self._sent_through[future]
        idle.append(peer)
        return codes
