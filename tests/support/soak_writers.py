"""The producers of the soak test: each writes as fast as it can until it is given a rate, and counts what it wrote.

Run by soak_load.py, one thread each. Every kind of producer a broker meets is there: plain, idempotent, transactional
(with aborts), and one that writes few keys again and again, with tombstones, to a compacted topic.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, Producer

VALUE_BYTES, KEYED_VALUE_BYTES = 4096, 1024
AT_ONCE = 50  # records per look at the clock
KEYS = 5_000  # of the compacted topic
ABORTED_SHARE, TOMBSTONE_SHARE = 0.1, 0.05
BUFFER_KIB = 8_192  # a producer's queue: small, so that a peak is what the broker takes and not what is buffered
PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)  # what an abort finds unsent


class TokenBucket:
    """Lets `rate` records per second through, and all there are while `rate` is None. Used by one thread."""

    def __init__(self) -> None:
        self.rate: float | None = None
        self._due = time.monotonic()

    def take(self, records: int) -> None:
        """Return when they may be sent. What was not used for a second is gone: no burst makes up for a pause."""
        if self.rate is None:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + records / self.rate
        if self._due > now:
            time.sleep(self._due - now)


class Writer:
    """Writes to one topic until `ending` is set, then waits for what is under way. Pauses while `is_far_ahead()`."""

    value_bytes = VALUE_BYTES

    def __init__(
        self,
        name: str,
        bootstrap: str,
        topic: str,
        ending: threading.Event,
        is_far_ahead: Callable[[], bool] = lambda: False,
        **settings: object,
    ) -> None:
        self.name = name
        self._is_far_ahead = is_far_ahead
        self.bucket = TokenBucket()
        self.sent = 0
        self.held_s = 0.0
        """Seconds it paused for its readers since it was given a rate: what they would have been behind otherwise."""
        self.failures: list[str] = []
        self._topic = topic
        self._ending = ending
        self._dice = random.Random(name)
        self._value = self._dice.randbytes(self.value_bytes)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "log_level": 0,
                "linger.ms": 10,
                "queue.buffering.max.kbytes": BUFFER_KIB,
                "delivery.report.only.error": True,
                "on_delivery": self._failed,
                **settings,
            }
        )

    @property
    def delivered(self) -> int:
        """Records that the broker has; those of a transaction under way are counted."""
        return self.sent - len(self._producer) - len(self.failures)

    def run(self) -> None:
        self.prepare()
        while not self._ending.is_set():
            if self._is_far_ahead():
                self._hold()
                continue
            self.bucket.take(AT_ONCE)
            self.write()
            self._producer.poll(0)
        left = self._producer.flush(60)
        assert left == 0, f"{self.name}: {left} records were not acknowledged within 60 s"

    def _hold(self) -> None:
        began = time.monotonic()
        self._ending.wait(0.01)
        if self.bucket.rate is not None:
            self.held_s += time.monotonic() - began

    def prepare(self) -> None:
        pass

    def write(self) -> None:
        """`AT_ONCE` records."""
        for _ in range(AT_ONCE):
            self.send(None, self._value)

    def send(self, key: bytes | None, value: bytes | None) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key)
                break
            except BufferError:
                self._producer.poll(0.01)
        self.sent += 1

    def _failed(self, error: KafkaError | None, _: object) -> None:
        if error is not None and error.code() not in PURGED:
            self.failures.append(str(error))


class KeyedWriter(Writer):
    """The same keys again and again."""

    value_bytes = KEYED_VALUE_BYTES

    def write(self) -> None:
        for _ in range(AT_ONCE):
            key = b"key-%d" % self._dice.randrange(KEYS)
            self.send(key, None if self._dice.random() < TOMBSTONE_SHARE else self._value)


class TransactionalWriter(Writer):
    """A transaction of `AT_ONCE` records at a time, each tenth aborted; only committed ones count as sent."""

    value_bytes = KEYED_VALUE_BYTES

    def prepare(self) -> None:
        self._producer.init_transactions(30)

    def write(self) -> None:
        before = self.sent
        try:
            self._producer.begin_transaction()
            for number in range(AT_ONCE):
                self.send(b"key-%d" % (number % 10), self._value)
            if self._dice.random() < ABORTED_SHARE:
                self._producer.abort_transaction(30)
                self.sent = before
            else:
                self._producer.commit_transaction(30)
        except KafkaException as failure:
            self.failures.append(str(failure))
            self._producer.abort_transaction(30)
            self.sent = before
