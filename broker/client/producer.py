"""Produce records: `Producer`, Kafka's `KafkaProducer` in small.

Called by the console, tests and whoever has Python objects; columns go through partition_writer.py instead.
`send` appends to a batch and returns a future; one background thread sends the batches. Any number of
threads may share a producer. Idempotent unless told otherwise: retries write nothing twice nor out of order.

    with Producer("localhost:9092", {"compression.type": "lz4"}) as producer:
        future = producer.send("flights", b"value", key=b"N14228")
    print(future.result().offset)

With `transactional.id` what is sent becomes visible, to readers that look for committed data only, together or not
at all (KIP-98):

    with Producer("localhost:9092", {"transactional.id": "loader-1"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("flights", b"value")
        producer.commit_transaction()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from broker.client.accumulator import Accumulator, TopicQueues
from broker.client.client_settings import ClientSettings
from broker.client.client_stats import ClientStats, OnStats, Statistics, StatsReporter
from broker.client.cluster import Cluster
from broker.client.cluster_metadata import TopicMetadata
from broker.client.committed_offsets import GroupMetadata
from broker.client.partitioner import Partitioner, named_partitioner, partition_of_key
from broker.client.producer_batch import RecordFuture, RecordMetadata
from broker.client.sender import Sender
from broker.client.transaction_manager import TransactionManager
from broker.client.waker import Waker
from broker.errors import BrokerError, ConfigError, ErrorCode, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import Header, size_bound

__all__ = ["Producer", "RecordFuture", "RecordMetadata"]

logger = logging.getLogger(__name__)

_SMALL_OVERHEAD = 100  # bytes that surround a record without headers, and more

_BYTES_OR_NONE = (bytes, bytearray, memoryview, type(None))


class Producer:
    """Sends records to a cluster. Close it, or use it as a context manager: what is not sent yet is lost else."""

    def __init__(
        self,
        bootstrap: str | Iterable[str] | Mapping[str, Any] | ClientSettings,
        properties: Mapping[str, Any] | None = None,
        *,
        partitioner: Partitioner | None = None,
        on_stats: OnStats | None = None,
    ) -> None:
        """`bootstrap`: "host:port,…" or properties with `bootstrap.servers`. Connects when first needed.

        `partitioner(topic, key, value, partitions)` chooses for records without a partition, instead of the setting of
        that name; None from it means wherever a batch is being filled. `on_stats` is called with `stats()` every
        `statistics.interval.ms`, from the sender thread.
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
        self._sender = Sender(
            self._cluster,
            self._accumulator,
            self._waker,
            Statistics(self.settings.client_id, now),
            StatsReporter(on_stats, self.settings.statistics_interval_ms, now),
            self._transactions,
        )
        self._sender.start()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

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
        """Append a record; `timestamp` in ms, now by default.

        Without `partition` the key decides (as in Kafka's Java client), without a key the batches go round.
        Waits up to `max.block.ms` for the topic's metadata and for `buffer.memory`. Raises at once what can
        be told at once: RequestTimedOut, BrokerError (`message_too_large`, unknown topic or partition), TypeError,
        TransactionError; the rest is in the future. `on_delivery` is called with it from the sender thread.
        """
        if self._transactions is not None:
            self._transactions.check_open()
        _check_bytes("value", value)
        _check_bytes("key", key)
        queues = self._accumulator.topics.get(topic) or self._meet(topic)
        if partition is None:
            if self._partitioner is not None:
                partition = self._chosen(topic, key, value, len(queues.queues))
            elif key is not None:
                partition = partition_of_key(bytes(key), len(queues.queues))
        elif not 0 <= partition < len(queues.queues):
            queues = self._meet(topic, partition)
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
        """How many partitions `topic` has; it is created when brokers allow that."""
        return len((self._accumulator.topics.get(topic) or self._meet(topic)).queues)

    def stats(self) -> ClientStats:
        """What was sent so far, by topic and broker."""
        return self._sender.stats()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every record sent so far is acknowledged or has failed. Raises RequestTimedOut."""
        if not self._accumulator.flush(timeout_s):
            raise RequestTimedOut(f"records were still not acknowledged after {timeout_s} s")

    def close(self, timeout_s: float | None = None) -> None:
        """Send what is left, then stop; after `timeout_s` seconds what remains fails. May be called again.

        A transaction that is open is aborted.
        """
        self._abort_quietly(timeout_s)
        self._accumulator.close()
        self._sender.join(timeout_s)
        if self._sender.is_alive():
            self._sender.abort()
            self._cluster.close()
            self._sender.join()
        self._cluster.close()

    # --- transactions --------------------------------------------------------------------------

    def init_transactions(self) -> None:
        """Take over `transactional.id`: who had it before is fenced, and what it left open is aborted.

        Once, before all else. Raises RequestTimedOut after `max.block.ms` (then it may be called again), BrokerError.
        """
        self._transactional().init()

    def begin_transaction(self) -> None:
        """What is sent from now on belongs to the transaction. Raises PykafkaError while another is open."""
        self._transactional().begin()

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, int], group: GroupMetadata) -> None:
        """Commit `offsets`, each the next to read, with the transaction; `group` is `Consumer.group_metadata()`.

        Raises AbortableTransactionError, for instance when the consumer is no member of its group any more.
        """
        self._transactional().send_offsets(offsets, group)

    def commit_transaction(self) -> None:
        """Wait for every record, then make them visible.

        Raises AbortableTransactionError when one of them failed (then abort), FatalTransactionError (then close), and
        RequestTimedOut or ConnectionFailed while the coordinator does not answer (then call it again).
        """
        self._transactional().commit()

    def abort_transaction(self) -> None:
        """Drop what was not sent, and have the rest never be seen. Raises as `commit_transaction`."""
        self._transactional().abort()

    # --- inside --------------------------------------------------------------------------------

    def _transactional(self) -> TransactionManager:
        if self._transactions is None:
            raise ConfigError("transactional.id is missing: set it to use transactions")
        return self._transactions

    def _abort_quietly(self, timeout_s: float | None) -> None:
        """Before closing; without the time for it, the coordinator aborts after `transaction.timeout.ms`."""
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

    def _meet(self, topic: str, partition: int | None = None) -> TopicQueues:
        """Learn of a topic, or whether it has grown to have `partition`."""

        def find() -> TopicMetadata:
            return self._cluster.topic(topic, lambda found: partition is None or partition in found.partitions)

        count = len(self._cluster.retrying(find, timeout_s=self.settings.max_block_ms / 1000).partitions)
        if partition is not None and not 0 <= partition < count:
            raise ConfigError(f"topic {topic!r} has {count} partitions, but no {partition}")
        return self._accumulator.add_topic(topic, count)


def _check_bytes(name: str, given: object) -> None:
    if not isinstance(given, _BYTES_OR_NONE):
        raise TypeError(f"{name} must be bytes or None, not {type(given).__name__}: encode it first")
