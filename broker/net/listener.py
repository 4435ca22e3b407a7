"""Listening sockets, the connections they accept, and limits on these.

The server binds first, so that it knows its port before it registers, and accepts connections once it is ready.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import errno
import functools
import logging
import socket
from collections.abc import Callable, Mapping, Sequence

from broker.clock import Clock
from broker.config.broker_config import BrokerConfig
from broker.config.listener import Listener
from broker.errors import ConfigError
from broker.metrics import Metrics
from broker.net.acceptor import Acceptor
from broker.net.client_host import CLIENT_SILENT_S
from broker.net.connection import VANISHED, Connection
from broker.net.frame_reader import RequestMemory
from broker.net.router import Router
from broker.net.sasl import FindCredential, FindToken, SaslSession
from broker.net.tls import RenewedContext, TlsStream, server_context
from broker.net.token_verifier import TokenVerifier, token_verifier
from broker.quotas.connection_rates import ConnectionRates
from broker.security.mechanisms import GSSAPI, OAUTHBEARER
from broker.security.principal_mapping import PrincipalMapping

logger = logging.getLogger(__name__)

_HINTS = {
    errno.EADDRINUSE: "; stop what listens there, or give another port",
    errno.EADDRNOTAVAIL: "; listen on an address of this machine, such as 0.0.0.0; "
    "advertised.listeners names what clients connect to",
}


def _refused(listener: Listener, error: OSError) -> ConfigError:
    return ConfigError(f"listeners={listener}: {error.strerror or error}{_HINTS.get(error.errno or 0, '')}")


class ListenerSet:
    """All listeners of a broker. Counts and limits their connections, and closes idle ones."""

    def __init__(self, config: BrokerConfig, metrics: Metrics | None = None, clock: Clock | None = None) -> None:
        """Raises ConfigError for invalid limits and listeners."""
        self._config = config
        self._metrics = metrics or Metrics()
        self._limits = ConnectionLimits()
        self._overrides = parse_overrides(config.max_connections_per_ip_overrides)
        self.memory = RequestMemory(config.queued_max_request_bytes)
        self._sockets: list[socket.socket] = []
        self._acceptors: list[Acceptor] = []
        self._connections: set[Connection] = set()
        self._security = config.listener_security()
        self._contexts: dict[str, RenewedContext] = {}
        self._clock = clock
        self._verifiers: dict[str, TokenVerifier] = {}
        """By the name of each listener with OAUTHBEARER."""
        self.bound: list[Listener] = []
        listeners = config.parsed_listeners()
        self.rates = ConnectionRates(
            config.quota_window_num,
            config.quota_window_size_seconds,
            protected=config.inter_broker_listener() if len(listeners) > 1 else None,
        )
        self.rates.configure(config.max_connection_creation_rate, config.connection_rates())

    def bind(self) -> list[Listener]:
        """Bind every configured listener; returns them with their ports.

        Raises ConfigError, also for keys and certificates that cannot be used.
        """
        for name, security in self._security.items():
            if security.listener.encrypted:
                make = functools.partial(server_context, security)
                self._contexts[name] = RenewedContext(f"listener {name}", security.settings, make)
            if security.listener.sasl and OAUTHBEARER in security.settings.sasl_enabled_mechanisms:
                self._verifiers[name] = token_verifier(security, self._clock)
            if security.listener.sasl and GSSAPI in security.settings.sasl_enabled_mechanisms and security.kerberos:
                security.kerberos.check()
        for wanted in self._config.parsed_listeners():
            try:
                bound = self._bind_one(wanted)
            except OSError as error:
                self._close_sockets()
                raise _refused(wanted, error) from error
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

    async def serve(
        self,
        router: Router,
        find_credential: FindCredential = lambda mechanism, user: None,
        find_token: FindToken = lambda mechanism, token_id: None,
    ) -> None:
        """Accept connections; `find_credential` looks up SCRAM users, `find_token` delegation tokens."""
        for verifier in self._verifiers.values():
            verifier.start()
        for bound, listener in zip(self._sockets, self.bound, strict=True):
            counts = self._metrics.listeners[listener.name]
            acceptor = Acceptor(
                bound,
                listener.name,
                self._factory(listener, router, find_credential, find_token),
                self.rates,
                waits=counts.accept_waits,
                refusals=counts.ip_throttles,
            )
            try:
                acceptor.start()
            except OSError as error:  # another socket took the port after ours was bound
                raise _refused(listener, error) from error
            self._acceptors.append(acceptor)

    def _factory(
        self, listener: Listener, router: Router, find: FindCredential, find_token: FindToken
    ) -> Callable[[], Connection | TlsStream]:
        """A factory of the protocol objects of a listener's connections."""
        counts, security = self._metrics.listeners[listener.name], self._security[listener.name]
        renewed = self._contexts.get(listener.name)
        verifier = self._verifiers.get(listener.name)
        verify = None if verifier is None else verifier.verify
        mapping = PrincipalMapping(security.settings.ssl_principal_mapping_rules)

        def make() -> Connection | TlsStream:
            sasl = SaslSession(security, find, verify, find_token) if listener.sasl else None
            connection = Connection(
                router,
                self._config.socket_request_max_bytes,
                self.memory,
                counts,
                on_open=self._admit,
                on_close=self._forget,
                listener=listener.name,
                sasl=sasl,
                mapping=mapping,
            )
            return connection if renewed is None else TlsStream(connection, renewed.context)

        return make

    def renew_certificates(self) -> None:
        """Look whether key stores and trust stores have changed; new connections use the changed ones."""
        for one in self._contexts.values():
            one.renew()

    def close_idle(self) -> int:
        """Close connections that are idle (connections.max.idle.ms), take too long to send a request
        (socket.request.receive.timeout.ms), or whose client's host is gone; returns how many."""
        now, closed = asyncio.get_running_loop().time(), 0
        idle_s = self._config.connections_max_idle_ms / 1000
        overdue_s = self._config.socket_request_receive_timeout_ms / 1000
        for connection in tuple(self._connections):
            # This also aborts a closed connection whose peer never took the rest.
            if connection.last_active < now - idle_s and not connection.waiting:
                connection.abort("idle", f"silent for longer than connections.max.idle.ms={idle_s * 1000:g}")
            elif connection.is_overdue(now, overdue_s):
                connection.abort("slow", f"no whole request in socket.request.receive.timeout.ms={overdue_s * 1000:g}")
            elif connection.has_vanished(now):
                connection.abort(VANISHED, f"its host has acknowledged nothing for {CLIENT_SILENT_S:g} s")
            else:
                continue
            closed += 1
        return closed

    def outdate(self) -> None:
        """A feature of the cluster was taken back. Clients that use it learn that when they connect anew."""
        for connection in self._connections:
            connection.is_outdated = True

    async def close(self) -> None:
        """Stop accepting and close every connection. All of that is done, also if a step of it raises. Idempotent."""
        with contextlib.ExitStack() as steps:  # the last is the first
            steps.callback(self._close_sockets)
            for connection in self._connections:
                steps.callback(connection.close, "shutdown")
            for verifier in self._verifiers.values():
                steps.callback(verifier.close)
            while self._acceptors:
                steps.callback(self._acceptors.pop().close)
        await asyncio.sleep(0)

    def update_config(self, config: BrokerConfig) -> None:
        """Apply limits to new connections and the idle time to all; the listeners themselves do not change."""
        self._config = config
        self.rates.configure(config.max_connection_creation_rate, config.connection_rates())

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def throttled_count(self) -> int:
        return sum([connection.muted for connection in self._connections])

    def _close_sockets(self) -> None:
        for bound in self._sockets:
            bound.close()

    def _admit(self, connection: Connection) -> None:
        """Count a new connection, or close it when there are too many."""
        host, config = connection.client.host, self._config
        limit = self._limits.exceeded(host, config.max_connections, config.max_connections_per_ip, self._overrides)
        if limit is not None:
            connection.close("limit", f"{limit} reached")
            return
        self._limits.add(host)
        self._connections.add(connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.discard(connection)
            self._limits.remove(connection.client.host)


class ConnectionLimits:
    """Counts connections in all and by address. Idea: Kafka's `ConnectionQuotas`.

    A connection above the limit is closed at once, so that its client can try again or elsewhere. (Kafka lets one above
    `max.connections` wait unaccepted.)
    """

    def __init__(self) -> None:
        self._per_ip: collections.Counter[str] = collections.Counter()
        self._total = 0

    def exceeded(self, host: str, total: int, per_ip: int, overrides: Mapping[str, int]) -> str | None:
        """The setting that another connection from `host` would exceed, or None."""
        if self._total >= total:
            return "max.connections"
        if host in overrides:
            return "max.connections.per.ip.overrides" if self._per_ip[host] >= overrides[host] else None
        return "max.connections.per.ip" if self._per_ip[host] >= per_ip else None

    def add(self, host: str) -> None:
        self._total += 1
        self._per_ip[host] += 1

    def remove(self, host: str) -> None:
        self._total -= 1
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]


def parse_overrides(entries: Sequence[str]) -> dict[str, int]:
    """`max.connections.per.ip.overrides` as address → limit; host names are resolved once. Raises ConfigError."""
    limits: dict[str, int] = {}
    for entry in entries:
        host, colon, count = entry.rpartition(":")
        if not colon or not host or not count.isdigit():
            raise ConfigError(f"max.connections.per.ip.overrides={entry}: expected address:count, such as 10.0.0.7:100")
        try:
            found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"max.connections.per.ip.overrides={entry}: {error}") from error
        limits.update((str(address[0]), int(count)) for *_, address in found)
    return limits
