"""Listening sockets and the connections they accepted.

The server binds first, so that it knows its port before it registers, and serves once it is ready.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
import ssl
from collections.abc import Callable

from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.metrics import ListenerMetrics, Metrics
from broker.net.connection import Connection
from broker.net.connection_limits import ConnectionLimits, parse_overrides
from broker.net.request_memory import RequestMemory
from broker.net.router import Router
from broker.net.sasl import FindCredential, SaslSession
from broker.net.tls import TlsStream, server_context

__all__ = ["ListenerSet"]

logger = logging.getLogger(__name__)

BACKLOG = 1024


class ListenerSet:
    """All listeners of a broker; connections are counted, limited, and closed when nothing comes of them."""

    def __init__(self, config: BrokerConfig, metrics: Metrics | None = None) -> None:
        """Raises ConfigError for limits and listeners that cannot be read."""
        self._config = config
        self._metrics = metrics or Metrics()
        self._limits = ConnectionLimits()
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[Connection] = set()
        self._security = config.listener_security()
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.bound: list[Listener] = []

    def bind(self) -> list[Listener]:
        """Bind every configured listener; gives them with the ports they got. Raises ConfigError, also for keys and
        certificates that cannot be used."""
        for name, security in self._security.items():
            if security.listener.encrypted:
                self._contexts[name] = server_context(security)
        for wanted in self._config.parsed_listeners():
            try:
                bound = self._bind_one(wanted)
            except OSError as error:
                self._close_sockets()
                raise ConfigError(f"listeners={wanted}: {error.strerror or error}") from error
            self._sockets.append(bound)
            self.bound.append(dataclasses.replace(wanted, port=bound.getsockname()[1]))
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

    async def serve(self, router: Router, find_credential: FindCredential = lambda mechanism, user: None) -> None:
        """Start to accept; `find_credential` knows the users of SCRAM."""
        loop = asyncio.get_running_loop()
        for bound, listener in zip(self._sockets, self.bound, strict=True):
            make = self._factory(listener, router, find_credential)
            self._servers.append(await loop.create_server(make, sock=bound, backlog=BACKLOG))

    def _factory(self, listener: Listener, router: Router, find: FindCredential) -> Callable[[], _Counted | TlsStream]:
        """What makes the protocol object of each connection of a listener."""
        counts, security = self._metrics.listeners[listener.name], self._security[listener.name]
        context = self._contexts.get(listener.name)

        def make() -> _Counted | TlsStream:
            sasl = SaslSession(security, find) if listener.sasl else None
            connection = _Counted(router, self._config.socket_request_max_bytes, self, counts, listener.name, sasl)
            return connection if context is None else TlsStream(connection, context)

        return make

    def close_idle(self) -> int:
        """Close connections that are silent for too long (connections.max.idle.ms) or take too long to send a request
        they began (socket.request.receive.timeout.ms); gives how many."""
        now, closed = asyncio.get_running_loop().time(), 0
        idle_s = self._config.connections_max_idle_ms / 1000
        overdue_s = self._config.socket_request_receive_timeout_ms / 1000
        for connection in tuple(self._connections):
            # Abort also one that was closed before and whose peer never took the rest.
            if connection.last_active < now - idle_s and not connection.waiting:
                connection.abort("idle", f"silent for longer than connections.max.idle.ms={idle_s * 1000:g}")
            elif connection.is_overdue(now, overdue_s):
                connection.abort("slow", f"no whole request in socket.request.receive.timeout.ms={overdue_s * 1000:g}")
            else:
                continue
            closed += 1
        return closed

    async def close(self) -> None:
        """Stop to accept and close every connection."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.close("shutdown")
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

    def admit(self, connection: Connection) -> None:
        """Count a new connection in, unless there are too many."""
        host, config = connection.client.host, self._config
        limit = self._limits.exceeded(host, config.max_connections, config.max_connections_per_ip, self._overrides)
        if limit is not None:
            connection.close("limit", f"{limit} reached")
            return
        self._limits.add(host)
        self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._limits.remove(connection.client.host)


class _Counted(Connection):
    """A connection that reports to the listener set it came from."""

    def __init__(
        self,
        router: Router,
        max_request_bytes: int,
        owner: ListenerSet,
        counts: ListenerMetrics,
        listener: str,
        sasl: SaslSession | None,
    ) -> None:
        super().__init__(router, max_request_bytes, self._ended, owner.memory, listener=listener, sasl=sasl)
        self._owner = owner
        self._counts = counts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._counts.accepted += 1
        self._owner.admit(self)

    def secured(self, principal: str | None) -> None:
        super().secured(principal)
        if principal is not None:
            self._logged_in(True)

    def _logged_in(self, succeeded: bool) -> None:
        if succeeded:
            self._counts.successful_authentications += 1
        else:
            self._counts.failed_authentications += 1

    def _ended(self, _: Connection) -> None:
        self._counts.closed[self.end_reason] += 1
        self._owner.forget(self)
