"""Records waiting to be sent, as batches by partition; Kafka's `RecordAccumulator`.

`append` is called by the threads that produce, everything else by the one sender thread. A batch goes when
it is full, when it is `linger.ms` old, or when someone flushes or waits for memory. Per partition the order of
batches never changes: what is sent again goes before all that was not sent yet.
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
from broker.client.producer_batch import ProducerBatch, RecordFuture
from broker.errors import ConfigError, PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.builder import BatchBuilder
from broker.records.compression import Codec
from broker.records.record import Header, size_bound

__all__ = ["Accumulator", "PartitionQueue", "TopicQueues"]

_ORDER_STEP: Final = 1 << 32
"""Between the numbers of two batches; the parts of one that is split get numbers in between."""


class PartitionQueue:
    """The batches of one partition, in the order in which they are to be written."""

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.filling: ProducerBatch | None = None
        self.waiting: deque[ProducerBatch] = deque()
        # The rest is the sender thread's own.
        self.in_flight: list[ProducerBatch] = []
        self.held_until = 0.0
        self.retrying = False
        """A batch failed: nothing more is sent until all that is in flight has come back."""

    def has_before(self, batch: ProducerBatch) -> bool:
        """Whether an older batch than `batch` is in flight, or waits to be sent again."""
        return any(other.order < batch.order for other in (*self.in_flight, *self.waiting))


class TopicQueues:
    """The partitions of a topic, and the one that records without a key go to at the moment."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.queues: list[PartitionQueue] = []
        self.sticky = next_sticky_partition(-1, partitions)
        self.grow(partitions)

    def grow(self, partitions: int) -> None:
        """The topic has this many partitions now."""
        for index in range(len(self.queues), partitions):
            self.queues.append(PartitionQueue(TopicPartition(self.name, index)))

    def move_on(self) -> None:
        """Let records without a key go to another partition."""
        self.sticky = next_sticky_partition(self.sticky, len(self.queues))


