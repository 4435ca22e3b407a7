"""Handle records one by one, and park those that keep failing so that the rest goes on.

For applications: passes the records that a `Consumer` polls to a function. When it raises, the record is tried again at
once, or is sent to a retry topic that the same consumer is subscribed to. After `retries` more attempts it is sent to
the dead-letter topic. Offsets are committed after every record of a poll was handled or parked with an acknowledgement,
so nothing is lost, and after a crash the last poll is handled again. A parked record loses its place in the order.

    with Consumer(servers, {"group.id": "g"}) as consumer, Producer(servers) as producer:
        consumer.subscribe(["orders", "orders.retry"])
        processor = RecordProcessor(
            consumer, producer, handle, retries=3, retry_topic="orders.retry", dead_letter_topic="orders.dead"
        )
        processor.run(stopped.is_set)

Parked records keep key, value and headers. They get headers as text: `pykafka.origin.topic`, `.partition`, `.offset`
and `.timestamp` of where they were first read, `pykafka.attempts`, and `pykafka.error`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.dead_letter_headers import ATTEMPTS, ERROR, LONGEST_ERROR, ORIGIN
from broker.client.producer import Producer
from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from broker.records.record import Header

__all__ = ["Processed", "RecordProcessor"]

logger = logging.getLogger(__name__)

_POLL_S: Final = 1.0


class Processed(NamedTuple):
    """How many records were handled, sent to the retry topic, and sent to the dead-letter topic."""

    handled: int = 0
    retried: int = 0
    dead: int = 0


class RecordProcessor:
    """Uses `consumer` and `producer`, which the caller opens and closes. Not thread-safe."""

    def __init__(
        self,
        consumer: Consumer,
        producer: Producer,
        handler: Callable[[ConsumerRecord], object],
        *,
        dead_letter_topic: str,
        retries: int = 3,
        retry_topic: str | None = None,
        retry_delay_ms: int = 0,
    ) -> None:
        """`retry_delay_ms`: how long a record stays in the retry topic, or without one the wait between attempts.

        Raises ConfigError.
        """
        if not dead_letter_topic or dead_letter_topic == retry_topic:
            raise ConfigError("dead_letter_topic must be named, and be another one than retry_topic")
        if retries < 0 or retry_delay_ms < 0:
            raise ConfigError("retries and retry_delay_ms must be at least 0")
        self._consumer = consumer
        self._producer = producer
        self._handler = handler
        self._dead_letter_topic = dead_letter_topic
        self._retries = retries
        self._retry_topic = retry_topic
        self._retry_delay_ms = retry_delay_ms
        self._paused_until: dict[TopicPartition, int] = {}
        """Paused partitions of the retry topic, and when (ms) their next record is due."""

    def run(self, stopped: Callable[[], bool]) -> Processed:
        """Call `step` until `stopped()`; returns the sum of the results."""
        total = Processed()
        while not stopped():
            done = self.step(_POLL_S)
            total = Processed(*map(sum, zip(total, done, strict=True)))
        return total

    def step(self, timeout_s: float) -> Processed:
        """Poll once for up to `timeout_s`, handle the records, and commit.

        Raises the errors of poll, send and commit; records that were not handled are polled again.
        """
        self._resume_due()
        records = self._consumer.poll(timeout_s)
        counts = {"handled": 0, "retried": 0, "dead": 0}
        skipped: set[TopicPartition] = set()
        for index, record in enumerate(records):
            tp = TopicPartition(record.topic, record.partition)
            if tp in skipped:
                continue
            if self._is_delayed(record):
                self._pause_until_due(tp, record)
                skipped.add(tp)
                continue
            try:
                counts[self._process(record)] += 1
            except BaseException:
                self._seek_back(records[index:], skipped)
                self._commit()
                raise
        if records:
            self._commit()
        return Processed(**counts)

    # --- one record ----------------------------------------------------------------------------

    def _process(self, record: ConsumerRecord) -> str:
        """Handle or park the record; returns the field of Processed to count it in."""
        attempts = _attempts_before(record)
        while True:
            attempts += 1
            try:
                self._handler(record)
                return "handled"
            except Exception as error:
                failure = error
            logger.debug("%s-%d@%d, attempt %d: %r", record.topic, record.partition, record.offset, attempts, failure)
            if attempts > self._retries:
                self._park(self._dead_letter_topic, record, attempts, failure)
                return "dead"
            if self._retry_topic is not None:
                self._park(self._retry_topic, record, attempts, failure)
                return "retried"
            time.sleep(self._retry_delay_ms / 1000)

    def _park(self, topic: str, record: ConsumerRecord, attempts: int, failure: Exception) -> None:
        """Send it to `topic` and wait for the acknowledgement: only then may its offset be committed."""
        notes = {
            f"{ORIGIN}topic": record.topic,
            f"{ORIGIN}partition": str(record.partition),
            f"{ORIGIN}offset": str(record.offset),
            f"{ORIGIN}timestamp": str(record.timestamp),
            ATTEMPTS: str(attempts),
            ERROR: f"{type(failure).__name__}: {failure}"[:LONGEST_ERROR],
        }
        self._producer.send(topic, record.value, record.key, _annotated(record.headers, notes)).result()

    # --- pausing, seeking back, committing ----------------------------------------------------------

    def _is_delayed(self, record: ConsumerRecord) -> bool:
        return record.topic == self._retry_topic and record.timestamp + self._retry_delay_ms > _now_ms()

    def _pause_until_due(self, tp: TopicPartition, record: ConsumerRecord) -> None:
        self._consumer.seek(tp, record.offset)
        self._consumer.pause([tp])
        self._paused_until[tp] = record.timestamp + self._retry_delay_ms

    def _resume_due(self) -> None:
        now = _now_ms()
        for tp in [tp for tp, until in self._paused_until.items() if until <= now]:
            del self._paused_until[tp]
            self._consumer.resume([tp])

    def _seek_back(self, unfinished: list[ConsumerRecord], skipped: set[TopicPartition]) -> None:
        """Let the next poll begin with the first unfinished record of each partition."""
        seen = set(skipped)
        for record in unfinished:
            tp = TopicPartition(record.topic, record.partition)
            if tp not in seen:
                seen.add(tp)
                self._consumer.seek(tp, record.offset)

    def _commit(self) -> None:
        if self._consumer.settings.group_id:
            self._consumer.commit()


def _attempts_before(record: ConsumerRecord) -> int:
    """How many attempts there were before it came back from the retry topic."""
    for name, value in record.headers:
        if name == ATTEMPTS and value is not None and value.isdigit():
            return int(value)
    return 0


def _annotated(headers: tuple[Header, ...], notes: Mapping[str, str]) -> list[Header]:
    """The headers with new notes; the first origin is kept."""
    was_parked = any(name.startswith(ORIGIN) for name, _ in headers)
    fresh = {name: text for name, text in notes.items() if not (was_parked and name.startswith(ORIGIN))}
    kept = [(name, value) for name, value in headers if name not in fresh]
    return [*kept, *((name, text.encode()) for name, text in fresh.items())]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
