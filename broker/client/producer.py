"""Produce records: `Producer`, Kafka's `KafkaProducer` in small.

For callers with Python objects; batch_producer.py is for columns. `send` appends a record to a batch and returns a
future; one background thread sends the batches (sender.py). Threads may share a producer. It is idempotent by
default: retries write nothing twice and keep the order.

    with Producer("localhost:9092", {"compression.type": "lz4"}) as producer:
        future = producer.send("flights", b"value", key=b"N14228")
    print(future.result().offset)

With `transactional.id`, readers with `isolation.level=read_committed` see all records of a transaction or none
(KIP-98):

    with Producer("localhost:9092", {"transactional.id": "loader-1"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("flights", b"value")
        producer.commit_transaction()
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from broker.client.accumulator import Accumulator, TopicQueues
from broker.client.auto_closeable import AutoCloseable
from broker.client.client_settings import ClientSettings
from broker.client.client_stats import ClientStats, OnStats, Statistics, StatsReporter
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.client.committed_offsets import GroupMetadata
from broker.client.partitioner import Partitioner, named_partitioner
from broker.client.producer_batch import RecordFuture, RecordMetadata
from broker.client.sender import Sender
from broker.client.transaction_manager import TransactionManager
from broker.client.waker import Waker
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.key_hash import partition_of_key
from broker.records.record import Header, size_bound

__all__ = ["Producer", "RecordFuture", "RecordMetadata"]

logger = logging.getLogger(__name__)

_SMALL_OVERHEAD = 100  # bytes; more than the overhead of a record without headers

_BYTES_OR_NONE = (bytes, bytearray, memoryview, type(None))


class Producer(AutoCloseable):
    """Sends records to a cluster. Close it or use it as a context manager, or records not sent yet are lost."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        properties: Mapping[str, Any] | None = None,
        *,
        partitioner: Partitioner | None = None,
        on_stats: OnStats | None = None,
    ) -> None:
        """`bootstrap`: "host:port,…" or properties with `bootstrap.servers`. Connects at the first use.

        `partitioner(topic, key, value, partitions)` replaces the setting of that name. It returns the partition of a
        record that is sent without one; None for the topic's sticky partition. `on_stats(stats())` is called every
        `statistics.interval.ms`, from the sender's thread.
        """
        self.settings = ClientSettings.of(bootstrap, properties)
        self._cluster = Cluster(self.settings, create_topics=True)
        self._waker = Waker()
        self._accumulator = Accumulator(self.settings, self._waker.wake)
        self._partitioner = partitioner or named_partitioner(self.settings.partitioner)
        self._transactions: TransactionManager | None = None
        if self.settings.transactional_id:
            self._transactions = TransactionManager(self._cluster, self.flush)
        now = time.monotonic()
        self._statistics = Statistics(self.settings.client_id, now)
        self._reporter = StatsReporter(on_stats, self.settings.statistics_interval_ms, now)
        self._sender = Sender(
            self._cluster, self._accumulator, self._statistics, waker=self._waker, transactions=self._transactions
        )
        self._thread = threading.Thread(
            target=self._sender.run, args=(self._report,), name="pykafka-producer", daemon=True
        )
        self._thread.start()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[Header] = (),
        partition: int | None = None,
        timestamp: int | None = None,
        on_delivery: Callable[[RecordFuture], object] | None = None,
    ) -> RecordFuture:
        """Append a record; `timestamp` in ms, by default the current time.

        Without `partition` the key decides, as in Kafka's Java client; without a key the partition changes from batch
        to batch. Waits up to `max.block.ms` for the topic's metadata and for `buffer.memory`. Raises RequestTimedOut,
        BrokerError (`message_too_large`, unknown topic or partition), TypeError or TransactionError; later errors are
        in the future. `on_delivery(future)` is called from the sender's thread.
        """
        if self._transactions is not None:
            self._transactions.check_open()
        _check_bytes("value", value)
        _check_bytes("key", key)
        queues = self._accumulator.topics.get(topic) or self._look_up(topic)
        if partition is None:
            if self._partitioner is not None:
                partition = self._chosen(topic, key, value, len(queues.queues))
            elif key is not None:
                partition = partition_of_key(bytes(key), len(queues.queues))
        elif not 0 <= partition < len(queues.queues):
            queues = self._look_up(topic, partition)
        limit = self.settings.max_request_size
        if headers or (len(value) if value else 0) + (len(key) if key else 0) > limit - _SMALL_OVERHEAD:
            size = size_bound(key, value, headers)
            if size > limit:
                raise BrokerError(
                    ErrorCode.message_too_large,
                    f"a record for {topic} is {size} bytes when serialized, more than max.request.size={limit}",
                )
        if timestamp is None:
            timestamp = time.time_ns() // 1_000_000
        future = self._accumulator.append(queues, partition, timestamp, key, value, headers)
        if on_delivery is not None:
            future.add_done_callback(on_delivery)
        return future

    def partitions(self, topic: str) -> int:
        """The number of partitions of `topic`, which is created if brokers allow that."""
        return len((self._accumulator.topics.get(topic) or self._look_up(topic)).queues)

    def stats(self) -> ClientStats:
        """What was sent so far, by topic and by broker."""
        return self._statistics.snapshot(time.monotonic(), buffered_bytes=self._accumulator.used)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed. Raises RequestTimedOut."""
        if not self._accumulator.flush(timeout_s):
            raise RequestTimedOut(f"records were still not acknowledged after {timeout_s} s")

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is left, then stop. Records not done after `timeout_s` seconds fail. May be called again.

        An open transaction is aborted.
        """
        self._abort_quietly(timeout_s)
        self._accumulator.close()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._sender.abort()
            self._cluster.close()
            self._thread.join()
        self._cluster.close()

    # --- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Register `transactional.id`: fences earlier producers with it and aborts their open transaction.

        Call it once, first. Raises BrokerError, or RequestTimedOut after `max.block.ms`: then it may be called again.
        """
        self._transactional().init()

    def begin_transaction(self) -> None:
        """Begin a transaction: records sent from now on belong to it. Raises PykafkaError while one is open."""
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commit `offsets` (each the next offset to read) with the transaction; `group` is `Consumer.group_metadata()`.

        Raises AbortableTransactionError, for instance when the consumer is no longer a member of its group.
        """
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait until all records are acknowledged, then commit.

        Raises AbortableTransactionError when a record failed (then abort), FatalTransactionError (then close), and
        RequestTimedOut or ConnectionFailed while the coordinator does not answer (then call it again).
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Drop records that are not sent yet, and abort. Raises as `commit_transaction` does."""
        self._transactional().abort()

    # --- inside --------------------------------------------------------------------------------

    def _report(self, now: float) -> float:
        self._reporter.report(now, self.stats)
        return self._reporter.due_at

    def _transactional(self) -> TransactionManager:
        if self._transactions is None:
            raise ConfigError("transactional.id is missing: set it to use transactions")
        return self._transactions

    def _abort_quietly(self, timeout_s: float | None) -> None:
        """Before closing. With `timeout_s=0` it is left to the coordinator, after `transaction.timeout.ms`."""
        if self._transactions is None or not self._transactions.open or timeout_s == 0:
            return
        try:
            self._transactions.abort(timeout_s)
        except PykafkaError as error:
            logger.warning("aborting the transaction of %s: %s", self.settings.transactional_id, error)

    def _chosen(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int | None:
        assert self._partitioner is not None
        partition = self._partitioner(topic, key, value, partitions)
        if partition is not None and not 0 <= partition < partitions:
            raise ConfigError(f"the partitioner chose {partition} of the {partitions} partitions of {topic!r}")
        return partition

    def _look_up(self, topic: str, partition: int | None = None) -> TopicQueues:
        """Look up a topic, or a partition that may have been added. Raises ConfigError when there is no `partition`."""

        def find() -> TopicMetadata:
            return self._cluster.topic(topic, lambda found: partition is None or partition in found.partitions)

        count = len(self._cluster.retrying(find, timeout_s=self.settings.max_block_ms / 1000).partitions)
        if partition is not None and not 0 <= partition < count:
            raise ConfigError(f"topic {topic!r} has {count} partitions, but no {partition}")
        return self._accumulator.add_topic(topic, count)


def _check_bytes(name: str, given: object) -> None:
    if not isinstance(given, _BYTES_OR_NONE):
        raise TypeError(f"{name} must be bytes or None, not {type(given).__name__}: encode it first")
