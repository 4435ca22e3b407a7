"""Suspects a broker whose process has died, before its ZooKeeper session ends.

This broker keeps an idle connection to every other registered broker. When a process dies, its machine breaks its
connections at once and refuses new ones. So a broker is suspected when its connection breaks and the next one is
refused, until it answers again or registers again. A broker that never answered is not suspected: perhaps its address
is wrong. A dead machine or a cut link breaks no connection, so there the end of the ZooKeeper session decides.

A suspicion may be wrong, and it makes nothing unsafe: leaders and controllers are fenced by their epochs, and all that
they write is written by compare-and-set (promise P4). It only lets others take over sooner.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Mapping

from broker.background_tasks import BackgroundTasks
from broker.clock import Clock, SystemClock
from broker.errors import ConnectionFailed, PykafkaError
from broker.net.peer_connection import PeerConnection
from broker.protocol.api_keys import ApiKey
from broker.replica.cluster_metadata import BrokerInfo

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.01
PAUSE_S = 0.1
"""Between two tries to connect to a broker that refuses."""
LONG_PAUSE_S = 1.0
"""After any other failure. A broker registers shortly before it listens, so the first tries come soon, too."""
PROBE_TIMEOUT_S = 1.0

OnChange = Callable[[int], None]


class FailureDetector:
    """Belongs to the event loop. Call `update_brokers` with all registered brokers whenever they change."""

    def __init__(
        self, broker_id: int, connect: Callable[[BrokerInfo], PeerConnection | None], clock: Clock | None = None
    ) -> None:
        """`connect(broker)` gives a connection to another broker, None when brokers cannot talk to it."""
        self._broker_id = broker_id
        self._connect = connect
        self._clock = clock or SystemClock()
        self._brokers: Mapping[int, BrokerInfo] = {}
        self._tasks = BackgroundTasks()
        self._watches: dict[int, asyncio.Future[None]] = {}
        """The task of each broker that is watched."""
        self._on_change: list[OnChange] = []
        self.suspected: dict[int, float] = {}
        """The suspected brokers, and since when, in monotonic seconds."""

    def subscribe(self, on_change: OnChange) -> None:
        """Call `on_change(broker_id)` whenever a broker is suspected, or is so no longer."""
        self._on_change.append(on_change)

    def update_brokers(self, brokers: Mapping[int, BrokerInfo]) -> None:
        """Watch these brokers. One that has registered again is trusted again."""
        if brokers is self._brokers:
            return
        before, self._brokers = self._brokers, brokers
        for broker_id in before.keys() | brokers.keys():
            if broker_id == self._broker_id or _registration(before, broker_id) == _registration(brokers, broker_id):
                continue
            if (watch := self._watches.pop(broker_id, None)) is not None:
                watch.cancel()
            self._trust(broker_id, "it has registered again" if broker_id in brokers else "its registration has ended")
            if broker_id in brokers:
                watching = self._watch(brokers[broker_id])
                self._watches[broker_id] = self._tasks.begin(f"watching broker {broker_id}", watching)

    async def close(self) -> None:
        await self._tasks.close()

    async def _watch(self, broker: BrokerInfo) -> None:
        peer = self._connect(broker)
        if peer is None:
            return
        has_answered, pause = False, FIRST_PAUSE_S
        try:
            while True:
                try:
                    await peer.request(ApiKey.API_VERSIONS, 0, {})
                    self._trust(broker.broker_id, "it answers again")
                    has_answered, pause = True, FIRST_PAUSE_S
                    await peer.closed()
                except PykafkaError as error:
                    if has_answered and isinstance(error, ConnectionFailed):
                        if await _is_refused(peer.host, peer.port):
                            self._suspect(broker.broker_id)
                        pause = min(2 * pause, PAUSE_S)
                    else:
                        pause = min(2 * pause, LONG_PAUSE_S)
                await asyncio.sleep(pause)
        finally:
            peer.close()

    def _suspect(self, broker_id: int) -> None:
        if broker_id not in self.suspected:
            logger.warning("broker %d broke its connection and refuses another: it seems to be dead", broker_id)
            self.suspected[broker_id] = self._clock.monotonic()
            self._notify(broker_id)

    def _trust(self, broker_id: int, why: str) -> None:
        if self.suspected.pop(broker_id, None) is not None:
            logger.info("broker %d is no longer suspected to be dead: %s", broker_id, why)
            self._notify(broker_id)

    def _notify(self, broker_id: int) -> None:
        for on_change in self._on_change:
            on_change(broker_id)


def _registration(brokers: Mapping[int, BrokerInfo], broker_id: int) -> tuple[BrokerInfo, int] | None:
    broker = brokers.get(broker_id)
    return None if broker is None else (broker, broker.epoch)


async def _is_refused(host: str, port: int) -> bool:
    """Whether nothing listens at any address of `host`. False when that is not known."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                with socket.socket(family, kind, protocol) as probe:
                    probe.setblocking(False)
                    try:
                        await loop.sock_connect(probe, address)
                        return False
                    except OSError as error:
                        if error.errno != errno.ECONNREFUSED:
                            return False
    except (TimeoutError, OSError):
        return False
    return True
