"""The connections of a cluster's client, shared by broker id, and how new ones are made.

Made by cluster.py. A broker that cannot be reached holds up only those who want that one: each broker has a turn of its
own, and where any broker will do, the next one is tried after a second (dialling.py). Thread-safe.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Final

from broker.client.authentication import client_context
from broker.client.broker_connection import WATCH_EVERY_S, BrokerConnection
from broker.client.client_settings import ClientSettings
from broker.client.cluster_metadata import Node
from broker.client.dialling import abandon, dial, first_connected
from broker.client.live_brokers import LiveBrokers
from broker.client.tcp_connect import CANONICAL, canonical
from broker.errors import ConnectionFailed, ProtocolError, PykafkaError, RequestTimedOut

_BOOTSTRAP: Final = -1


class NodePool:
    """The shared connections, for `request()` only. Calls after `close` fail."""

    def __init__(self, addresses: Sequence[tuple[str, int]], settings: ClientSettings) -> None:
        self._addresses = addresses
        self._settings = settings
        self._context = client_context(settings)
        self._login = settings.login()
        self._lock = threading.Lock()
        self._turns: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)
        """Who connects to a broker, while others who want the same one wait."""
        self._connections: dict[int, BrokerConnection] = {}
        self._reached: set[tuple[str, int]] = set()
        self._closed = False
        self.live = LiveBrokers(self._connect)

    def open(self, host: str, port: int) -> BrokerConnection:
        """A new connection, which belongs to the caller. Raises the errors of BrokerConnection.

        It is watched: a request to a broker that has left the cluster fails before its time-out, and so does this.
        """
        dialled = dial(partial(self._connect, host, port))
        try:
            while not wait([dialled], WATCH_EVERY_S).done:
                self.live.check(host, port)
        except BaseException:
            abandon(dialled)
            raise
        connection = dialled.result()
        connection.watch = partial(self.live.check, host, port)
        return connection

    def _connect(self, host: str, port: int) -> BrokerConnection:
        settings = self._settings
        try:
            connection = BrokerConnection(
                host,
                port,
                client_id=settings.client_id,
                timeout_s=settings.request_timeout_ms / 1000,
                connect_timeout_s=settings.socket_connection_setup_timeout_ms / 1000,
                tls=self._context,
                login=self._login,
                proxy_url=settings.proxy_url,
            )
        except (ConnectionFailed, RequestTimedOut) as error:
            if (host, port) in self._reached or (host, port) in self._addresses:
                raise
            raise type(error)(f"{error}{self._advertised}") from error
        self._reached.add((host, port))
        return connection

    @property
    def _advertised(self) -> str:
        """What to check where an address that brokers told was never reached."""
        given = ",".join(self._settings.bootstrap_servers)
        way = "whether the proxy leads to it" if self._settings.proxy_url else "DNS, routes and firewalls, VPC peering"
        also = "" if self._settings.proxy_url else ", or set proxy.url"
        return (
            ". This address is what the brokers advertise (advertised.listeners); "
            f"bootstrap.servers={given} was given. If the broker is up, it cannot be reached from here by that "
            f"address: check {way}{also}"
        )

    def get(self, node: Node) -> BrokerConnection:
        """The shared connection to `node`, reopened when it is broken."""
        with self._lock:
            found = self._usable(node)
            turn = self._turns[node.id]
        if found is not None:
            return found
        with turn:
            with self._lock:
                found = self._usable(node)
            return found or self._keep(node.id, self.open(node.host, node.port))

    def known(self, node: Node) -> BrokerConnection | None:
        """The shared connection to `node` if it is open; nothing is waited for."""
        with self._lock:
            return self._usable(node)

    def has(self, node: Node) -> bool:
        with self._lock:
            connection = self._connections.get(node.id)
            return connection is not None and connection.usable

    def first_of(self, nodes: Sequence[Node]) -> BrokerConnection | None:
        """The shared connection to one of `nodes`, the first ones preferred; None if none can be reached."""
        if nodes and self.has(nodes[0]):
            return self.get(nodes[0])
        connects = [partial(self.get, node) for node in nodes]
        return first_connected(connects, (ConnectionFailed, RequestTimedOut), late=_keep_it)[0]

    def adopt_bootstrap(self, nodes: Iterable[Node]) -> None:
        """Keep the bootstrap connection under the id of its broker, now that it is known, or close it."""
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
        """Close all connections. May be called again."""
        with self._lock:
            self._closed = True
            connections = list(self._connections.values())
            self._connections.clear()
        for connection in connections:
            connection.close()
        self.live.close()

    def bootstrap(self) -> BrokerConnection:
        """A connection to the first address that answers. ConnectionFailed lists all failures.

        They are tried in the order given, the next one also when one takes longer than a second."""
        with self._turns[_BOOTSTRAP]:
            with self._lock:
                self._refuse_when_closed()
                connection = self._connections.get(_BOOTSTRAP)
                if connection is not None and connection.usable:
                    return connection
            given = self._addresses
            if self._settings.client_dns_lookup == CANONICAL:
                given = canonical(given)
            passes = (ConnectionFailed, RequestTimedOut, ProtocolError)
            found, failures = first_connected([partial(self.open, *address) for address in given], passes, late=abandon)
            if found is not None:
                return self._keep(_BOOTSTRAP, found)
        why = "; ".join(map(str, failures))
        raise ConnectionFailed(f"no broker of bootstrap.servers could be reached: {why}")

    def _usable(self, node: Node) -> BrokerConnection | None:
        """The caller holds the lock."""
        self._refuse_when_closed()
        connection = self._connections.get(node.id)
        if connection is None:
            return None
        if connection.usable and (connection.host, connection.port) == (node.host, node.port):
            return connection
        del self._connections[node.id]
        connection.close()
        return None

    def _keep(self, id_: int, connection: BrokerConnection) -> BrokerConnection:
        with self._lock:
            if self._closed:
                connection.close()
            self._refuse_when_closed()
            kept = self._connections.get(id_)
            if kept is not None and kept.usable and (kept.host, kept.port) == (connection.host, connection.port):
                # Made known meanwhile by adopt_bootstrap: somebody may be using that one, and nobody this one.
                connection.close()
                return kept
            if kept is not None:
                kept.close()
            self._connections[id_] = connection
            return connection

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise PykafkaError("this client was closed")


def _keep_it(_dialled: object) -> None:
    """A shared connection that is made late is kept, as all of them are."""
