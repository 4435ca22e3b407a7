"""Listening sockets and the connections they accepted.

The server binds first, so that it knows its port before it registers, and serves once it is ready.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import socket

from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.net.connection import Connection
from broker.net.router import Router

__all__ = ["ListenerSet"]

logger = logging.getLogger(__name__)

BACKLOG = 1024


class ListenerSet:
    """All listeners of a broker; connections are counted per address and closed when idle."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._per_ip: collections.Counter[str] = collections.Counter()
        self.bound: list[Listener] = []

    def bind(self) -> list[Listener]:
        """Bind every configured listener; gives them with the ports they got. Raises ConfigError."""
        for text in self._config.listeners:
            wanted = Listener.parse(text)
            try:
                bound = self._bind_one(wanted)
            except OSError as error:
                self._close_sockets()
                raise ConfigError(f"listeners={text}: {error.strerror or error}") from error
            self._sockets.append(bound)
            self.bound.append(Listener(wanted.protocol, wanted.host, bound.getsockname()[1]))
        return self.bound

    def _bind_one(self, wanted: Listener) -> socket.socket:
        family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
        new = socket.socket(family, socket.SOCK_STREAM)
        try:
            new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for option, size in (
                (socket.SO_SNDBUF, self._config.socket_send_buffer_bytes),
                (socket.SO_RCVBUF, self._config.socket_receive_buffer_bytes),
            ):
                if size > 0:
                    new.setsockopt(socket.SOL_SOCKET, option, size)
            new.bind((wanted.host, wanted.port))
        except OSError:
            new.close()
            raise
        return new

    async def serve(self, router: Router) -> None:
        """Start to accept."""
        loop = asyncio.get_running_loop()

        def make() -> Connection:
            return _Counted(router, self._config.socket_request_max_bytes, self)

        for bound in self._sockets:
            self._servers.append(await loop.create_server(make, sock=bound, backlog=BACKLOG))

    def close_idle(self) -> int:
        """Close connections silent for longer than connections.max.idle.ms; gives how many."""
        limit = asyncio.get_running_loop().time() - self._config.connections_max_idle_ms / 1000
        idle = [c for c in self._connections if c.last_active < limit and not c.waiting]
        for connection in idle:
            connection.abort()  # also one that was closed before and whose peer never took the rest
        return len(idle)

    async def close(self) -> None:
        """Stop to accept and close every connection."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close()
        self._close_sockets()
        await asyncio.sleep(0)

    def update_config(self, config: BrokerConfig) -> None:
        """Limits hold from now on for new connections, idle time for all; where we listen does not change."""
        self._config = config

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            bound.close()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, unless its address has too many."""
        host = connection.client.host
        if self._per_ip[host] >= self._config.max_connections_per_ip:
            logger.warning("refusing a connection of %s: max.connections.per.ip reached", host)
            return False
        self._per_ip[host] += 1
        self._connections.add(connection)
        return True

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._per_ip[connection.client.host] -= 1
            if not self._per_ip[connection.client.host]:
                del self._per_ip[connection.client.host]


class _Counted(Connection):
    """A connection that reports to the listener set it came from."""

    def __init__(self, router: Router, max_request_bytes: int, owner: ListenerSet) -> None:
        super().__init__(router, max_request_bytes, owner.forget)
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._owner.admit(self):
            self.close()
