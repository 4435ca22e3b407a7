"""A batch on its way to the broker, and the future of each record in it.

Made by accumulator.py. The threads that call `Producer.send` fill it, under the accumulator's lock; then it belongs to
the sender, which calls `succeed` or `fail` once and so completes the futures of all its records.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker.client.produce_request import MAX_SEQUENCE, ProducerIdentity
from broker.errors import PykafkaError, RequestTimedOut
from broker.protocol.topic_partition import TopicPartition
from broker.records.batch import BatchHeader, parse_header, patch_producer
from broker.records.builder import BatchBuilder
from broker.records.record import Header, Record, decode_records

logger = logging.getLogger(__name__)

_callbacks_lock = threading.Lock()

_ANY_SIZE: Final = 1 << 40
"""For the parts of a batch: their records fit."""

_NO_BUILDER: Final = BatchBuilder()
"""Of a ready-made batch, to which nothing is appended."""


def seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 with acks=0, because the broker does not reply; `timestamp` in ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class RecordFuture:
    """The result of sending one record; Kafka's `FutureRecordMetadata`. Thread-safe."""

    __slots__ = ("_batch", "_index", "_timestamp")

    def __init__(self, batch: ProducerBatch, index: int, timestamp: int) -> None:
        self._batch = batch
        self._index = index
        self._timestamp = timestamp

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        return self._home()[0].done.is_set()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait up to `timeout` seconds. Raises the error that the record failed with, or RequestTimedOut."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        batch, index = self._home()
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        timestamp = batch.log_append_time if batch.log_append_time >= 0 else self._timestamp
        return RecordMetadata(batch.tp.topic, batch.tp.partition, offset, timestamp)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as `result` does; returns the error that the record failed with, None after a success."""
        if not self._batch.wait(timeout):
            raise RequestTimedOut(f"a record for {self._batch.tp} was not acknowledged within {timeout} s")
        return self._home()[0].error

    def add_done_callback(self, callback: Callable[[RecordFuture], object]) -> None:
        """Call `callback(self)` when the future is done, from the sender's thread, or at once if it is done already."""
        with _callbacks_lock:
            batch = self._home()[0]
            if not batch.done.is_set():
                batch.callbacks.append((self, callback))
                return
        callback(self)

    def _home(self) -> tuple[ProducerBatch, int]:
        """The batch that the record is in now, and its index there."""
        batch, index = self._batch, self._index
        while batch.halves is not None:
            first, second = batch.halves
            batch, index = (first, index) if index < first.record_count else (second, index - first.record_count)
        return batch, index


class ProducerBatch:
    """Records of one partition that are sent together. Times are monotonic seconds."""

    def __init__(
        self,
        tp: TopicPartition,
        content: BatchBuilder | bytes,
        *,
        order: int,
        created: float,
        expires: float,
        reserved: int,
        record_count: int = 0,
    ) -> None:
        """`content`: a builder to append to, or a ready-made batch of `record_count` records."""
        self.tp = tp
        self.order = order
        """Increases from batch to batch; a batch that is sent again returns to its place in the queue by it."""
        self.created = created
        self.expires = expires
        self.reserved = reserved
        """Bytes of `buffer.memory` held."""
        self.attempts = 0
        self.last_error: PykafkaError | None = None
        """Why the last attempt failed."""
        self.identity: ProducerIdentity | None = None
        """Whose sequence numbers it has; None before it is first sent, and without idempotence."""
        self.done = threading.Event()
        self.base_offset = -1
        self.log_append_time = -1
        self.error: Exception | None = None
        self.callbacks: list[tuple[RecordFuture, Callable[[RecordFuture], object]]] = []
        self.halves: tuple[ProducerBatch, ProducerBatch] | None = None
        """The batches that have its records after a split. `done` is set then, and means no more."""
        self._builder = _NO_BUILDER if isinstance(content, bytes) else content
        self._payload: bytes | bytearray | None = content if isinstance(content, bytes) else None
        self.record_count = record_count

    @property
    def size(self) -> int:
        """Bytes on the wire once it is built, before that uncompressed bytes; 0 when it is done."""
        return self._builder.size if self._payload is None else len(self._payload)

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Sequence[Header]
    ) -> RecordFuture | None:
        """Add a record, `timestamp` in ms; None when the batch is full."""
        if not self._builder.append(timestamp, key, value, headers):
            return None
        index = self.record_count
        self.record_count = index + 1
        return RecordFuture(self, index, timestamp)

    def payload(self) -> bytes:
        """The record batch as it is sent; compressed at the first call."""
        return bytes(self._built())

    def stamp(self, identity: ProducerIdentity, sequence: int) -> None:
        """Number it as a batch of the idempotent producer `identity`; again when the identity changes."""
        payload = self._payload = bytearray(self._built())
        patch_producer(payload, 0, parse_header(payload), identity.producer_id, identity.epoch, sequence)
        self.identity = identity

    def wait(self, timeout: float | None) -> bool:
        """Wait up to `timeout` seconds until all its records are done, also after a split; False if they are not."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self.done.wait(timeout):
            return False
        return self.halves is None or all(half.wait(seconds_until(deadline)) for half in self.halves)

    def split(self) -> tuple[ProducerBatch, ProducerBatch]:
        """Replace it by two batches of half the records each, with the same sequence numbers."""
        payload = self._built()
        header, records = parse_header(payload), list(decode_records(payload))
        middle = len(records) // 2
        first = self._part(header, records[:middle], 0, self.reserved // 2)
        second = self._part(header, records[middle:], middle, self.reserved - self.reserved // 2)
        if self.identity is not None:
            first.stamp(self.identity, header.base_sequence)
            second.stamp(self.identity, (header.base_sequence + middle) & MAX_SEQUENCE)
        with _callbacks_lock:
            self.halves = first, second
            for future, callback in self.callbacks:
                future._home()[0].callbacks.append((future, callback))
            self.callbacks = []
            self.done.set()
        self._release()
        return self.halves

    def _part(self, header: BatchHeader, records: Sequence[Record], skipped: int, reserved: int) -> ProducerBatch:
        part = ProducerBatch(
            self.tp,
            BatchBuilder(codec=header.codec, max_bytes=_ANY_SIZE, transactional=header.is_transactional),
            order=self.order + skipped,
            created=self.created,
            expires=self.expires,
            reserved=reserved,
        )
        part.attempts = self.attempts
        for record in records:
            part.append(record.timestamp, record.key, record.value, record.headers)
        return part

    def _release(self) -> None:
        """Drop the records: futures of a batch may be kept for long after it is done."""
        self._builder, self._payload = _NO_BUILDER, b""

    def succeed(self, base_offset: int, log_append_time: int = -1) -> None:
        """The broker wrote it, from `base_offset` on."""
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self._complete()

    def fail(self, error: Exception) -> None:
        self.error = error
        self._complete()

    def _built(self) -> bytes | bytearray:
        if self._payload is None:
            self._payload = self._builder.build()
        return self._payload

    def _complete(self) -> None:
        self._release()
        with _callbacks_lock:
            self.done.set()
            callbacks, self.callbacks = self.callbacks, []
        for future, callback in callbacks:
            try:
                callback(future)
            except Exception:
                logger.exception("a delivery callback failed")
