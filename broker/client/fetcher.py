"""Read record batches as bytes: one partition at a time, pipelined, or many partitions at once.

Called by Spark executors, which decode the bytes to columns, and by the console. `Fetcher` has a connection of its
own, since it pipelines: `prefetch()` sends a request, and the next `fetch()` of the same offset takes the response.
`FetchStream` always prefetches, so that the next bytes arrive while the caller decodes; at most two responses are in
memory. Both follow leaders, or the replicas that leaders name (KIP-392), and retry time-outs and broken connections
(`Cluster.retrying`). Not thread-safe.

`fetch_together` reads ranges that are too small for a request of their own: one request to each broker.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from broker.client.auto_closeable import AutoCloseable
from broker.client.broker_connection import BrokerConnection
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node, UnknownTopic
from broker.client.denials import check
from broker.client.fetch_protocol import FetchFrom, FetchLimits, receive_fetch, send_fetch
from broker.client.leader_fetches import LeaderFetches
from broker.client.partition_offsets import NO_EPOCH, Position, find_truncations
from broker.errors import BrokerError, CorruptBatch, ErrorCode, ProtocolError, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.fetch_parser import FetchedPartition
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import find_last_batch, parse_header

_LONGEST_WAIT_S: Final = 5.0

_MARGIN: Final = 1.25
_SLACK_BYTES: Final = 64 << 10
"""How much more is asked for than a range needs if its records are as large as those before. What then is missing takes
a further request; what is too much, the network for nothing."""


class Fetched(NamedTuple):
    """The result of a fetch. `next_offset` follows the last whole batch: fetch there next."""

    records: memoryview
    """Unchecked record batches. The first may begin before the requested offset, the last may be incomplete."""
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]
    """(producer id, first offset) of each aborted transaction in range; empty unless read_committed."""
    next_offset: int


class Fetcher(AutoCloseable):
    """Reads the partition `tp`. Defaults come from the cluster's settings."""

    def __init__(
        self,
        cluster: Cluster,
        tp: TopicPartition,
        *,
        max_bytes: int | None = None,
        max_wait_ms: int | None = None,
        isolation_level: str | None = None,
        allocate: Callable[[int], memoryview] | None = None,
    ) -> None:
        """`max_bytes` (`max.partition.fetch.bytes`) limits a response, but the first batch is always complete (KIP-74).

        `allocate(size)` returns the memory that a response of `size` bytes is received into.
        """
        self.cluster = cluster
        self.tp = tp
        limits = FetchLimits.of(cluster.settings, isolation_level)
        partition_bytes = limits.partition_bytes if max_bytes is None else max_bytes
        self._limits = limits._replace(
            max_bytes=max(limits.max_bytes, partition_bytes),
            max_wait_ms=limits.max_wait_ms if max_wait_ms is None else max_wait_ms,
            partition_bytes=partition_bytes,
        )
        self._allocate = allocate
        self._connection: BrokerConnection | None = None
        self._node: Node | None = None
        self._asked: FetchFrom | None = None
        self._reached = Position(-1, NO_EPOCH)
        self.topic_id: str | None = None
        """If set, only the topic with this id is read, and another one of its name is UnknownTopic. Brokers before
        Kafka 3.1 are not asked by id: there it is noticed only when the metadata is new."""
        self._bytes_per_offset: float | None = None  # in the last answer with records
        self.throttled_until = 0.0
        """The end of the last throttle time (monotonic), in which no records come."""

    def fetch(self, offset: int, *, until: int | None = None, timeout_s: float | None = None) -> Fetched:
        """The batches from the one with `offset` on; none when there is nothing new within `max_wait_ms`.

        `until`: what follows this offset is not wanted. Once the size of records is known, no more is asked for than
        they should need, but the answer may hold more, or less.

        Raises BrokerError `offset_out_of_range` when the log does not have `offset` any more, or not yet, and
        UnknownTopic when the partition was deleted. Retriable errors are retried for `timeout_s`
        (`default.api.timeout.ms`) first.
        """
        return self.cluster.retrying(lambda: self._fetch_once(offset, until), timeout_s=timeout_s)

    def prefetch(self, offset: int, *, until: int | None = None) -> None:
        """Send the request for `offset` without waiting: the next `fetch(offset)` takes the response."""
        try:
            self._ask(offset, until)
        except PykafkaError:
            self.close()  # the fetch tries again, and raises the error

    def close(self) -> None:
        """Close the connection, and drop a response in flight. May be called again; a later fetch reconnects."""
        connection, self._connection, self._asked = self._connection, None, None
        if connection is not None:
            connection.close()

    def _fetch_once(self, offset: int, until: int | None) -> Fetched:
        replicas = self.cluster.read_replicas
        while True:
            try:
                if self._asked is None or self._asked.offset != offset:
                    self._ask(offset, until)
                asked = self._asked
                partition = self._receive()
                if partition is None:
                    continue  # throttled: the broker answers the next request when the throttle time is over
            except PykafkaError:
                self.close()
                replicas.fall_back(self.tp)
                raise
            if partition.error is ErrorCode.none and partition.preferred_read_replica >= 0:
                replicas.prefer(self.tp, partition.preferred_read_replica)
            elif partition.error is ErrorCode.none or not replicas.fall_back(self.tp):
                break
        what = f"fetching {self.tp} at offset {offset}"
        check(self.cluster.settings, ApiKey.FETCH, partition.error, what, self.tp.topic)
        assert asked is not None
        fetched = _fetched(partition, offset)
        self._reached = Position(fetched.next_offset, asked.leader_epoch)
        if fetched.next_offset > offset:
            self._bytes_per_offset = len(fetched.records) / (fetched.next_offset - offset)
        return fetched

    def _ask(self, offset: int, until: int | None) -> None:
        connection = self._connect()
        wanted = FetchFrom.at(self.cluster, self.tp, offset)
        if not self._is_own(wanted.topic_id):
            # A broker may not have heard of the topic yet that is read.
            self.cluster.topic(self.tp.topic, lambda found: self._is_own(found.topic_id))
            wanted = FetchFrom.at(self.cluster, self.tp, offset)
            if not self._is_own(wanted.topic_id):
                raise UnknownTopic(f"topic {self.tp.topic!r} was deleted and recreated while it was read")
        if offset == self._reached.offset and wanted.leader_epoch > self._reached.leader_epoch > NO_EPOCH:
            for truncation in find_truncations(self.cluster, {self.tp: self._reached}).values():
                raise BrokerError(ErrorCode.offset_out_of_range, str(truncation))
        send_fetch(
            connection, self._limits_of(offset, until), [wanted], rack=self.cluster.read_replicas.rack_for([self.tp])
        )
        self._asked = wanted

    def _is_own(self, found: uuid.UUID | None) -> bool:
        return None in (found, self.topic_id) or str(found) == self.topic_id

    def _limits_of(self, offset: int, until: int | None) -> FetchLimits:
        """No less than `fetch.min.bytes`, for which a broker would wait in vain."""
        if until is None or self._bytes_per_offset is None:
            return self._limits
        needed = int((until - offset) * self._bytes_per_offset * _MARGIN) + _SLACK_BYTES
        needed = max(needed, self._limits.min_bytes)
        return self._limits._replace(partition_bytes=min(self._limits.partition_bytes, needed))

    def _receive(self) -> FetchedPartition | None:
        """The answer; None if the client's quota is exceeded, for which brokers answer with no partition."""
        connection, self._asked = self._connection, None
        if connection is None:
            raise ProtocolError(f"no fetch of {self.tp} was asked for")
        timeout_s = connection.timeout_s + self._limits.max_wait_ms / 1000
        found = receive_fetch(connection, f"fetching {self.tp} from {connection.address}", timeout_s=timeout_s)
        if not found and connection.throttled_until > self.throttled_until:
            self.throttled_until = connection.throttled_until
            return None
        if len(found) != 1 or found[0].partition != self.tp.partition:
            raise ProtocolError(f"{connection.address} answered a fetch of {self.tp} with other partitions")
        return found[0]

    def _connect(self) -> BrokerConnection:
        """The connection to the broker to read from; a new one when that moved, or to drop a response in flight."""
        node = self.cluster.read_replica(self.tp)
        if self._connection is not None and (self._asked is not None or node != self._node):
            self.close()
        if self._connection is None or not self._connection.usable_after_login():
            self.close()
            self._connection = self.cluster.open_connection(node)
            if self._allocate is not None:
                self._connection.allocate = self._allocate
            self._connection.overdue_s += self._limits.max_wait_ms / 1000
            if node == self.cluster.known_leader(self.tp):
                self._connection.watch = partial(self.cluster.check_leader, node, [self.tp])
            self._node = node
        return self._connection


