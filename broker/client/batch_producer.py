"""Produce ready-made record batches: for callers that build batches from columns.

Called by the Spark connector. It stands on the same `Sender` as `Producer`, but runs it in the caller's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, MutableMapping

from broker.client.accumulator import Accumulator
from broker.client.auto_closeable import AutoCloseable
from broker.client.broker_connection import BrokerConnection
from broker.client.client_stats import Statistics
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import Node
from broker.client.produce_request import Stamp
from broker.client.producer_batch import ProducerBatch, RecordFuture
from broker.client.sender import Sender
from broker.client.transaction_errors import transaction_error
from broker.client.transaction_requests import TransactionHandle
from broker.errors import BrokerError, ConfigError, PykafkaError
from broker.protocol.api_keys import ApiKey
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import parse_header


class BatchProducer(AutoCloseable):
    """Writes batches to any partitions of a cluster, in order. Not thread-safe, and unusable after an error.

    Batches are gathered into requests of `max.request.size`. `send` returns when all earlier requests are in flight,
    so memory holds `max.in.flight.requests.per.connection` requests for each broker, and one that is gathered. With
    acks=all batches are idempotent. Failures are retried for `delivery.timeout.ms`; the time between two calls does
    not count. Errors: BrokerError (in a transaction TransactionError), UnknownTopic, ConnectionFailed, RequestTimedOut.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int | None = None,
        transaction: TransactionHandle | None = None,
        idle: MutableMapping[Node, BrokerConnection] | None = None,
    ) -> None:
        """`acks`: -1 for all, 1, or 0; the setting by default. A transaction needs -1. Raises ConfigError.

        Partitions must be added to `transaction` before a batch is sent to them; in one epoch a partition must be
        written by one BatchProducer, because sequence numbers begin at 0. `idle`: the caller's connections;
        they are taken out when they are needed, and `close` puts back those without a request in flight.
        """
        self.cluster = cluster
        self._transaction = transaction
        self._idle = idle
        self._accumulator = Accumulator(cluster.settings, lambda: None)
        self._sender = Sender(
            cluster,
            self._accumulator,
            Statistics(cluster.settings.client_id, time.monotonic()),
            transaction=transaction,
            acks=acks,
            strict_order=True,
            idle=idle,
        )
        self._known: set[TopicPartition] = set()
        self._gathered_bytes = 0
        self._returned_at = 0.0

    def stamp(self, tp: TopicPartition) -> Stamp:
        """The producer id and sequence number to build the next batch of `tp` with.

        A batch with another stamp is accepted too, but has to be changed and needs a second checksum.
        """
        return self._sender.stamp(tp)

    def send(self, tp: TopicPartition, batch: bytes) -> ProducerBatch:
        """Queue a batch, which is done after `flush`. Waits while too much is in flight."""
        header = parse_header(batch)
        if header.is_transactional is not (self._transaction is not None):
            raise ConfigError("in a transaction, and nowhere else, batches must be built with transactional=True")
        limit = self.cluster.settings.max_request_size * max(1, self._sender.brokers)
        if self._gathered_bytes + len(batch) > limit:
            self._run(lambda: self._accumulator.all_sent)
        if tp not in self._known:
            self.cluster.leader(tp)
            self._known.add(tp)
        stamp = Stamp(header.producer_id, header.producer_epoch, header.base_sequence)
        queued = self._sender.enqueue(tp, batch, stamp, header.record_count)
        self._gathered_bytes += len(batch)
        return queued

    def largest_batch(self, topic: str) -> int:
        """Bytes that a batch of the topic should not exceed: `max.request.size`, or less after one was refused."""
        return self._sender.largest_batch.get(topic, self.cluster.settings.max_request_size)

    def flush(self) -> None:
        """Wait until all batches are acknowledged."""
        self._run(lambda: self._accumulator.empty)

    def close(self) -> None:
        """Close the connections. Batches in flight may or may not be written. May be called again."""
        self._sender.close(self._idle)

    def _run(self, done: Callable[[], bool]) -> None:
        """Run the sender until `done`. Raises the first error."""
        now = time.monotonic()
        self._accumulator.extend_expiry(self._returned_at, now)
        self._gathered_bytes = 0
        try:
            self._sender.poll(now)  # before it looks for time-outs: replies may have arrived long ago
            while self._sender.failure is None and not done():
                wake_at = self._sender.send_ready()
                for tp in self._sender.leaderless:
                    self._refuse_deleted(tp)
                if not done():
                    self._sender.poll(wake_at)
            if self._sender.failure is not None:
                raise self._sender.failure
        except BrokerError as error:
            if self._transaction is None or error.retriable:
                raise
            raise transaction_error(error, ApiKey.PRODUCE) from error
        self._returned_at = time.monotonic()

    def _refuse_deleted(self, tp: TopicPartition) -> None:
        """Raise UnknownTopic if the partition is gone. While it has no leader, its batches wait in the sender."""
        try:
            self.cluster.retrying(lambda: self.cluster.leader(tp), timeout_s=0)
        except PykafkaError as error:
            if not error.retriable:
                raise


def produce_batches(
    cluster: Cluster,
    tp: TopicPartition,
    batches: Iterable[bytes],
    *,
    acks: int | None = None,
    transaction: TransactionHandle | None = None,
) -> list[int]:
    """Write `batches` to one partition and wait for the acknowledgements; the base offset of each, -1 with acks=0."""
    with BatchProducer(cluster, acks=acks, transaction=transaction) as producer:
        queued = [producer.send(tp, batch) for batch in batches]
        producer.flush()
    return [RecordFuture(batch, 0, -1).result().offset for batch in queued]
