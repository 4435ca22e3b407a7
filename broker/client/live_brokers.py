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
from collections.abc import Callable, Iterable
from functools import partial

from broker.client.broker_connection import WATCH_EVERY_S, BrokerConnection
from broker.client.cluster_metadata import Node, parse_metadata
from broker.client.dialling import PATIENCE_S, Connecting
from broker.errors import ConnectionFailed, PykafkaError
from broker.protocol.api_keys import ApiKey

Address = tuple[str, int]


class LiveBrokers:
    """What the brokers themselves say about who is in the cluster."""

    def __init__(self, connect: Callable[[str, int], BrokerConnection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._advertised: set[Address] = set()
        """Every broker that was ever known. Other addresses, such as a load balancer's, are not judged."""
        self._alive: set[Address] = set()
        """Who is in the cluster, as `_witness` said at `_asked_at` (monotonic); empty if nobody said so."""
        self._asked_at = 0.0
        self._witness: BrokerConnection | None = None
        self._connecting = Connecting()
        self._closed = threading.Event()
        self.gone: set[Address] = set()
        """Brokers that were found to have left, and have not come back."""

    def learn(self, nodes: Iterable[Node]) -> set[Address]:
        """These are the brokers of the cluster now; returns their addresses."""
        alive = {(node.host, node.port) for node in nodes}
        self._advertised |= alive
        self.gone -= alive
        return alive

    def check(self, host: str, port: int) -> None:
        """Raise ConnectionFailed if another broker says that the one at this address has left the cluster.

        May take up to two seconds, if the broker that is asked is silent, too. Without a verdict it returns.
        """
        about, now = (host, port), time.monotonic()
        if self._closed.is_set() or about not in self._advertised or not self._lock.acquire(blocking=False):
            return  # another thread is asking, and this one asks again in a second
        try:
            if self._speaks_for_itself(about) or now - self._asked_at >= WATCH_EVERY_S:
                self._asked_at = now
                self._alive = self._ask(about)
            if self._alive and about not in self._alive:
                self.gone.add(about)
                witness = self._witness.address if self._witness else "another broker"
                raise ConnectionFailed(f"{host}:{port} has not answered, and {witness} says that it is gone")
        finally:
            self._lock.release()
            if self._closed.is_set():
                self.close()

    def close(self) -> None:
        """End the connections; a question that is under way in another thread ends its own after the answer."""
        self._closed.set()
        if self._lock.acquire(blocking=False):
            self._connecting.close()
            self._drop()
            self._lock.release()

    def _ask(self, about: Address) -> set[Address]:
        try:
            if self._witness is None or not self._witness.usable or self._speaks_for_itself(about):
                self._drop()
                others = list(self._advertised - self.gone - {about})
                other = random.choice(others) if others else None
                self._witness = other and self._connecting.get(other, partial(self._connect, *other))
            if self._witness is None:
                return set()
            body = {"topics": [], "allow_auto_topic_creation": False}
            answer = self._witness.request(ApiKey.METADATA, body, timeout_s=PATIENCE_S)
            return self.learn(parse_metadata(answer).brokers.values())
        except PykafkaError:
            self._drop()
            return set()

    def _speaks_for_itself(self, about: Address) -> bool:
        return self._witness is not None and (self._witness.host, self._witness.port) == about

    def _drop(self) -> None:
        witness, self._witness = self._witness, None
        if witness is not None:
            witness.close()
