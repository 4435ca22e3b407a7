"""The idempotent sender: sends the batches of an accumulator, retries them, and keeps their order; Kafka's `Sender`.

`Producer` runs it in a thread of its own (`run`). `BatchProducer` runs it in its caller's thread.
"""

from __future__ import annotations

import logging
import math
import selectors
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import Final, NamedTuple

from broker.client.accumulator import Accumulator, PartitionQueue
from broker.client.broker_connection import OVERDUE_S, WATCH_EVERY_S, BrokerConnection
from broker.client.client_stats import Statistics
from broker.client.cluster import Cluster, Outage
from broker.client.cluster_metadata import Node
from broker.client.dialling import Connecting
from broker.client.produce_request import (
    MAX_SEQUENCE,
    PartitionResponse,
    ProducerIdentity,
    Stamp,
    init_producer_id,
    produce_request,
    read_produce_response,
)
from broker.client.producer_batch import ProducerBatch
from broker.client.transaction_manager import TransactionManager
from broker.client.transaction_requests import TransactionHandle
from broker.client.waker import Waker
from broker.errors import BrokerError, ConfigError, ConnectionFailed, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

_NOT_IN_REPLY: Final = PartitionResponse(
    ErrorCode.unknown_server_error, -1, -1, "the reply does not mention the partition"
)
_LONGEST_WAIT_S: Final = 5.0
_STILL_CONNECTING_S: Final = 0.05
"""So soon it looks again whether a connection is made that takes long."""
_UNANSWERED_AT_ONCE: Final = 64
"""Requests with acks=0 to one broker, before the sender looks after the others."""


class _Entry(NamedTuple):
    queue: PartitionQueue
    batch: ProducerBatch


class _Request(NamedTuple):
    sent_at: float
    entries: Sequence[_Entry]


class _BrokerLink:
    """The connection to one broker, and the Produce requests in flight on it, oldest first."""

    def __init__(self, node: Node, connection: BrokerConnection) -> None:
        self.node = node
        self.connection = connection
        self.fileno = connection.fileno()
        """For the selector, also after the connection was closed."""
        self.requests: deque[_Request] = deque()

    def close(self) -> list[_Entry]:
        """Close the connection; returns the batches that were in flight, oldest first."""
        self.connection.close()
        lost = [entry for request in self.requests for entry in request.entries]
        self.requests.clear()
        return lost


