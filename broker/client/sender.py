"""The producer's background thread: sends what is ready, settles what is answered; Kafka's `Sender`.

Started by producer.py. One loop turn: renew metadata if it is stale, give up what is too old, send what is ready to
each leader, wait for replies or for more to send. Up to `max.in.flight.requests.per.connection` requests are
under way per broker.

In a transaction a partition is made part of it before its first batch goes. When the transaction fails or is
aborted, what was not sent yet fails with it; the numbers missing then are mended by the next epoch.

Order is kept in spite of retries: once a batch fails, its partition sends nothing until all that is in
flight has come back; then it goes on in the old order. With idempotence the broker knows each batch by its
sequence number, so one that had been written is not written again. A batch given up leaves a gap in the
numbers, hence everything after it gets a new producer identity.
"""

from __future__ import annotations

import logging
import math
import selectors
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from broker.client.accumulator import Accumulator, PartitionQueue
from broker.client.broker_link import BrokerLink, Entry
from broker.client.client_stats import ClientStats, Statistics, StatsReporter
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.produce_request import MAX_SEQUENCE, Produced, ProducerIdentity, init_producer_id
from broker.client.producer_batch import ProducerBatch
from broker.client.transaction_manager import TransactionManager
from broker.client.waker import Waker
from broker.errors import BrokerError, ConnectionFailed, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition

__all__ = ["Sender"]

logger = logging.getLogger(__name__)

_NO_ANSWER: Final = Produced(ErrorCode.unknown_server_error, -1, -1, "the reply does not mention the partition")
_LONGEST_WAIT_S: Final = 5.0


