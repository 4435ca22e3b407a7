"""kill -9 of the broker while it takes records at full speed.

acks=1 survives the death of the process by the page cache: after each restart no acknowledged record is
missing, an idempotent producer's retries double none, and a consumer group goes on where it was. Eight kills in every
test run; twenty, and fifty over small segments, in the slow set.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from tests.support.broker_process import BrokerProcess
from tests.support.waiting import eventually

PARTITIONS = 4
SETTINGS = {
    "num.partitions": str(PARTITIONS),
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",  # the group reads between the kills too, not only after the last
}


class SteadyProducer(threading.Thread):
    """Produces the numbers 0, 1, 2 … until told to stop, and remembers which were acknowledged and where."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
                "queue.buffering.max.messages": 5_000,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._stopped = threading.Event()
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._producer.produce(
                    self._topic, str(self.sent), partition=self.sent % PARTITIONS, on_delivery=self._delivered
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)

    def finish(self) -> None:
        """Stop and wait until everything is acknowledged."""
        self._stopped.set()
        self.join()
        assert self._producer.flush(120) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
            return
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None
        assert partition is not None
        assert offset is not None
        self.acknowledged[int(value)] = (partition, offset)


class SteadyConsumer(threading.Thread):
    """A group member that reads along; at least once."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self.seen: set[int] = set()

    def run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                value = message.value()
                if message.error() is None and value is not None:
                    self.seen.add(int(value))
        self._consumer.close()

    def finish(self) -> None:
        self._stopped.set()
        self.join()


def read_everything(bootstrap: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Value → every (partition, offset) it stands at."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False})
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for partition in range(PARTITIONS):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
        consumer.assign([TopicPartition(topic, partition, 0)])
        position = 0
        while position < end:
            for message in consumer.consume(10_000, timeout=0.2):
                value, offset = message.value(), message.offset()
                assert value is not None
                assert offset is not None
                found[int(value)].append((partition, offset))
                position = offset + 1
    consumer.close()
    return found


def kill_rounds(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str, rounds: int, settings: dict[str, str]
) -> None:
    dice = random.Random(rounds)
    broker = broker_factory(settings)
    producer = SteadyProducer(broker.bootstrap, topic)
    consumer = SteadyConsumer(broker.bootstrap, topic, group)
    producer.start()
    consumer.start()
    for _ in range(rounds):
        before = len(producer.acknowledged)
        eventually(lambda before=before: len(producer.acknowledged) > before + 2000, timeout=60)  # type: ignore[misc]
        threading.Event().wait(dice.random() * 0.2)  # the moment of the kill is what is random
        broker.kill()
        broker.start()
    producer.finish()
    assert producer.failures == []
    found = read_everything(broker.bootstrap, topic)
    missing = [value for value in range(producer.sent) if value not in found]
    doubled = {value: places for value, places in found.items() if len(places) > 1}
    moved = {v: (p, found[v]) for v, p in producer.acknowledged.items() if p not in found[v]}
    assert (missing[:10], doubled, moved) == ([], {}, {})
    in_order: Counter[int] = Counter()
    for value, ((partition, offset),) in sorted(found.items()):
        assert offset >= in_order[partition], f"{value} stands before its predecessor in partition {partition}"
        in_order[partition] = offset
    eventually(lambda: len(consumer.seen) == producer.sent, timeout=60)
    consumer.finish()


@pytest.mark.timeout(300)  # the faster the broker, the more there is to compare at the end
def test_nothing_acknowledged_is_lost_or_doubled_over_8_kills(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str
) -> None:
    kill_rounds(broker_factory, topic, group, 8, SETTINGS)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("rounds", "settings"), [(20, {}), (50, {"log.segment.bytes": "262144"})], ids=["20", "50-small-segments"]
)
def test_nothing_acknowledged_is_lost_or_doubled_over_many_kills(
    broker_factory: Callable[..., BrokerProcess], topic: str, group: str, rounds: int, settings: dict[str, str]
) -> None:
    kill_rounds(broker_factory, topic, group, rounds, {**SETTINGS, **settings})
