"""Accepts the connections of one listener, as fast as the connection rates allow (KIP-612).

Above the rate of the broker or of the listener it waits before it serves a connection and accepts more, so that clients
wait in the listener's backlog. A connection from an address above its rate is accepted, not served, and closed after
the throttle time: a client that tries again at once must wait. Idea: Kafka's `SocketServer.Acceptor`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

from broker.background_tasks import BackgroundTasks
from broker.metrics import ThrottleMetrics
from broker.quotas.connection_rates import ConnectionRates
from broker.security.addresses import plain_address

logger = logging.getLogger(__name__)

BACKLOG = 1024
ACCEPTED_AT_ONCE = 100
"""Then other connections are served first."""
RETRY_S = 1.0
"""Wait after an error such as too many open files."""


class Acceptor:
    """Call `start` on the event loop."""

    def __init__(
        self,
        bound: socket.socket,
        listener: str,
        make: Callable[[], asyncio.BaseProtocol],
        rates: ConnectionRates,
        *,
        waits: ThrottleMetrics,
        refusals: ThrottleMetrics,
    ) -> None:
        """`waits` counts the waits of the listener, `refusals` the connections from an address above its rate."""
        self._socket = bound
        self._listener = listener
        self._make = make
        self._rates = rates
        self._waits = waits
        self._refusals = refusals
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.TimerHandle | None = None
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        """Connections that are closed after their throttle time."""
        self._next: tuple[socket.socket, str] | None = None
        """The connection that is served after the wait."""
        self._opening = BackgroundTasks()

    def start(self) -> None:
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Stop accepting. Connections that are served stay open."""
        self._loop.remove_reader(self._socket)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._next is not None:
            self._next[0].close()
        for held, timer in self._held.items():
            timer.cancel()
            held.close()
        self._held.clear()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("listener %s cannot accept connections: %s", self._listener, error)
                self._wait(RETRY_S)
                return
            accepted.setblocking(False)
            delay_s = self._rates.accepted(self._listener, self._loop.time())
            if delay_s > 0:
                self._waits.throttles += 1
                self._waits.seconds += delay_s
                self._next = accepted, address[0]
                self._wait(delay_s)
                return
            self._serve(accepted, address[0])

    def _wait(self, delay_s: float) -> None:
        self._loop.remove_reader(self._socket)
        self._waiting = self._loop.call_later(delay_s, self._go_on)

    def _go_on(self) -> None:
        self._waiting = None
        if self._next is not None:
            accepted, self._next = self._next, None
            self._serve(*accepted)
        self._loop.add_reader(self._socket, self._accept)

    def _serve(self, accepted: socket.socket, host: str) -> None:
        delay_s = self._rates.accepted_from(self._listener, plain_address(host), self._loop.time())
        if delay_s > 0:
            self._refusals.throttles += 1
            self._refusals.seconds += delay_s
            self._held[accepted] = self._loop.call_later(delay_s, self._close_held, accepted)
            return
        self._opening.begin("opening a connection", self._open(accepted))

    def _close_held(self, held: socket.socket) -> None:
        del self._held[held]
        held.close()

    async def _open(self, accepted: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # the client has left already
            await self._loop.connect_accepted_socket(self._make, accepted)
