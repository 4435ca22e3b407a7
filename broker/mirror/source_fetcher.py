"""Fetches many partitions of the source: one request in flight to each leader, the next one sent before a response is
copied, so that the source, the mirror and the target work at the same time."""

from __future__ import annotations

import select
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from broker.client.auto_closeable import AutoCloseable
from broker.client.broker_connection import BrokerConnection
from broker.client.client_settings import isolation_id
from broker.client.cluster import Cluster, Outage
from broker.client.cluster_metadata import Node
from broker.client.denials import refusal
from broker.client.fetch_protocol import FetchFrom, FetchLimits, by_place, receive_fetch, send_fetch
from broker.client.fetcher import end_of_batches
from broker.client.partition_offsets import NO_EPOCH, Position
from broker.errors import BrokerError, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition

_LOST: Final = (ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id)
"""Errors that only the mirror can act on."""


class FetchedBatches(NamedTuple):
    """What a leader answered for one partition. `next` is the position after it."""

    tp: TopicPartition
    start: int
    next: Position
    partition: FetchedPartition


class _Request(NamedTuple):
    wanted: list[FetchFrom]
    sent_at: float


class SourceFetcher(AutoCloseable):
    """Reads committed records of the partitions in `positions`, from their leaders. Not thread-safe."""

    def __init__(self, cluster: Cluster) -> None:
        settings = cluster.settings
        self._cluster = cluster
        self._limits = FetchLimits(
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
            settings.fetch_max_wait_ms,
            isolation_id("read_committed"),
        )
        self._positions: dict[TopicPartition, Position] = {}
        """Partitions that had records are moved to the end: the first ones are served first."""
        self.lost: dict[TopicPartition, BrokerError] = {}
        """Partitions that are not fetched any more, until `seek`: the position or the partition does not exist."""
        self.doubtful: dict[TopicPartition, Position] = {}
        """Partitions whose leader is newer than the position. They are not fetched until `seek` (KIP-320)."""
        self._connections: dict[Node, BrokerConnection] = {}
        self._requests: dict[Node, _Request] = {}
        self._paused_until: dict[Node, float] = {}
        self._renew_at = 0.0
        self._outage: Outage | None = None

    def seek(self, tp: TopicPartition, position: Position) -> None:
        """Fetch `tp` from `position` on. A response to an earlier request for another offset is ignored."""
        self._positions[tp] = position
        self.lost.pop(tp, None)
        self.doubtful.pop(tp, None)

    def forget(self, tp: TopicPartition) -> None:
        """Fetch `tp` no longer."""
        self._positions.pop(tp, None)
        self.lost.pop(tp, None)
        self.doubtful.pop(tp, None)

    def poll(self, timeout_s: float) -> list[FetchedBatches]:
        """What has arrived within `timeout_s`, also for partitions without records. Raises what is not retriable."""
        self._cluster.include({tp.topic for tp in self._positions})
        self._renew_metadata()
        self._send()
        if not self._requests:
            time.sleep(min(timeout_s, self._cluster.settings.retry_backoff_ms / 1000))
            return []
        poller = select.poll()
        by_fd: dict[int, Node] = {}
        for node in list(self._requests):
            try:
                fd = self._connections[node].fileno()
            except PykafkaError as error:
                self._drop(node, error)
                continue
            by_fd[fd] = node
            poller.register(fd, select.POLLIN)
        buffered = any(self._connections[node].has_buffered for node in by_fd.values())
        found: list[FetchedBatches] = []
        for fd, _ in poller.poll(0 if buffered else max(timeout_s, 0) * 1000):
            found += self._receive(by_fd[fd])
        if buffered:
            found += [
                one
                for node in list(self._requests)
                if self._connections[node].has_buffered
                for one in self._receive(node)
            ]
        self._time_out()
        self._send()
        return found

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._requests.clear()

    def _renew_metadata(self) -> None:
        now = time.monotonic()
        if not self._cluster.stale or now < self._renew_at:
            return
        try:
            self._cluster.renew()
            self._outage = None
        except PykafkaError as error:
            if not error.retriable:
                raise
            self._outage = self._outage or Outage(now)
            self._outage.failed(error)
        self._renew_at = now + self._cluster.backoff_s(1)

    def _send(self) -> None:
        """Send a request to each leader that has none in flight."""
        now = time.monotonic()
        by_leader: dict[Node, list[FetchFrom]] = defaultdict(list)
        for tp, position in self._positions.items():
            if tp in self.lost or tp in self.doubtful:
                continue
            leader = self._cluster.known_leader(tp)
            if leader is None:
                self._cluster.invalidate()
                continue
            if leader in self._requests or self._paused_until.get(leader, 0.0) > now:
                continue
            try:
                wanted = FetchFrom.at(
                    self._cluster, tp, position.offset, self._cluster.settings.max_partition_fetch_bytes
                )
            except PykafkaError as error:
                if not error.retriable and not isinstance(error, BrokerError):
                    raise
                continue  # the metadata has just become stale
            if wanted.leader_epoch > position.leader_epoch > NO_EPOCH:
                self.doubtful[tp] = Position(position.offset, position.leader_epoch)
            else:
                by_leader[leader].append(wanted)
        for leader, partitions in by_leader.items():
            self._send_to(leader, partitions, now)

    def _send_to(self, leader: Node, wanted: list[FetchFrom], now: float) -> None:
        try:
            connection = self._connections.get(leader)
            if connection is None or not connection.usable:
                self._connections.pop(leader, None)
                connection = self._connections[leader] = self._cluster.open_connection(leader)
            send_fetch(connection, self._limits, wanted)
            self._requests[leader] = _Request(wanted, now)
        except PykafkaError as error:
            self._drop(leader, error)

    def _receive(self, node: Node) -> list[FetchedBatches]:
        request = self._requests.pop(node)
        try:
            answered = receive_fetch(self._connections[node], f"fetching from {node}")
        except PykafkaError as error:
            self._drop(node, error)
            return []
        places = by_place(request.wanted)
        return [
            one
            for partition in answered
            if (item := places.get((partition.topic, partition.partition))) is not None
            and (one := self._take(node, item, partition)) is not None
        ]

    def _take(self, node: Node, item: FetchFrom, partition: FetchedPartition) -> FetchedBatches | None:
        tp = item.tp
        position = self._positions.get(tp)
        if position is None or position.offset != item.offset:
            return None
        if partition.error is not ErrorCode.none:
            what = f"fetching {tp} at offset {item.offset}"
            error = refusal(self._cluster.settings, ApiKey.FETCH, partition.error, what, tp.topic)
            if partition.error in _LOST:
                self.lost[tp] = error
            elif not error.retriable:
                raise error
            self._cluster.invalidate()
            self._paused_until[node] = time.monotonic() + self._cluster.backoff_s(1)
            return None
        following = Position(end_of_batches(partition.records, item.offset), item.leader_epoch)
        if partition.records:
            del self._positions[tp]
        self._positions[tp] = following
        return FetchedBatches(tp, item.offset, following, partition)

    def _time_out(self) -> None:
        settings = self._cluster.settings
        limit_s = (settings.request_timeout_ms + settings.fetch_max_wait_ms) / 1000
        for node, request in list(self._requests.items()):
            if time.monotonic() - max(request.sent_at, self._connections[node].throttled_until) > limit_s:
                self._drop(node, RequestTimedOut(f"{node} did not answer a fetch within {limit_s:g} s"))

    def _drop(self, node: Node, error: PykafkaError) -> None:
        """A connection broke, or could not be opened. Raises an error that is not retriable."""
        self._requests.pop(node, None)
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()
        if not error.retriable:
            raise error
        self._cluster.invalidate()
        self._paused_until[node] = time.monotonic() + self._cluster.backoff_s(1)
        self._outage = self._outage or Outage(time.monotonic())
        self._outage.failed(error)

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The next position of each partition."""
        return self._positions
