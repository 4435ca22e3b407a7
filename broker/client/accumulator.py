"""Records waiting to be sent, in batches by partition; Kafka's `RecordAccumulator`.

`append` is called by the threads that produce, everything else by the thread of the sender. A batch is ready when it
is full, when it is `linger.ms` old, or when someone flushes or waits for memory. The batches of a partition keep their
order: a batch that is sent again goes before all that were not sent yet.
"""

from __future__ import annotations

import bisect
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from broker.client.client_settings import ClientSettings
from broker.client.partitioner import next_sticky_partition
from broker.client.producer_batch import ProducerBatch, RecordFuture, seconds_until
from broker.errors import ConfigError, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import Header, size_bound

_ORDER_STEP: Final = 1 << 32
"""Difference between the `order` of two batches. When a batch is split, its parts get numbers in between."""


class PartitionQueue:
    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.filling: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        # The rest belongs to the sender's thread.
        self.in_flight: list[ProducerBatch] = []
        self.held_until = 0.0
        self.retrying = False
        """A batch failed: nothing is sent until all batches in flight are answered."""

    def next_size(self, batch_size: int) -> int:
        """Bytes of the batch that `take` returns next; at most `batch_size` while records may still be added to it."""
        filling = self.filling
        if self.waiting:
            return self.waiting[0].size
        return batch_size if filling is None else max(batch_size, filling.size)

    def has_earlier(self, batch: ProducerBatch) -> bool:
        return any(other.order < batch.order for other in (*self.in_flight, *self.waiting))