class Accumulator:
    """All that was given to `append` and is not settled yet."""

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
        self._used = 0
        self._starving = 0
        self._opened = 0
        self._flushing = 0
        self._closed = False

    def add_topic(self, name: str, partitions: int) -> TopicQueues:
        """The queues of a topic, made or grown to this many partitions."""
        with self._lock:
            topic = self.topics.get(name)
            if topic is None:
                topic = self.topics[name] = TopicQueues(name, partitions)
            topic.grow(partitions)
            return topic

    def append(
        self,
        topic: TopicQueues,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
    ) -> RecordFuture:
        """Add a record to the batch of its partition, the topic's sticky one if None.

        Waits up to `max.block.ms` for `buffer.memory`, then raises RequestTimedOut.
        """
        reserved = 0
        with self._lock:
            while True:
                if self._closed:
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
                        topic.move_on()
                elif not reserved:  # look again afterwards: others may run while this waits
                    reserved = max(min(self._batch_size, self._memory), size_bound(key, value, headers))
                    self._reserve(reserved)
                else:
                    self._open_batch(queue, reserved)
                    reserved = 0  # it is the batch's now

    def ready(self, now: float) -> tuple[list[PartitionQueue], float]:
        """Partitions with something to send at `now`, and when (monotonic seconds) to look again at the latest."""
        ready, look_again = [], math.inf
        with self._lock:
            at_once = self._flushing or self._closed or self._starving
            for queue in self._active.values():
                if queue.retrying and queue.in_flight:
                    continue  # the replies bring it up again
                due = queue.held_until
                if queue.filling is not None and not queue.waiting and not at_once:
                    due = max(due, queue.filling.created + self._linger_s)
                if due <= now:
                    ready.append(queue)
                else:
                    look_again = min(look_again, due)
        return ready, look_again

    def take(self, queue: PartitionQueue) -> ProducerBatch | None:
        """The next batch of a ready partition, now in flight; the one being filled is closed for it if need be."""
        with self._lock:
            if not queue.waiting and queue.filling is not None:
                self._close_batch(queue)
            if not queue.waiting:
                return None
            batch = queue.waiting.popleft()
            del self._active[queue.tp]
            if queue.waiting or queue.filling is not None:
                self._active[queue.tp] = queue  # at the end: every partition gets its turn
        queue.retrying = False
        queue.in_flight.append(batch)
        return batch

    def put_back(self, queue: PartitionQueue, batch: ProducerBatch, until: float) -> None:
        """A batch that was in flight failed and is to be sent again, not before `until`."""
        queue.in_flight.remove(batch)
        queue.retrying = True
        queue.held_until = until
        with self._lock:
            bisect.insort(queue.waiting, batch, key=lambda other: other.order)
            self._active[queue.tp] = queue

    def split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch that was in flight is too large for the broker: its halves are sent in its place."""
        queue.in_flight.remove(batch)
        queue.retrying = True
        with self._lock:
            halves = batch.split()
            self._incomplete.discard(batch)
            self._incomplete.update(halves)
            for half in halves:
                bisect.insort(queue.waiting, half, key=lambda other: other.order)
            self._active[queue.tp] = queue

    def settled(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """A batch succeeded or was given up: its memory is free."""
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        with self._lock:
            self._incomplete.discard(batch)
            self._release(batch.reserved)

    def expired(self, now: float) -> list[tuple[PartitionQueue, ProducerBatch]]:
        """Batches that `delivery.timeout.ms` has overtaken before they could be sent; they are taken out."""
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
        """Everything that is not in flight, taken out: there is no way to send it."""
        found: list[tuple[PartitionQueue, ProducerBatch]] = []
        with self._lock:
            for queue in self._active.values():
                self._close_batch(queue)
                found += ((queue, batch) for batch in queue.waiting)
                queue.waiting.clear()
            self._active.clear()
        return found

    def flush(self, timeout_s: float | None) -> bool:
        """Send all that was appended before and wait until it is settled; whether it was in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._flushing += 1
            batches = list(self._incomplete)
        self._wake_sender()
        try:
            return all(batch.wait(_seconds_until(deadline)) for batch in batches)
        finally:
            with self._lock:
                self._flushing -= 1

    def close(self) -> None:
        """Take no more records; what is there goes out at once. May be called again."""
        with self._lock:
            self._closed = True
            self._freed.notify_all()
        self._wake_sender()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def used(self) -> int:
        """Bytes of `buffer.memory` that are taken."""
        return self._used

    @property
    def empty(self) -> bool:
        """Whether every batch is settled."""
        return not self._incomplete

    # --- with the lock held --------------------------------------------------------------------

    def _open_batch(self, queue: PartitionQueue, reserved: int) -> None:
        now = time.monotonic()
        builder = BatchBuilder(codec=self._codec, max_bytes=self._batch_size, transactional=self._transactional)
        self._opened += _ORDER_STEP
        batch = ProducerBatch(
            queue.tp,
            builder,
            order=self._opened,
            created=now,
            expires=now + self._delivery_timeout_s,
            reserved=reserved,
        )
        queue.filling = batch
        self._active[queue.tp] = queue
        self._incomplete.add(batch)
        self._wake_sender()

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
        if self._used + size > self._memory:
            self._wait_for_memory(size)
        self._used += size

    def _wait_for_memory(self, size: int) -> None:
        deadline = time.monotonic() + self._max_block_s
        self._starving += 1
        try:
            while self._used + size > self._memory and not self._closed:
                self._wake_sender()
                left = deadline - time.monotonic()
                if left <= 0 or not self._freed.wait(left):
                    raise RequestTimedOut(
                        f"buffer.memory={self._memory} stayed full for max.block.ms={self._max_block_s * 1000:g}: "
                        "the brokers take records slower than they are produced"
                    )
        finally:
            self._starving -= 1

    def _release(self, size: int) -> None:
        self._used -= size
        if self._starving:
            self._freed.notify_all()


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)
