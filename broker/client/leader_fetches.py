"""Fetching many partitions: one request in flight to each broker, for all partitions to be read there.

Called from one thread by consumer.py, by the mirror's source_fetcher.py, and for a single round by fetcher.py. `send`
asks every broker that has no request in flight, `receive` hands each partition of the responses to the callback `take`.
It follows leaders, or reads from the replicas that leaders name (KIP-392). A partition whose fetch failed waits for
`retry.backoff.ms`, a broker whose connection failed for `reconnect.backoff.ms`, which doubles with each failure.
"""

from __future__ import annotations

import itertools
import select
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from broker.client.auto_closeable import AutoCloseable
from broker.client.broker_connection import OVERDUE_S, WATCH_EVERY_S, BrokerConnection
from broker.client.client_stats import Statistics
from broker.client.cluster import Cluster, Outage
from broker.client.cluster_metadata import Node
from broker.client.denials import refusal
from broker.client.dialling import Connecting
from broker.client.fetch_protocol import FetchFrom, FetchLimits, by_place, receive_fetch, send_fetch
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import BrokerError, ConnectionFailed, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition

Take = Callable[[FetchFrom, FetchedPartition, BrokerError | None], None]
"""Called with what was asked, the partition of the response, and its error. One that is retriable is retried."""

_LEAST_PARTITION_BYTES: Final = 64 << 10
"""Smallest limit for one partition: with many partitions an equal share would become too small."""


class _Request(NamedTuple):
    connection: BrokerConnection
    wanted: list[FetchFrom]
    partitions: set[TopicPartition]
    """Of `wanted`."""
    sent_at: float