class Sender(threading.Thread):
    """Sends what `accumulator` holds. `start`, then `accumulator.close()` and `join` to end; `abort` to end at once."""

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        waker: Waker,
        statistics: Statistics,
        reporter: StatsReporter,
        transactions: TransactionManager | None = None,
    ) -> None:
        super().__init__(name="pykafka-producer", daemon=True)
        self._cluster = cluster
        self._settings = cluster.settings
        self._accumulator = accumulator
        self._waker = waker
        self._transactions = transactions
        self._statistics = statistics
        self._reporter = reporter
        self._selector = selectors.DefaultSelector()
        self._selector.register(waker, selectors.EVENT_READ)
        self._links: dict[int, BrokerLink] = {}
        self._unreachable_until: dict[int, float] = {}
        self._metadata_at = 0.0
        self._metadata_failures = 0
        self._trouble: PykafkaError | None = None
        """Why no broker could be asked the last time one was."""
        self._identity: ProducerIdentity | None = None
        self._identity_at = 0.0
        self._sequences: dict[TopicPartition, int] = {}
        self._known_to_log: set[TopicPartition] = set()
        """Partitions that have a batch of this identity."""
        self._aborted = threading.Event()

    def abort(self) -> None:
        """Send no more; what is not settled fails."""
        self._aborted.set()
        self._waker.wake()

    def stats(self) -> ClientStats:
        """What was sent so far. Thread-safe."""
        return self._statistics.snapshot(time.monotonic(), buffered_bytes=self._accumulator.used)

    def run(self) -> None:
        error: Exception = PykafkaError("the producer was closed before the record was acknowledged")
        try:
            while not self._aborted.is_set() and not (self._accumulator.closed and self._accumulator.empty):
                self._turn()
        except Exception as bug:  # not to leave callers waiting for ever
            logger.exception("the producer's sender stopped")
            error = bug
        finally:
            self._accumulator.close()
            for queue, batch in self._accumulator.drain():
                self._give_up(queue, batch, error)
            for link in list(self._links.values()):
                for queue, batch in self._unlink(link):
                    self._give_up(queue, batch, error)
            self._selector.close()
            self._waker.close()

    def _turn(self) -> None:
        now = time.monotonic()
        self._renew_metadata(now)
        self._time_out(now)
        self._drop_the_doomed()
        self._reporter.report(now, self.stats)
        wake_at = min(now + _LONGEST_WAIT_S, self._reporter.due_at)
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
        for key, _ in self._selector.select(max(wake_at - time.monotonic(), 0)):
            if key.data is None:
                self._waker.clear()
            else:
                self._take_replies(key.data)

    # --- sending -------------------------------------------------------------------------------

    def _send_to_leaders(self, ready: Sequence[PartitionQueue], now: float) -> float:
        """Send what can be sent; when to try the rest again."""
        by_leader: dict[Node, list[PartitionQueue]] = defaultdict(list)
        try_again = math.inf
        for queue in ready:
            leader = self._cluster.known_leader(queue.tp)
            if leader is not None and self._unreachable_until.get(leader.id, 0.0) <= now:
                by_leader[leader].append(queue)
            elif leader is not None:
                try_again = min(try_again, self._unreachable_until[leader.id])
            else:
                self._cluster.invalidate()
        for leader, queues in by_leader.items():
            try:
                self._fill_link(self._link(leader), queues, now)
            except PykafkaError as error:
                self._broken(leader, error, now)
                try_again = now
        return try_again

    def _fill_link(self, link: BrokerLink, queues: Sequence[PartitionQueue], now: float) -> None:
        limit = self._settings.max_in_flight_requests_per_connection
        while link.requests < limit:
            entries, size = [], 0
            for queue in queues:
                if size and size + self._settings.batch_size > self._settings.max_request_size:
                    break
                batch = self._accumulator.take(queue) if self._may_send(queue) else None
                if batch is not None:
                    entries.append(Entry(queue, batch))
                    self._stamp(batch)
                    size += batch.size
            if not entries:
                return
            if not link.send(entries, now):
                for queue, batch in entries:
                    self._succeed(queue, batch, Produced(ErrorCode.none, -1, -1, ""))

    def _may_send(self, queue: PartitionQueue) -> bool:
        """One batch at a time until the broker has taken the first under this identity.

        A log that has not met a producer begins with whatever number comes: were the first batch refused and
        the next one in flight already, that one would be written in its place, and the first never.
        """
        return self._identity is None or not queue.in_flight or queue.tp in self._known_to_log

    def _stamp(self, batch: ProducerBatch) -> None:
        identity = self._identity
        if identity is not None and batch.identity != identity:
            sequence = self._sequences.get(batch.tp, 0)
            batch.stamp(identity, sequence)
            self._sequences[batch.tp] = (sequence + batch.record_count) & MAX_SEQUENCE

    def _link(self, node: Node) -> BrokerLink:
        link = self._links.get(node.id)
        if link is None or link.node != node:
            if link is not None:
                self._broken(
                    link.node, ConnectionFailed(f"{link.node} moved to {node.host}:{node.port}"), time.monotonic()
                )
            settings = self._settings
            link = BrokerLink(
                node,
                self._cluster.open_connection(node),
                acks=settings.required_acks,
                timeout_ms=settings.request_timeout_ms,
                transactional_id=settings.transactional_id or None,
            )
            self._links[node.id] = link
            self._selector.register(link.fileno, selectors.EVENT_READ, link)
        return link

    # --- replies -------------------------------------------------------------------------------

    def _take_replies(self, link: BrokerLink) -> None:
        """The one that is there, and those that TLS decrypted with it: no selector tells of them."""
        self._take_reply(link)
        while link.requests and link.connection.has_buffered:
            self._take_reply(link)

    def _take_reply(self, link: BrokerLink) -> None:
        now = time.monotonic()
        try:
            if not link.requests:
                if link.connection.usable:
                    return  # TLS had something to say, not the broker
                raise ConnectionFailed(f"{link.node} closed the connection")
            answer = link.receive()
        except PykafkaError as error:
            self._broken(link.node, error, now)
            return
        self._statistics.answered(link.node.id, now - answer.sent_at)
        for queue, batch in answer.entries:
            result = answer.results.get(batch.tp, _NO_ANSWER)
            if result.error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
                self._succeed(queue, batch, result)
            else:
                error_or_none = result.failure(batch.tp)
                assert error_or_none is not None
                self._failed(queue, batch, error_or_none, now)

    def _succeed(self, queue: PartitionQueue, batch: ProducerBatch, result: Produced) -> None:
        if batch.identity is not None and batch.identity == self._identity:
            self._known_to_log.add(queue.tp)
        topic, size = queue.tp.topic, batch.size
        self._statistics.batches(topic, time.monotonic(), records=batch.record_count, size=size)
        self._accumulator.settled(queue, batch)
        batch.succeed(result.base_offset, result.log_append_time)

    def _failed(self, queue: PartitionQueue, batch: ProducerBatch, error: PykafkaError, now: float) -> None:
        if error.retriable:
            self._cluster.invalidate()
        if _too_large(error) and batch.record_count > 1:
            self._accumulator.split(queue, batch)
        elif batch.attempts < self._settings.retries and now < batch.expires and self._may_retry(queue, batch, error):
            batch.attempts += 1
            if str(batch.trouble) != str(error):
                logger.warning("%s: sending %d records again: %s", batch.tp, batch.record_count, error)
            batch.trouble = error
            self._statistics.retried(queue.tp.topic)
            self._accumulator.put_back(queue, batch, now + self._cluster.backoff_s(batch.attempts))
        else:
            self._give_up(queue, batch, error)

    def _may_retry(self, queue: PartitionQueue, batch: ProducerBatch, error: PykafkaError) -> bool:
        if not isinstance(error, BrokerError):
            return error.retriable
        if error.code in (ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id):
            if queue.has_before(batch):
                return True  # the one before failed, so this one had to; both go again in order
            if batch.identity != self._identity and self._transactions is None:
                return True  # the one before was given up meanwhile; this one gets a number of the new identity
            if error.code is ErrorCode.unknown_producer_id and self._transactions is None:
                self._identity_at = 0.0
                self._identity = None  # the log of it was deleted by retention: begin anew
                return True
        return error.retriable

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: Exception) -> None:
        numbered = batch.identity is not None and batch.identity == self._identity
        if self._transactions is not None and isinstance(error, PykafkaError):
            self._transactions.failed(error, gap=numbered)
        elif numbered:
            self._identity = None  # its sequence numbers are missing now
        self._statistics.failed(queue.tp.topic, batch.record_count)
        self._accumulator.settled(queue, batch)
        batch.fail(error)

    def _drop_the_doomed(self) -> None:
        """Records of a transaction that cannot be committed any more are not sent."""
        error = self._transactions.doomed() if self._transactions is not None else None
        if error is not None:
            for queue, batch in self._accumulator.drain():
                self._give_up(queue, batch, error)

    # --- what goes wrong -----------------------------------------------------------------------

    def _broken(self, node: Node, error: PykafkaError, now: float) -> None:
        """The connection to a broker is gone, or none could be made."""
        logger.debug("%s: %s", node, error)
        self._trouble = error
        self._statistics.unreachable(node.id)
        self._cluster.invalidate()
        self._unreachable_until[node.id] = now + self._settings.reconnect_backoff_ms / 1000
        link = self._links.get(node.id)
        if link is not None:
            for queue, batch in self._unlink(link):
                self._failed(queue, batch, error, now)

    def _unlink(self, link: BrokerLink) -> list[Entry]:
        del self._links[link.node.id]
        self._selector.unregister(link.fileno)
        return link.close()

    def _time_out(self, now: float) -> None:
        limit_s = self._settings.request_timeout_ms / 1000
        for link in list(self._links.values()):
            if link.oldest is not None and now - link.oldest > limit_s:
                error = RequestTimedOut(f"{link.node} did not acknowledge records within {limit_s:g} s")
                self._broken(link.node, error, now)
        for queue, batch in self._accumulator.expired(now):
            limit = self._settings.delivery_timeout_ms
            reason = (
                f"{batch.record_count} records for {batch.tp} were not delivered within delivery.timeout.ms={limit}"
            )
            trouble = batch.trouble or self._trouble
            if trouble is not None:
                reason += f"; the last attempt: {trouble}"
            self._give_up(queue, batch, RequestTimedOut(reason))

    def _renew_metadata(self, now: float) -> None:
        if not self._cluster.stale or now < self._metadata_at:
            return
        try:
            self._cluster.renew()
        except PykafkaError as error:
            logger.debug("metadata: %s", error)
            self._trouble = error
            self._metadata_failures += 1
            self._metadata_at = now + self._cluster.backoff_s(self._metadata_failures)
            return
        self._trouble = None
        self._metadata_failures = 0
        self._metadata_at = now + self._cluster.backoff_s(1)
        for name in list(self._accumulator.topics):
            partitions = self._cluster.known_partitions(name)
            if partitions:
                self._accumulator.add_topic(name, partitions)

    def _has_identity(self, now: float) -> bool:
        """Whether batches can be stamped; gets an identity when nothing under the old one is in flight."""
        if self._transactions is not None:
            return self._take_identity(self._transactions.identity)
        if not self._settings.enable_idempotence or self._identity is not None:
            return True
        if now < self._identity_at or any(link.requests for link in self._links.values()):
            return False
        self._identity_at = now + self._cluster.backoff_s(1)
        try:
            self._identity = self._cluster.retrying(lambda: init_producer_id(self._cluster), timeout_s=0)
        except PykafkaError as error:
            logger.debug("producer id: %s", error)
            if not error.retriable:
                for queue, batch in self._accumulator.drain():
                    self._give_up(queue, batch, error)
            return False
        self._sequences.clear()
        self._known_to_log.clear()
        return True

    def _take_identity(self, identity: ProducerIdentity | None) -> bool:
        """Stamp with `identity`, of the transactional id, from now on."""
        if identity != self._identity:
            self._identity = identity
            self._sequences.clear()
            self._known_to_log.clear()
        return identity is not None


def _too_large(error: PykafkaError) -> bool:
    return isinstance(error, BrokerError) and error.code is ErrorCode.message_too_large
