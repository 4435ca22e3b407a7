"""Whether a broker that owes an answer is still in the cluster, as another broker says.

A host that vanishes sends nothing, so `request.timeout.ms` would pass before anything else is tried. But the cluster
notices after a few seconds: the broker's session ends, it is in no answer to Metadata any more, and its partitions have
other leaders. So whoever waits for an answer for more than `OVERDUE_S` (broker_connection.py) asks one of the other
brokers every second.

A broker that is slow, or waits on purpose (a fetch without records, a group that rebalances), stays in the cluster, and
is waited for as before. Thread-safe. The questions go over a connection of their own: all others may be waiting.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import wait

from broker.client.broker_connection import WATCH_EVERY_S, BrokerConnection
from broker.client.cluster_metadata import Node, parse_metadata
from broker.client.dialling import PATIENCE_S, abandon, dial
from broker.errors import ConnectionFailed, PykafkaError
from broker.protocol.api_keys import ApiKey

Address = tuple[str, int]


class LiveBrokers:
    """What the brokers themselves say about who is in the cluster."""

    def __init__(self, connect: Callable[[str, int], BrokerConnection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._advertised: dict[Address, Node] = {}
        """Every broker that was ever known. Other addresses, such as a load balancer's, are not judged."""
        self._alive: Collection[Address] = ()
        self._witness: Node | None = None
        """Who said so last. It is asked again, as long as it answers."""
        self._connection: BrokerConnection | None = None
        self._asked_at = 0.0
        self._silent: dict[Address, float] = {}
        """When a broker gave no answer here, monotonic: others are asked first."""
        self.gone: set[Address] = set()
        """Brokers that were found to have left, and have not come back."""
        self._closed = False

    def learn(self, nodes: Iterable[Node]) -> None:
        """These are the brokers of the cluster now."""
        alive = {(node.host, node.port): node for node in nodes}
        self._advertised |= alive
        self.gone -= alive.keys()

    def check(self, host: str, port: int) -> None:
        """Raise ConnectionFailed if another broker says that the one at this address has left the cluster.

        May take up to two seconds, if the broker that is asked is silent, too. Without a verdict it returns.
        """
        if (host, port) not in self._advertised or not self._lock.acquire(blocking=False):
            return  # another thread is asking, and this one asks again in a second
        try:
            now = time.monotonic()
            told_itself = self._witness is not None and (self._witness.host, self._witness.port) == (host, port)
            if told_itself or now - self._asked_at >= WATCH_EVERY_S:
                self._asked_at = now
                self._alive = ()
                self._ask((host, port))
            if self._alive and (host, port) not in self._alive:
                self.gone.add((host, port))
                raise ConnectionFailed(f"{host}:{port} has not answered, and {self._witness} says that it is gone")
        finally:
            self._lock.release()

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _ask(self, about: Address) -> None:
        witness = self._witness
        if witness is None or self._connection is None or (witness.host, witness.port) == about:
            self._drop()
            others = [node for address, node in self._advertised.items() if address != about]
            if not others:
                return
            random.shuffle(others)
            witness = min(others, key=lambda node: self._silent.get((node.host, node.port), 0.0))
        self._witness = witness
        try:
            connection = self._open(witness)
            body = {"topics": [], "allow_auto_topic_creation": False}
            answer = parse_metadata(connection.request(ApiKey.METADATA, body, timeout_s=PATIENCE_S))
        except (PykafkaError, TimeoutError):
            self._silent[witness.host, witness.port] = time.monotonic()
            self._drop()
            self._witness = None
            return
        self._alive = {(node.host, node.port) for node in answer.brokers.values()}
        self.learn(answer.brokers.values())

    def _open(self, node: Node) -> BrokerConnection:
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        dialled = dial(lambda: self._connect(node.host, node.port))
        wait([dialled], PATIENCE_S)
        if not dialled.done():
            abandon(dialled)
            raise TimeoutError
        self._connection = dialled.result()
        if self._closed:
            self._drop()
            raise TimeoutError
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