class FetchStream:
    """Iterates over a partition from `start` up to `end` (exclusive), with one fetch ahead.

    With `end=None` it never ends, and yields empty results when there is nothing new. With an end all results have
    records, and the last one may extend beyond `end`; it raises RequestTimedOut when nothing can be read for `stall_s`
    seconds (`default.api.timeout.ms`). Records that a broker has to get from its archive may take longer. Other errors
    are those of `Fetcher.fetch`.
    """

    def __init__(self, fetcher: Fetcher, start: int, end: int | None = None, *, stall_s: float | None = None) -> None:
        self._fetcher = fetcher
        self._position = start
        self._end = end
        self._stall_s = fetcher.cluster.settings.default_api_timeout_ms / 1000 if stall_s is None else stall_s

    @property
    def position(self) -> int:
        """The offset after everything that was yielded."""
        return self._position

    def __iter__(self) -> Iterator[Fetched]:
        progress = time.monotonic()
        while self._end is None or self._position < self._end:
            fetched = self._fetcher.fetch(self._position, until=self._end)
            if fetched.next_offset > self._position or self._position < fetched.last_stable_offset:
                progress = time.monotonic()  # or there are records, which the broker has to get from its archive
            if fetched.next_offset <= self._position and self._end is not None:
                self._check_progress(max(progress, self._fetcher.throttled_until), fetched)
                continue
            self._position = fetched.next_offset
            if self._end is None or self._position < self._end:
                self._fetcher.prefetch(self._position, until=self._end)
            yield fetched

    def _check_progress(self, progress: float, fetched: Fetched) -> None:
        if time.monotonic() - progress > self._stall_s:
            raise RequestTimedOut(
                f"{self._fetcher.tp}: nothing came at offset {self._position} for {self._stall_s:g} s; the range "
                f"ends at {self._end}, the high watermark is {fetched.high_watermark}, the last stable offset "
                f"{fetched.last_stable_offset}"
            )


