"""Fetching for a consumer: one request at a time to each broker, for all partitions to be read there (KIP-392).

Called by consumer.py from the thread that polls. Responses are kept until they are read, and their partitions are not
fetched again before that, so memory is bounded by `fetch.max.bytes` per broker. Records are decoded poll by poll.
"""

from __future__ import annotations

import itertools
import select
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import isolation_id
from broker.client.client_stats import Statistics
from broker.client.cluster import Cluster, Outage
from broker.client.cluster_metadata import Node
from broker.client.denials import refusal
from broker.client.fetch_protocol import FetchFrom, FetchLimits, by_place, receive_fetch, send_fetch
from broker.client.fetcher import measure_batches
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import BrokerError, CorruptBatch, ErrorCode, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import Record, decode_records


class CompletedFetch:
    """The records of one partition in a fetch response, decoded piece by piece."""

    def __init__(self, asked: FetchFrom, fetched: FetchedPartition, *, check_crcs: bool) -> None:
        self.tp = asked.tp
        self.leader_epoch = asked.leader_epoch
        """The epoch of the leader that responded."""
        self.position = offset = asked.offset
        """Offset of the next record. Continue only while it is the consumer's position."""
        self.high_watermark = fetched.high_watermark
        self._end, self._batches = measure_batches(fetched.records, offset)
        self._size = len(fetched.records)
        self._error: CorruptBatch | None = None
        self._records: Iterator[Record] = decode_records(
            fetched.records, low=offset, check_crcs=check_crcs, aborted=fetched.aborted
        )

    def read(self, limit: int) -> list[Record]:
        """The next records, up to `limit`; fewer only at the end, then `position` is after everything fetched.

        Raises CorruptBatch when the batch at `position` cannot be read.
        """
        records: list[Record] = []
        try:
            if self._error is not None:
                raise self._error
            records.extend(itertools.islice(self._records, limit))
        except CorruptBatch as error:
            if not records:
                raise
            self._error = error
        if self._error is not None or len(records) == limit:
            self.position = records[-1].offset + 1
        else:
            self.position = self._end
        return records

    def count(self, statistics: Statistics, records: int) -> None:
        """Count records that were returned; the first call counts the bytes and batches of the fetch too."""
        size, batches = self._size, self._batches
        self._size = self._batches = 0
        statistics.batches(self.tp.topic, time.monotonic(), records=records, size=size, batches=batches)

    @property
    def exhausted(self) -> bool:
        return self.position >= self._end


class _Request(NamedTuple):
    connection: BrokerConnection
    wanted: list[FetchFrom]
    sent_at: float