class Sender:
    """Sends what `accumulator` holds, to the leaders of the partitions.

    - **Requests.** A request has one batch for each partition of a broker that has something to send, up to
      `max.request.size`. Up to `max.in.flight.requests.per.connection` requests are in flight to each broker.
    - **Order.** When a batch fails, its partition sends nothing until all its batches in flight are answered. Then it
      resends in the old order. Without sequence numbers a batch behind the failed one may already be in the log; with
      `strict_order` a partition therefore has only one batch in flight.
    - **Idempotence** (acks=all, KIP-98). Batches have the sequence numbers of a producer id, so the broker writes a
      resent batch only once. A batch that is given up leaves a gap in the sequence numbers: the batches after it get
      a new producer id, or in a transaction a new epoch (KIP-360). A log that does not know the producer accepts any
      first sequence number, so a partition has one batch in flight until the log has accepted the first.
    - **Failures.** Retriable errors are retried up to `retries` times and until `delivery.timeout.ms`. A batch that the
      broker calls too large is split in two. What cannot be retried fails the batch; `failure` keeps the first such
      error. A broker that does not reply within `request.timeout.ms` is disconnected, and one that is silent when other
      brokers say that it is gone, or that others lead its partitions now.
    - **Transactions.** With `transactions` (a Producer's) a partition is added to the transaction before its first
      batch is sent, and when the transaction fails or is aborted, its unsent batches fail. With `transaction`, a
      handle, the caller has added the partitions.

    `send_ready`, `poll`, `stamp`, `enqueue` and `close` belong to one thread; `abort` may be called from any.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        statistics: Statistics,
        *,
        waker: Waker | None = None,
        transactions: TransactionManager | None = None,
        transaction: TransactionHandle | None = None,
        acks: int | None = None,
        strict_order: bool = False,
        idle: MutableMapping[Node, BrokerConnection] | None = None,
    ) -> None:
        """`acks`: -1 for all, 1, or 0; the setting by default. `idle`: connections to use before it opens new ones."""
        self._cluster = cluster
        self._settings = settings = cluster.settings
        self._accumulator = accumulator
        self._statistics = statistics
        self._waker = waker
        self._transactions = transactions
        self._transactional_id = transaction.transactional_id if transaction else None
        if transactions is not None:
            self._transactional_id = settings.transactional_id
        self._acks = settings.required_acks if acks is None else acks
        self._idempotent = self._acks == -1 and settings.enable_idempotence
        if self._transactional_id is not None and not self._idempotent:
            raise ConfigError("a transaction needs acks=all and enable.idempotence=true")
        self._strict_order = strict_order
        self._idle = idle
        self.failure: Exception | None = None
        """Why the first batch failed, or why a broker refused the connection."""
        self.leaderless: set[TopicPartition] = set()
        """Partitions with batches to send whose leader the metadata does not know."""
        self.largest_batch: dict[str, int] = {}
        """By topic: the size in bytes of the parts into which the last batch that was too large was split."""
        self._selector = selectors.DefaultSelector()
        if waker is not None:
            self._selector.register(waker, selectors.EVENT_READ)
        self._links: dict[int, _BrokerLink] = {}
        self._connecting = Connecting()
        self._watch_at = 0.0
        """When to look next after brokers that owe an answer."""
        self._unreachable_until: dict[int, float] = {}
        self._disconnections: dict[int, int] = {}
        """How often in a row the connection to a broker failed."""
        self._metadata_at = 0.0
        self._metadata_failures = 0
        self._outage: Outage | None = None
        self._last_error: PykafkaError | None = None
        """Why no broker could be reached the last time."""
        self._identity: ProducerIdentity | None = transaction.identity if transaction else None
        self._renewable = transaction is None and transactions is None
        """Whether the sender gets its producer id itself, and may get another one."""
        self._identity_at = 0.0
        self._sequences: dict[TopicPartition, int] = {}
        self._known_to_log: set[TopicPartition] = set()
        """Partitions whose log has a batch of this identity."""
        self._aborted = threading.Event()

    @property
    def brokers(self) -> int:
        return len(self._links)

    # --- driving it ----------------------------------------------------------------------------

    def run(self, report: Callable[[float], float]) -> None:
        """The main function of a thread; returns after `abort`, or when the closed accumulator is empty.

        `report(now)` is called in every turn and returns when (monotonic seconds) it is to be called again.
        """
        error: Exception = PykafkaError("the producer was closed before the record was acknowledged")
        try:
            while not self._aborted.is_set() and not (self._accumulator.closed and self._accumulator.empty):
                report_at = report(time.monotonic())
                self.poll(min(self.send_ready(), report_at))
        except Exception as bug:  # or callers would wait for ever
            logger.exception("the producer's sender stopped")
            error = bug
        finally:
            self._accumulator.close()
            self._give_up_unsent(error)
            for link in list(self._links.values()):
                for queue, batch in self._unlink(link):
                    self._give_up(queue, batch, error)
            self.close()

    def abort(self) -> None:
        """End `run`; batches that are not done fail."""
        self._aborted.set()
        if self._waker is not None:
            self._waker.wake()

    def send_ready(self) -> float:
        """Renew stale metadata, give up what is too old, and send what is ready.

        Returns when (monotonic seconds) to call it again, unless replies arrive before.
        """
        now = time.monotonic()
        self._renew_metadata(now)
        self._time_out(now)
        if self._transactions is not None:
            for (queue, batch), error in self._transactions.give_up_unsent(self._accumulator.drain):
                self._give_up(queue, batch, error)
        wake_at = now + _LONGEST_WAIT_S
        ready, look_again = self._accumulator.ready(now)
        if not ready:
            wake_at = min(wake_at, look_again)
        elif not self._has_identity(now):
            wake_at = min(wake_at, max(self._identity_at, now + 0.001))
        else:
            if self._transactions is not None:
                ready, try_again = self._transactions.admit(ready, now)
                wake_at = min(wake_at, try_again)
            wake_at = min(wake_at, look_again, self._send_to_leaders(ready, now))
        if self._cluster.stale:
            wake_at = min(wake_at, self._metadata_at)
        if any(link.requests for link in self._links.values()):
            wake_at = min(wake_at, now + WATCH_EVERY_S)
        return wake_at

    def poll(self, until: float) -> None:
        """Wait for replies until a time (monotonic seconds), and handle all that have arrived."""
        for key, _ in self._selector.select(max(until - time.monotonic(), 0.0)):
            if key.data is not None:
                self._receive_replies(key.data)
            elif self._waker is not None:
                self._waker.clear()

    def close(self, keep: MutableMapping[Node, BrokerConnection] | None = None) -> None:
        """Close the connections, except those without a request in flight that `keep` has a place for."""
        for link in list(self._links.values()):
            if keep is not None and link.node not in keep and not link.requests and self._acks != 0:
                keep[link.node] = link.connection
            else:
                link.close()
        self._links.clear()
        self._connecting.close()
        self._selector.close()
        if self._waker is not None:
            self._waker.close()

    # --- batches that come ready-made ----------------------------------------------------------

    def stamp(self, tp: TopicPartition) -> Stamp:
        """What the next batch of `tp` is best built with, so that it need not be changed before it is sent.

        Waits for a producer id the first time. Raises what that request raises.
        """
        if self._idempotent and self._identity is None and not self._links:
            self._identity = self._cluster.retrying(lambda: init_producer_id(self._cluster))
        return Stamp() if self._identity is None else Stamp(*self._identity, self._sequences.get(tp, 0))

    def enqueue(self, tp: TopicPartition, payload: bytes, stamp: Stamp, record_count: int) -> ProducerBatch:
        """Queue a ready-made batch with this stamp. If it does not follow on the batch before, it is stamped anew."""
        queue = self._accumulator.queue(tp)
        follows = not queue.waiting or queue.waiting[-1].identity == self._identity
        numbered = self._identity is not None and follows and stamp == self.stamp(tp)
        batch = self._accumulator.add(queue, payload, record_count)
        if numbered:
            batch.identity = self._identity
            self._sequences[tp] = (stamp.base_sequence + record_count) & MAX_SEQUENCE
        return batch

    # --- sending -------------------------------------------------------------------------------

    def _send_to_leaders(self, ready: Sequence[PartitionQueue], now: float) -> float:
        """Send what can be sent; returns when to try the rest again."""
        by_leader: dict[Node, list[PartitionQueue]] = defaultdict(list)
        try_again = math.inf
        self.leaderless.clear()
        for queue in ready:
            leader = self._cluster.known_leader(queue.tp)
            if leader is not None and self._unreachable_until.get(leader.id, 0.0) <= now:
                by_leader[leader].append(queue)
            else:
                self._cluster.invalidate()  # there may be a new leader
                if leader is None:
                    self.leaderless.add(queue.tp)
                else:
                    try_again = min(try_again, self._unreachable_until[leader.id])
        for leader, queues in by_leader.items():
            link = self._links.get(leader.id)
            if link is not None and link.connection.throttled_until > now:
                try_again = min(try_again, link.connection.throttled_until)
                continue
            try:
                link = self._link(leader)
                if link is None:
                    try_again = min(try_again, now + _STILL_CONNECTING_S)
                    continue
                if link.connection.login_is_old:
                    if link.requests:
                        continue  # their answers come first, and wake the sender
                    link.connection.log_in()
                if self._fill_link(link, queues, now):
                    try_again = now
            except PykafkaError as error:
                self._disconnected(leader, error, now)
                try_again = now
        return try_again

    def _fill_link(self, link: _BrokerLink, queues: Sequence[PartitionQueue], now: float) -> bool:
        """Send as many requests as may be in flight; whether there may be more to send at once, which needs acks=0."""
        limit = self._settings.max_in_flight_requests_per_connection if self._acks else _UNANSWERED_AT_ONCE
        for _ in range(limit - len(link.requests)):
            entries, size = [], 0
            for queue in queues:
                if not self._may_send(queue):
                    continue
                if size and size + queue.next_size(self._settings.batch_size) > self._settings.max_request_size:
                    break
                batch = self._accumulator.take(queue)
                if batch is not None:
                    entries.append(_Entry(queue, batch))
                    self._number(batch)
                    size += batch.size
            if not entries:
                return False
            self._send_request(link, entries, now)
        return self._acks == 0

    def _send_request(self, link: _BrokerLink, entries: Sequence[_Entry], now: float) -> None:
        link.requests.append(_Request(now, entries))  # before sending: if that fails, they are not lost
        body = produce_request(
            {queue.tp: batch.payload() for queue, batch in entries},
            acks=self._acks,
            timeout_ms=self._settings.request_timeout_ms,
            transactional_id=self._transactional_id,
        )
        link.connection.send(ApiKey.PRODUCE, body, expect_reply=self._acks != 0)
        if self._acks == 0:
            link.requests.pop()
            for queue, batch in entries:
                self._succeed(queue, batch, PartitionResponse(ErrorCode.none, -1, -1, ""))

    def _may_send(self, queue: PartitionQueue) -> bool:
        if not queue.in_flight:
            return True
        return queue.tp in self._known_to_log if self._idempotent else not self._strict_order

    def _number(self, batch: ProducerBatch) -> None:
        identity = self._identity
        if identity is not None and batch.identity != identity:
            sequence = self._sequences.get(batch.tp, 0)
            batch.stamp(identity, sequence)
            self._sequences[batch.tp] = (sequence + batch.record_count) & MAX_SEQUENCE

    def _link(self, node: Node) -> _BrokerLink | None:
        """None while the broker is being connected to, which takes long where its host has vanished."""
        link = self._links.get(node.id)
        if link is None or link.node != node:
            if link is not None:
                moved = ConnectionFailed(f"{link.node} moved to {node.address}")
                self._disconnected(link.node, moved, time.monotonic())
            connection = self._connect(node)
            if connection is None:
                return None
            link = self._links[node.id] = _BrokerLink(node, connection)
            self._selector.register(link.fileno, selectors.EVENT_READ, link)
        return link

    def _connect(self, node: Node) -> BrokerConnection | None:
        connection = self._idle.pop(node, None) if self._idle else None
        if connection is not None:
            if connection.usable:
                return connection
            connection.close()
        return self._connecting.get(node, lambda: self._cluster.open_connection(node))

    # --- replies -------------------------------------------------------------------------------

    def _receive_replies(self, link: _BrokerLink) -> None:
        self._receive_reply(link)
        while link.requests and link.connection.wait_readable(0):
            self._receive_reply(link)

    def _receive_reply(self, link: _BrokerLink) -> None:
        now = time.monotonic()
        try:
            if not link.requests:
                if link.connection.usable:
                    return  # a message of TLS itself, not of the broker
                raise ConnectionFailed(f"{link.node} closed the connection")
            _, answer = link.connection.receive()
            responses = read_produce_response(answer)
        except PykafkaError as error:
            self._disconnected(link.node, error, now)
            return
        request = link.requests.popleft()
        if self._disconnections:
            self._disconnections.pop(link.node.id, None)
        self._statistics.answered(link.node.id, now - request.sent_at)
        for queue, batch in request.entries:
            response = responses.get(batch.tp, _NOT_IN_REPLY)
            error_or_none = response.failure(batch.tp, self._settings, self._transactional_id)
            if error_or_none is None or response.error is ErrorCode.duplicate_sequence_number:
                self._succeed(queue, batch, response)
            else:
                self._failed(queue, batch, error_or_none, now)

    def _succeed(self, queue: PartitionQueue, batch: ProducerBatch, response: PartitionResponse) -> None:
        if batch.identity is not None and batch.identity == self._identity:
            self._known_to_log.add(queue.tp)
        topic, size = queue.tp.topic, batch.size
        self._statistics.batches(topic, time.monotonic(), records=batch.record_count, size=size)
        self._accumulator.complete(queue, batch)
        batch.succeed(response.base_offset, response.log_append_time)

    def _failed(self, queue: PartitionQueue, batch: ProducerBatch, error: PykafkaError, now: float) -> None:
        if error.retriable:
            self._cluster.invalidate()
        too_large = isinstance(error, BrokerError) and error.code is ErrorCode.message_too_large
        if too_large and batch.record_count > 1:
            halves = self._accumulator.split(queue, batch)
            self.largest_batch[queue.tp.topic] = min(len(half.payload()) for half in halves)
        elif batch.attempts < self._settings.retries and now < batch.expires and self._may_retry(queue, batch, error):
            batch.attempts += 1
            if str(batch.last_error) != str(error):
                logger.warning("%s: sending %d records again: %s", batch.tp, batch.record_count, error)
            batch.last_error = error
            self._statistics.retried(queue.tp.topic)
            self._accumulator.reenqueue(queue, batch, now + self._cluster.backoff_s(batch.attempts))
        else:
            self._give_up(queue, batch, error)

    def _may_retry(self, queue: PartitionQueue, batch: ProducerBatch, error: PykafkaError) -> bool:
        if not isinstance(error, BrokerError):
            return error.retriable
        if error.code in (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id):
            if queue.has_earlier(batch):
                return True  # it failed because the batch before it failed: both are sent again, in order
            if batch.identity != self._identity and self._renewable:
                return True  # the batch before it was given up; this one gets a number of the new identity
            if error.code is ErrorCode.unknown_producer_id and self._renewable:
                self._identity_at = 0.0
                self._identity = None  # retention deleted the producer's records: continue with a new producer id
                return True
        return error.retriable

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        numbered = batch.identity is not None and batch.identity == self._identity
        if self._transactions is not None and isinstance(error, PykafkaError):
            self._transactions.failed(error, gap=numbered)
        elif numbered:
            self._identity = None  # there is a gap in its sequence numbers now
        self._statistics.failed(queue.tp.topic, batch.record_count)
        self._accumulator.complete(queue, batch)
        batch.fail(error)
        self.failure = self.failure or error

    def _give_up_unsent(self, error: Exception) -> None:
        for queue, batch in self._accumulator.drain():
            self._give_up(queue, batch, error)

    # --- failures of brokers -------------------------------------------------------------------

    def _disconnected(self, node: Node, error: PykafkaError, now: float) -> None:
        """A connection broke, or could not be opened."""
        logger.debug("%s: %s", node, error)
        self._last_error = error
        if not error.retriable:
            self.failure = self.failure or error
        self._statistics.unreachable(node.id)
        self._cluster.invalidate()
        failures = self._disconnections[node.id] = self._disconnections.get(node.id, 0) + 1
        self._unreachable_until[node.id] = now + self._cluster.reconnect_backoff_s(failures)
        link = self._links.get(node.id)
        if link is not None:
            for queue, batch in self._unlink(link):
                self._failed(queue, batch, error, now)

    def _unlink(self, link: _BrokerLink) -> list[_Entry]:
        del self._links[link.node.id]
        self._selector.unregister(link.fileno)
        return link.close()

    def _time_out(self, now: float) -> None:
        limit_s = self._settings.request_timeout_ms / 1000
        watch = now >= self._watch_at
        for link in list(self._links.values()):
            if not link.requests:
                continue
            silent_s = now - max(link.requests[0].sent_at, link.connection.throttled_until)
            if silent_s > limit_s:
                error = RequestTimedOut(f"{link.node} did not acknowledge records within {limit_s:g} s")
                self._disconnected(link.node, error, now)
            elif watch and silent_s > OVERDUE_S:
                self._watch_at = now + WATCH_EVERY_S
                self._watch(link, now)
        for queue, batch in self._accumulator.expired(now):
            limit = self._settings.delivery_timeout_ms
            reason = (
                f"{batch.record_count} records for {batch.tp} were not delivered within delivery.timeout.ms={limit}"
            )
            last_error = batch.last_error or self._last_error
            if last_error is not None:
                reason += f"; the last attempt: {last_error}"
            self._give_up(queue, batch, RequestTimedOut(reason))

    def _watch(self, link: _BrokerLink, now: float) -> None:
        """A broker owes an answer: give it up if there is another one to send the records to."""
        try:
            self._cluster.check_leader(link.node, [queue.tp for queue, _ in link.requests[0].entries])
        except ConnectionFailed as error:
            self._disconnected(link.node, error, now)

    def _renew_metadata(self, now: float) -> None:
        if not self._cluster.stale or now < self._metadata_at:
            return
        try:
            self._cluster.renew()
        except PykafkaError as error:
            logger.debug("metadata: %s", error)
            self._last_error = error
            self._outage = self._outage or Outage(now)
            self._outage.failed(error)
            self._metadata_failures += 1
            self._metadata_at = now + self._cluster.backoff_s(self._metadata_failures)
            return
        self._last_error = self._outage = None
        self._metadata_failures = 0
        self._metadata_at = now + self._cluster.backoff_s(1)
        for name in list(self._accumulator.topics):
            partitions = self._cluster.known_partitions(name)
            if partitions:
                self._accumulator.add_topic(name, partitions)

    def _has_identity(self, now: float) -> bool:
        """Whether batches can be numbered; gets a producer id once nothing with the old one is in flight."""
        if self._transactions is not None and self._transactions.identity != self._identity:
            self._begin_identity(self._transactions.identity)
        if not self._idempotent or self._identity is not None:
            return True
        if not self._renewable or now < self._identity_at or any(link.requests for link in self._links.values()):
            return False
        self._identity_at = now + self._cluster.backoff_s(1)
        try:
            self._begin_identity(self._cluster.retrying(lambda: init_producer_id(self._cluster), timeout_s=0))
        except PykafkaError as error:
            logger.debug("producer id: %s", error)
            if not error.retriable:
                self._give_up_unsent(error)
            return False
        return True

    def _begin_identity(self, identity: ProducerIdentity | None) -> None:
        self._identity = identity
        self._sequences.clear()
        self._known_to_log.clear()