def end_of_batches(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch, or `offset` if there is none. Raises CorruptBatch."""
    return measure_batches(records, offset)[0]


def measure_batches(records: memoryview, offset: int) -> tuple[int, int]:
    """As `end_of_batches`, with the number of whole batches."""
    position, count = find_last_batch(records)
    next_offset = max(parse_header(records, position).next_offset, offset) if count else offset
    if records and next_offset == offset:
        raise CorruptBatch(f"{len(records)} bytes hold no whole batch at or after offset {offset}")
    return next_offset, count


def fetch_together(
    cluster: Cluster, positions: Mapping[TopicPartition, int], *, max_bytes: int, partition_bytes: int | None = None
) -> dict[TopicPartition, Fetched]:
    """Fetch many partitions at once: one request to each broker, all in flight together, without waiting for records.

    `positions`: the offset of each partition. Each response has at most `max_bytes`, or one batch; of one partition at
    most `partition_bytes` (None: what the settings say). A partition is missing in the result when there was no room,
    nothing to read, an error, or a connection that took longer than `PATIENCE_S`: fetch it with a `Fetcher`, which
    raises and retries. It uses the shared connections, so no other thread may fetch from `cluster` meanwhile.
    """
    found: dict[TopicPartition, Fetched] = {}

    def take(asked: FetchFrom, partition: FetchedPartition, error: BrokerError | None) -> None:
        if error is None and partition.records:
            found[asked.tp] = _fetched(partition, asked.offset)

    limits = FetchLimits.of(cluster.settings)._replace(min_bytes=0, max_bytes=max_bytes, max_wait_ms=0)
    limits = limits._replace(partition_bytes=partition_bytes or limits.partition_bytes)
    fetches = LeaderFetches(cluster, limits, take, shared=True)
    for partitions in (positions, fetches.redirected):
        with contextlib.suppress(PykafkaError):
            fetches.send({tp: Position(positions[tp], NO_EPOCH) for tp in partitions})
        while fetches.in_flight:  # nothing may ask for metadata now, which might come over the same connection
            with contextlib.suppress(PykafkaError):
                fetches.receive(_LONGEST_WAIT_S)
    return found


def _fetched(partition: FetchedPartition, offset: int) -> Fetched:
    return Fetched(
        partition.records,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_start_offset,
        partition.aborted,
        end_of_batches(partition.records, offset),
    )