class TopicQueues:
    """The partitions of a topic, and the partition that records without a key go to now."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = next_sticky_partition(-1, partitions)
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        for index in range(len(self.queues), partitions):
            self.queues.append(PartitionQueue(TopicPartition(self.name, index)))

    def change_sticky(self) -> None:
        """Send records without a key to another partition."""
        self.sticky = next_sticky_partition(self.sticky, len(self.queues))


class Accumulator:
    def __init__(self, settings: ClientSettings, wake_sender: Callable[[], None]) -> None:
        self._codec = Codec.from_name(settings.compression_type)
        self._batch_size = max(settings.batch_size, 1)
        self._linger_s = settings.linger_ms / 1000
        self._memory = settings.buffer_memory
        self._max_block_s = settings.max_block_ms / 1000
        self._delivery_timeout_s = settings.delivery_timeout_ms / 1000
        self._transactional = bool(settings.transactional_id)
        self._wake_sender = wake_sender
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self.topics: dict[str, TopicQueues] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._incomplete: set[ProducerBatch] = set()
        self.used = 0
        """Bytes of `buffer.memory` in use."""
        self._starving = 0
        self._opened = 0
        self._flushing = 0
        self.closed = False

    def add_topic(self, name: str, partitions: int) -> TopicQueues:
        """The queues of a topic, at least `partitions` of them."""
        with self._lock:
            topic = self.topics.get(name)
            if topic is None:
                topic = self.topics[name] = TopicQueues(name, partitions)
            topic.grow(partitions)
            return topic

    def queue(self, tp: TopicPartition) -> PartitionQueue:
        """The queue of a partition that is known to exist."""
        return self.add_topic(tp.topic, tp.partition + 1).queues[tp.partition]

    def add(self, queue: PartitionQueue, payload: bytes, record_count: int) -> ProducerBatch:
        """Queue a ready-made batch, which is ready at once. It does not count as `buffer.memory`."""
        with self._lock:
            batch = self._make_batch(queue, payload, reserved=0, record_count=record_count)
            queue.waiting.append(batch)
            return batch

    def append(
        self,
        topic: TopicQueues,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> RecordFuture:
        """Add a record to the batch of its partition, or with None of the topic's sticky partition.

        Waits up to `max.block.ms` for `buffer.memory`, then raises RequestTimedOut.
        """
        reserved = 0
        with self._lock:
            while True:
                if self.closed:
                    raise PykafkaError("this producer was closed")
                queue = topic.queues[topic.sticky if partition is None else partition]
                filling = queue.filling
                if filling is not None:
                    future = filling.append(timestamp, key, value, headers)
                    if future is not None:
                        if reserved:
                            self._release(reserved)
                        return future
                    self._close_batch(queue)
                    if partition is None:
                        topic.change_sticky()
                elif not reserved:  # then look again: other threads may have run meanwhile
                    reserved = max(min(self._batch_size, self._memory), size_bound(key, value, headers))
                    self._reserve(reserved)
                else:
                    self._open_batch(queue, reserved)
                    reserved = 0  # the batch has it now

    def ready(self, now: float) -> tuple[list[PartitionQueue], float]:
        """The partitions with a batch to send at `now`, and when (monotonic seconds) to call again at the latest."""
        ready, look_again = [], math.inf
        with self._lock:
            at_once = self._flushing or self.closed or self._starving
            for queue in self._active.values():
                if queue.retrying and queue.in_flight:
                    continue  # until the replies arrive
                due = queue.held_until
                if queue.filling is not None and not queue.waiting and not at_once:
                    due = max(due, queue.filling.created + self._linger_s)
                if due <= now:
                    ready.append(queue)
                else:
                    look_again = min(look_again, due)
        return ready, look_again

    def take(self, queue: PartitionQueue) -> ProducerBatch | None:
        """Take the next batch of a ready partition, which is in flight from now on; None when there is none."""
        with self._lock:
            if not queue.waiting and queue.filling is not None:
                self._close_batch(queue)
            if not queue.waiting:
                return None
            batch = queue.waiting.popleft()
            del self._active[queue.tp]
            if queue.waiting or queue.filling is not None:
                self._active[queue.tp] = queue  # at the end: partitions take turns
        queue.retrying = False
        queue.in_flight.append(batch)
        return batch

    def reenqueue(self, queue: PartitionQueue, batch: ProducerBatch, until: float) -> None:
        """A batch in flight failed and is to be sent again, not before `until`."""
        queue.in_flight.remove(batch)
        queue.retrying = True
        queue.held_until = until
        with self._lock:
            bisect.insort(queue.waiting, batch, key=lambda other: other.order)
            self._active[queue.tp] = queue

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> tuple[ProducerBatch, ProducerBatch]:
        """A batch in flight is too large for the broker: queue its halves, and return them."""
        queue.in_flight.remove(batch)
        queue.retrying = True
        with self._lock:
            halves = batch.split()
            self._incomplete.discard(batch)
            self._incomplete.update(halves)
            for half in halves:
                bisect.insort(queue.waiting, half, key=lambda other: other.order)
            self._active[queue.tp] = queue
        return halves

    def complete(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch succeeded or was given up: free its memory."""
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        with self._lock:
            self._incomplete.discard(batch)
            self._release(batch.reserved)

    def extend_expiry(self, idle_since: float, now: float) -> None:
        """Between `idle_since` and `now` the sender did not run: that time does not count for `delivery.timeout.ms`."""
        with self._lock:
            for batch in self._incomplete:
                batch.expires += now - max(idle_since, batch.created)

    def expired(self, now: float) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Take out the batches that waited longer than `delivery.timeout.ms`."""
        found = []
        with self._lock:
            for queue in list(self._active.values()):
                if queue.filling is not None and queue.filling.expires <= now:
                    self._close_batch(queue)
                while queue.waiting and queue.waiting[0].expires <= now:
                    found.append((queue, queue.waiting.popleft()))
                if not queue.waiting and queue.filling is None:
                    del self._active[queue.tp]
        return found

    def drain(self) -> list[tuple[PartitionQueue, ProducerBatch]]:
        found: list[tuple[PartitionQueue, ProducerBatch]] = []
        with self._lock:
            for queue in self._active.values():
                self._close_batch(queue)
                found += ((queue, batch) for batch in queue.waiting)
                queue.waiting.clear()
            self._active.clear()
        return found

    def flush(self, timeout_s: float | None) -> bool:
        """Send everything that was appended before, and wait until it is done. False when the time was over first."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._flushing += 1
            batches = list(self._incomplete)
        self._wake_sender()
        try:
            return all(batch.wait(seconds_until(deadline)) for batch in batches)
        finally:
            with self._lock:
                self._flushing -= 1

    def close(self) -> None:
        """Accept no more records; those waiting are sent at once. May be called again."""
        with self._lock:
            self.closed = True
            self._freed.notify_all()
        self._wake_sender()

    @property
    def empty(self) -> bool:
        return not self._incomplete

    @property
    def all_sent(self) -> bool:
        """Whether every batch is done or in flight."""
        return not self._active

    # --- with the lock held --------------------------------------------------------------------

    def _open_batch(self, queue: PartitionQueue, reserved: int) -> None:
        builder = BatchBuilder(codec=self._codec, max_bytes=self._batch_size, transactional=self._transactional)
        queue.filling = self._make_batch(queue, builder, reserved)
        self._wake_sender()

    def _make_batch(
        self, queue: PartitionQueue, content: BatchBuilder | bytes, reserved: int, record_count: int = 0
    ) -> ProducerBatch:
        now = time.monotonic()
        self._opened += _ORDER_STEP
        batch = ProducerBatch(
            queue.tp,
            content,
            order=self._opened,
            created=now,
            expires=now + self._delivery_timeout_s,
            reserved=reserved,
            record_count=record_count,
        )
        self._active[queue.tp] = queue
        self._incomplete.add(batch)
        return batch

    def _close_batch(self, queue: PartitionQueue) -> None:
        batch = queue.filling
        if batch is not None:
            queue.filling = None
            queue.waiting.append(batch)
            unused = batch.reserved - batch.size
            if unused > 0:
                batch.reserved = batch.size
                self._release(unused)
            self._wake_sender()

    def _reserve(self, size: int) -> None:
        """Wait until `size` bytes of `buffer.memory` are free, or the producer is closed."""
        if size > self._memory:
            raise ConfigError(f"a record of {size} bytes is larger than buffer.memory={self._memory}")
        if self.used + size > self._memory:
            self._wait_for_memory(size)
        self.used += size

    def _wait_for_memory(self, size: int) -> None:
        deadline = time.monotonic() + self._max_block_s
        self._starving += 1
        try:
            while self.used + size > self._memory and not self.closed:
                self._wake_sender()
                left = deadline - time.monotonic()
                if left <= 0 or not self._freed.wait(left):
                    raise RequestTimedOut(
                        f"buffer.memory={self._memory} stayed full for max.block.ms={self._max_block_s * 1000:g}: "
                        "records are produced faster than the brokers take them"
                    )
        finally:
            self._starving -= 1

    def _release(self, size: int) -> None:
        self.used -= size
        if self._starving:
            self._freed.notify_all()