class ConsumerFetch:
    """Fetch requests in flight, and responses that are not read yet."""

    def __init__(self, cluster: Cluster, statistics: Statistics) -> None:
        settings = cluster.settings
        self._statistics = statistics
        self.completed: deque[CompletedFetch] = deque()
        self._cluster = cluster
        self._settings = settings
        self._limits = FetchLimits(
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.fetch_max_wait_ms,
            isolation_id(settings.isolation_level),
        )
        self.reached: dict[TopicPartition, Position] = {}
        """Positions at which a log ended, with the leader epoch of the broker that responded."""
        self.doubtful: set[TopicPartition] = set()
        """Partitions whose leader is newer than their position; not fetched until that is checked (KIP-320)."""
        self._connections: dict[Node, BrokerConnection] = {}
        self._requests: dict[Node, _Request] = {}
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

    def send(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Send a request to each leader that has none in flight, for its partitions among `positions`.

        A leader with unread responses is left out: the request would lack the busy partition and wait for the quiet
        ones, and meanwhile the busy partition could not be fetched.
        """
        buffered = {fetch.tp for fetch in self.completed}
        by_leader: dict[Node, list[FetchFrom]] = defaultdict(list)
        not_now = set(self._requests)
        now = time.monotonic()
        for tp, position in positions.items():
            if self._retry_at and self._retry_at.get(tp, 0.0) > now:
                continue
            found = self._find(tp, position.offset)
            if found is None:
                continue
            leader, wanted_here = found
            if self._unreachable_until and self._unreachable_until.get(leader.id, 0.0) > now:
                self._look_for_leaders(now)
                continue
            if tp in buffered:
                not_now.add(leader)
            if wanted_here.leader_epoch > position.leader_epoch > NO_EPOCH:
                self.doubtful.add(tp)
            else:
                by_leader[leader].append(wanted_here)
        for leader, wanted in by_leader.items():
            if leader not in not_now:
                wanted.sort(key=lambda item: self._last_turn.get(item.tp, -1))
                self._send_to(leader, wanted)

    def receive(self, timeout_s: float) -> dict[TopicPartition, BrokerError]:
        """Wait up to `timeout_s` for an answer and take what is there; partitions whose error is not retriable."""
        if not self._requests:
            time.sleep(min(timeout_s, self._settings.retry_backoff_ms / 1000))
            return {}
        poller = select.poll()
        by_fd: dict[int, Node] = {}
        failures: dict[TopicPartition, BrokerError] = {}
        for node, request in list(self._requests.items()):
            try:
                by_fd[request.connection.fileno()] = node
                poller.register(request.connection.fileno(), select.POLLIN)
            except PykafkaError:
                self._drop(node)
        for fd, _ in poller.poll(max(timeout_s, 0) * 1000):
            failures.update(self._take(by_fd[fd]))
        self._time_out()
        return failures

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._requests.clear()
        self.completed.clear()

    def _find(self, tp: TopicPartition, offset: int) -> tuple[Node, FetchFrom] | None:
        """The broker to read `tp` from, and what to ask it for; None while it is unknown. Raises UnknownTopic."""

        def find() -> tuple[Node, FetchFrom]:
            cluster = self._cluster
            return cluster.read_replica(tp), FetchFrom.at(cluster, tp, offset, self._settings.max_partition_fetch_bytes)

        try:
            found = self._cluster.retrying(find, timeout_s=0)
        except PykafkaError as error:
            if not error.retriable:
                raise
            now = time.monotonic()
            self._outage = self._outage or Outage(now)
            self._outage.failed(error)
            self._look_for_leaders(now)
            return None
        self._outage = None
        return found

    def _look_for_leaders(self, now: float) -> None:
        """Renew the metadata at the next call, but not more often than every `retry.backoff.ms`."""
        if now >= self._look_again:
            self._look_again = now + self._cluster.backoff_s(1)
            self._cluster.invalidate()

    def _send_to(self, leader: Node, wanted: list[FetchFrom]) -> None:
        try:
            connection = self._connections.get(leader)
            if connection is None or not connection.usable:
                self._drop(leader)
                connection = self._connections[leader] = self._cluster.open_connection(leader)
            rack = self._cluster.read_replicas.rack_for(item.tp for item in wanted)
            send_fetch(connection, self._limits, wanted, rack=rack)
            self._requests[leader] = _Request(connection, wanted, time.monotonic())
        except PykafkaError as error:
            self._drop(leader)
            self._avoid(leader, wanted)
            if not error.retriable:
                raise

    def _take(self, node: Node) -> dict[TopicPartition, BrokerError]:
        request = self._requests.pop(node)
        try:
            found = receive_fetch(request.connection, f"fetching from {node}")
            self._statistics.answered(node.id, time.monotonic() - request.sent_at)
        except PykafkaError as error:
            self._drop(node)
            self._avoid(node, request.wanted)
            if not error.retriable:
                raise
            return {}
        if self._disconnections:
            self._disconnections.pop(node.id, None)
        by_index, replicas = by_place(request.wanted), self._cluster.read_replicas
        failures: dict[TopicPartition, BrokerError] = {}
        for partition in found:
            item = by_index[partition.topic, partition.partition]
            if partition.error is ErrorCode.none:
                if partition.preferred_read_replica >= 0:
                    replicas.prefer(item.tp, partition.preferred_read_replica)
                elif partition.records:
                    self._last_turn[item.tp] = next(self._turns)
                    check_crcs = self._settings.check_crcs
                    self.completed.append(CompletedFetch(item, partition, check_crcs=check_crcs))
                else:
                    self.reached[item.tp] = Position(item.offset, item.leader_epoch)
                continue
            if replicas.fall_back(item.tp):
                continue  # the leader may have what another replica does not
            what = f"fetching {item.tp} at offset {item.offset}"
            failure = refusal(self._settings, ApiKey.FETCH, partition.error, what, item.tp.topic)
            if failure.retriable:
                self._retry_at[item.tp] = time.monotonic() + self._cluster.backoff_s(1)
                self._cluster.invalidate()
            else:
                failures[item.tp] = failure
        return failures

    def _time_out(self) -> None:
        limit_s = (self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms) / 1000
        for node, request in list(self._requests.items()):
            if time.monotonic() - max(request.sent_at, request.connection.throttled_until) > limit_s:
                self._drop(node)
                self._avoid(node, request.wanted)

    def _avoid(self, node: Node, wanted: Iterable[FetchFrom]) -> None:
        """Do not connect to `node` for a while, and look for other leaders. Read what was `wanted` from leaders."""
        for item in wanted:
            self._cluster.read_replicas.fall_back(item.tp)
        failures = self._disconnections[node.id] = self._disconnections.get(node.id, 0) + 1
        self._unreachable_until[node.id] = time.monotonic() + self._cluster.reconnect_backoff_s(failures)
        self._cluster.invalidate()

    def _drop(self, node: Node) -> None:
        """Close the connection to `node`, if there is one, and look up leaders again."""
        self._requests.pop(node, None)
        connection = self._connections.pop(node, None)
        if connection is not None:
            self._statistics.unreachable(node.id)
            connection.close()
            self._cluster.invalidate()
