"""The connections a client shares: at most one per broker, made when first asked for.

Called by cluster.py. Also finds the first broker: `bootstrap()` tries every address of
`bootstrap.servers` and says why each failed. Thread-safe; what it hands out is for `request()` only,
whoever pipelines opens a connection of its own with `open()`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from broker.client.connection import Connection
from broker.client.metadata import Node
from broker.client.settings import ClientSettings
from broker.client.tls import client_context
from broker.errors import ConnectionFailed, ProtocolError, PykafkaError, RequestTimedOut

__all__ = ["NodePool"]

_BOOTSTRAP = -1


class NodePool:
    """Open connections by broker id. `close()` closes all; after it every call raises PykafkaError."""

    def __init__(self, addresses: Sequence[tuple[str, int]], settings: ClientSettings) -> None:
        self._addresses = addresses
        self._settings = settings
        self._context = client_context(settings)
        self._login = settings.login()
        self._lock = threading.Lock()
        self._connections: dict[int, Connection] = {}
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def open(self, host: str, port: int) -> Connection:
        """A new connection that belongs to the caller. Raises ConnectionFailed and the other errors of Connection."""
        settings = self._settings
        return Connection(
            host,
            port,
            client_id=settings.client_id,
            timeout_s=settings.request_timeout_ms / 1000,
            connect_timeout_s=settings.socket_connection_setup_timeout_ms / 1000,
            tls=self._context,
            login=self._login,
        )

    def get(self, node: Node) -> Connection:
        """The shared connection to `node`, made anew when it broke."""
        with self._lock:
            self._refuse_when_closed()
            connection = self._connections.get(node.id)
            if connection is not None:
                if connection.usable and (connection.host, connection.port) == (node.host, node.port):
                    return connection
                del self._connections[node.id]
                connection.close()
            connection = self._connections[node.id] = self.open(node.host, node.port)
            return connection

    def has(self, node: Node) -> bool:
        """Whether the shared connection to `node` is there."""
        with self._lock:
            connection = self._connections.get(node.id)
            return connection is not None and connection.usable

    def adopt_bootstrap(self, nodes: Iterable[Node]) -> None:
        """Now that ids are known, keep the bootstrap connection under the id of its broker, or drop it."""
        with self._lock:
            connection = self._connections.pop(_BOOTSTRAP, None)
            if connection is None:
                return
            for node in nodes:
                if (node.host, node.port) == (connection.host, connection.port) and node.id not in self._connections:
                    self._connections[node.id] = connection
                    return
            connection.close()

    def close(self) -> None:
        """Hang up everywhere. May be called again."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()

    def bootstrap(self) -> Connection:
        """The first address that answers, in the order given. ConnectionFailed tells what each one said."""
        with self._lock:
            self._refuse_when_closed()
            connection = self._connections.get(_BOOTSTRAP)
            if connection is not None and connection.usable:
                return connection
            failures: list[str] = []
            for host, port in self._addresses:
                try:
                    connection = self._connections[_BOOTSTRAP] = self.open(host, port)
                    return connection
                except (ConnectionFailed, RequestTimedOut, ProtocolError) as error:
                    failures.append(str(error))
        raise ConnectionFailed(f"no broker of bootstrap.servers could be reached: {'; '.join(failures)}")

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise PykafkaError("this client was closed")