class LeaderFetches(AutoCloseable):
    """The Fetch requests in flight to the brokers of `cluster`, at most one to each. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        limits: FetchLimits,
        take: Take,
        *,
        shared: bool = False,
        statistics: Statistics | None = None,
    ) -> None:
        """It opens connections of its own, and a partition may fill `max.partition.fetch.bytes`.

        With `shared` it uses the connections of the cluster, and a partition may fill an equal share of a response.
        """
        self.doubtful: set[TopicPartition] = set()
        """Partitions whose leader is newer than their position. The caller checks their positions (KIP-320)."""
        self.redirected: set[TopicPartition] = set()
        """Partitions that a leader said to read from another replica."""
        self._cluster = cluster
        self._limits = limits
        self._take = take
        self._shared = shared
        self._statistics = statistics
        self._connections: dict[Node, BrokerConnection] = {}
        self._connecting = Connecting()
        self._requests: dict[Node, _Request] = {}
        self._watch_at = 0.0
        """When to look next after brokers that owe an answer."""
        self._look_again = 0.0
        self._disconnections: dict[int, int] = {}
        """How often in a row the connection to a broker failed."""
        self._unreachable_until: dict[int, float] = {}
        self._turns = itertools.count()
        self._last_turn: dict[TopicPartition, int] = {}
        """When records of a partition came last. It is asked for last, because a response has room for few."""
        self._retry_at: dict[TopicPartition, float] = {}
        """When to fetch a partition again whose last fetch failed."""
        self._outage: Outage | None = None

    @property
    def in_flight(self) -> bool:
        return bool(self._requests)

    def send(
        self, positions: Mapping[TopicPartition, Position], unread: Collection[TopicPartition] = ()
    ) -> dict[TopicPartition, BrokerError]:
        """Send a request to each broker that has none in flight, for its partitions among `positions`.

        A broker with partitions that are `unread` is left out: the request would lack the busy partition and wait for
        the quiet ones, and meanwhile the busy partition could not be fetched. Returns the partitions that cannot be
        found, such as those of a topic that does not exist. Raises other errors that are not retriable.
        """
        self._cluster.include({tp.topic for tp in positions})
        now = time.monotonic()
        if not self._renew_metadata(now):
            return {}
        by_node: dict[Node, list[FetchFrom]] = defaultdict(list)
        missing: dict[TopicPartition, BrokerError] = {}
        busy = set(self._requests)

        def find_all() -> None:
            for tp, position in positions.items():
                if self._retry_at and self._retry_at.get(tp, 0.0) > now:
                    continue
                try:
                    node = self._cluster.read_replica(tp)
                    request = self._requests.get(node)
                    if request is not None and tp in request.partitions:
                        continue  # the answer is on its way
                    wanted = FetchFrom.at(self._cluster, tp, position.offset)
                except PykafkaError as error:
                    if error.retriable:
                        self._look_for_leaders(now)
                    elif isinstance(error, BrokerError):
                        missing[tp] = error
                    else:
                        raise
                    continue
                if self._unreachable_until and self._unreachable_until.get(node.id, 0.0) > now:
                    self._look_for_leaders(now)
                    continue
                if tp in unread:
                    busy.add(node)
                if wanted.leader_epoch > position.leader_epoch > NO_EPOCH:
                    self.doubtful.add(tp)
                else:
                    by_node[node].append(wanted)

        self._cluster.retrying(find_all, timeout_s=0)
        for node, of_node in by_node.items():
            if node not in busy:
                self._send_to(node, of_node)
        return missing

    def receive(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` for a response, and hand over what is there. Raises what is not retriable."""
        if not self._requests:
            time.sleep(min(timeout_s, self._cluster.settings.retry_backoff_ms / 1000))
            return
        poller = select.poll()
        by_fd: dict[int, Node] = {}
        for node, request in list(self._requests.items()):
            try:
                fd = request.connection.fileno()
            except PykafkaError as error:
                self._disconnected(node, request.wanted, error)
                continue
            by_fd[fd] = node
            poller.register(fd, select.POLLIN)
        for fd, _ in poller.poll(max(timeout_s, 0) * 1000):
            self._receive_from(by_fd[fd])
        self._time_out()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._connecting.close()
        self._requests.clear()

    def _renew_metadata(self, now: float) -> bool:
        """Renew stale metadata in one attempt for all partitions; False while no broker answers."""
        if not self._cluster.stale:
            return True
        try:
            self._cluster.renew()
        except PykafkaError as error:
            if not error.retriable:
                raise
            self._outage = self._outage or Outage(now)
            self._outage.failed(error)
            return False
        self._outage = None
        return True

    def _look_for_leaders(self, now: float) -> None:
        """Renew the metadata at the next call, but not more often than every `retry.backoff.ms`."""
        if now >= self._look_again:
            self._look_again = now + self._cluster.backoff_s(1)
            self._cluster.invalidate()

    def _send_to(self, node: Node, wanted: list[FetchFrom]) -> None:
        wanted.sort(key=lambda item: self._last_turn.get(item.tp, -1))
        limits = self._limits
        if self._shared:
            share = min(max(limits.max_bytes // len(wanted), _LEAST_PARTITION_BYTES), limits.max_bytes)
            limits = limits._replace(partition_bytes=share)
        try:
            connection = self._connections.get(node)
            if connection is None or not (connection.usable if self._shared else connection.usable_after_login()):
                self._drop(node)
                connect = self._cluster.connection if self._shared else self._cluster.open_connection
                known = self._cluster.known_connection(node) if self._shared else None
                connection = known or self._connecting.get(node, lambda: connect(node))
                if connection is None:
                    return  # it takes long; the next call looks again
                self._connections[node] = connection
            rack = self._cluster.read_replicas.rack_for(item.tp for item in wanted)
            send_fetch(connection, limits, wanted, rack=rack)
            self._requests[node] = _Request(connection, wanted, {item.tp for item in wanted}, time.monotonic())
        except PykafkaError as error:
            self._disconnected(node, wanted, error)

    def _receive_from(self, node: Node) -> None:
        request = self._requests.pop(node)
        try:
            partitions = receive_fetch(request.connection, f"fetching from {node}")
        except PykafkaError as error:
            self._disconnected(node, request.wanted, error)
            return
        if self._statistics is not None:
            self._statistics.answered(node.id, time.monotonic() - request.sent_at)
        if self._disconnections:
            self._disconnections.pop(node.id, None)
        places = by_place(request.wanted)
        for partition in partitions:
            asked = places.get((partition.topic, partition.partition))
            if asked is not None:
                self._hand_over(asked, partition)

    def _hand_over(self, asked: FetchFrom, partition: FetchedPartition) -> None:
        tp, replicas, error = asked.tp, self._cluster.read_replicas, None
        if partition.error is not ErrorCode.none:
            if replicas.fall_back(tp):
                return  # the leader may have what another replica does not
            what = f"fetching {tp} at offset {asked.offset}"
            error = refusal(self._cluster.settings, ApiKey.FETCH, partition.error, what, tp.topic)
            if error.retriable:
                self._retry_at[tp] = time.monotonic() + self._cluster.backoff_s(1)
                self._cluster.invalidate()
        elif partition.preferred_read_replica >= 0:
            replicas.prefer(tp, partition.preferred_read_replica)
            self.redirected.add(tp)
            return
        elif partition.records:
            self._last_turn[tp] = next(self._turns)
        self._take(asked, partition, error)

    def _time_out(self) -> None:
        settings = self._cluster.settings
        wait_s = self._limits.max_wait_ms / 1000
        limit_s = settings.request_timeout_ms / 1000 + wait_s
        now = time.monotonic()
        watch = now >= self._watch_at
        for node, request in list(self._requests.items()):
            silent_s = now - max(request.sent_at, request.connection.throttled_until)
            if silent_s > limit_s:
                error = RequestTimedOut(f"{node} did not answer a fetch within {limit_s:g} s")
                self._disconnected(node, request.wanted, error)
            elif watch and silent_s > OVERDUE_S + wait_s:
                self._watch_at = now + WATCH_EVERY_S
                self._watch(node, request)

    def _watch(self, node: Node, request: _Request) -> None:
        """A broker owes an answer: give it up if it has gone, and look for leaders, which are asked instead of it."""
        try:
            self._cluster.check(node)
        except ConnectionFailed as error:
            self._disconnected(node, request.wanted, error)
        self._cluster.doubt(node)

    def _disconnected(self, node: Node, wanted: Iterable[FetchFrom], error: PykafkaError) -> None:
        """Do not connect to `node` for a while, and look for other leaders. Read what was `wanted` from leaders.

        Raises `error` if it is not retriable.
        """
        self._drop(node)
        for item in wanted:
            self._cluster.read_replicas.fall_back(item.tp)
        failures = self._disconnections[node.id] = self._disconnections.get(node.id, 0) + 1
        self._unreachable_until[node.id] = time.monotonic() + self._cluster.reconnect_backoff_s(failures)
        self._cluster.invalidate()
        if not error.retriable:
            raise error

    def _drop(self, node: Node) -> None:
        self._requests.pop(node, None)
        connection = self._connections.pop(node, None)
        if connection is not None:
            if self._statistics is not None:
                self._statistics.unreachable(node.id)
            connection.close()
            self._cluster.invalidate()
