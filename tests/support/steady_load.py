"""A writer with acks=all and a reader in a group that work all the time, and how long each was held up.

The time-outs of both clients are librdkafka's defaults. It tries to connect to a broker that was away for a second time
only after about as long as it was away, up to `reconnect.backoff.max.ms`, 10 s.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from typing import Self

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

INTERVAL_S = 0.005
_numbers = itertools.count()


class SteadyLoad:
    """Creates a topic with three replicas, writes to its partitions in turn and reads them, from `start` to `stop`.

    `longest_write` and `longest_read` are the longest times, in seconds since the last `reset`, that passed in any one
    partition between two acknowledgements, or between two records that the reader got.
    """

    def __init__(
        self,
        bootstrap: str,
        partitions: int = 6,
        settings: Mapping[str, str | int] | None = None,
        *,
        topic: str | None = None,
        configs: Mapping[str, str] | None = None,
        keys: int | None = None,
        interval: float = 0.0,
    ) -> None:
        """`settings` are of both clients, `configs` of the topic. Record `n` has the key `n % keys`; each key is in one
        partition where `keys` is a multiple of `partitions`. `interval`: seconds between two records at least."""
        shared = {"bootstrap.servers": bootstrap, "log_level": 0, **(settings or {})}
        self.topic = topic or f"steady-{next(_numbers)}"
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(self.topic, partitions, 3, config=dict(configs or {}))])[self.topic].result(60)
        self._keys, self._interval = keys, interval
        self._partitions = partitions
        self._producer = Producer({**shared, "enable.idempotence": True})
        self._consumer = Consumer(
            {
                **shared,
                "group.id": self.topic,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
            }
        )
        self._stopping = threading.Event()
        self._written_all = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        self.failed: list[KafkaError] = []
        self.acknowledged: set[int] = set()
        self.read: list[int] = []
        """The numbers of the records, as the reader got them."""
        self._acked_at = [0.0] * partitions
        self._read_at = [0.0] * partitions
        self.reset()

    def reset(self) -> None:
        """Forget the pauses so far."""
        self.longest_write = self.longest_read = 0.0

    def start(self) -> Self:
        """Return when every partition is written and read."""
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + 30
        while not (all(self._acked_at) and all(self._read_at)):
            assert time.monotonic() < deadline, (self._acked_at, self._read_at)
            self._stopping.wait(0.02)
        self.reset()
        return self

    @property
    def unread(self) -> set[int]:
        """Numbers of acknowledged records that the reader has not got."""
        return self.acknowledged - set(self.read)

    def stop(self) -> None:
        """Write no more; return when the reader has got everything that was acknowledged, or after 30 s."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        number = 0
        while not self._stopping.is_set():
            key = None if self._keys is None else b"%d" % (number % self._keys)
            partition = number % self._partitions
            self._producer.produce(self.topic, b"%d" % number, key, partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(INTERVAL_S)
            self._stopping.wait(self._interval)
        left = self._producer.flush(60)
        assert left == 0, f"{left} records were not acknowledged"
        self._written_all.set()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(error)
            return
        value = message.value()
        assert value is not None
        self.acknowledged.add(int(value))
        self.longest_write = max(self.longest_write, _since(self._acked_at, message))

    def _read(self) -> None:
        self._consumer.subscribe([self.topic])
        deadline = float("inf")
        while not self._written_all.is_set() or (self.unread and time.monotonic() < deadline):
            if self._written_all.is_set():
                deadline = min(deadline, time.monotonic() + 30)
            message = self._consumer.poll(0.1)
            if message is None or message.error():
                continue
            value = message.value()
            assert value is not None
            self.read.append(int(value))
            if not self._stopping.is_set():
                self.longest_read = max(self.longest_read, _since(self._read_at, message))
        self._consumer.close()


def _since(times: list[float], message: Message) -> float:
    """Seconds since the last message of the same partition; 0 for the first one."""
    partition, now = message.partition(), time.monotonic()
    assert partition is not None
    before, times[partition] = times[partition], now
    return now - before if before else 0.0
