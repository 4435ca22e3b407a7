"""Records that keep failing are parked, the rest goes on, and nothing is committed before that."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from broker.client.admin import Admin
from broker.client.cluster import Cluster
from broker.client.consumer import Consumer, ConsumerRecord
from broker.client.producer import Producer
from broker.client.record_processor import Processed, RecordProcessor
from broker.errors import BrokerError, ConfigError
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.client.test_producer import read_all
from tests.support.kafka import Kafka
from tests.support.topics import Topic

PROPERTIES = {"auto.offset.reset": "earliest", "fetch.max.wait.ms": 20, "enable.auto.commit": False}

Handler = Callable[[ConsumerRecord], object]


class Picky:
    """Remembers what it was given and refuses values in `bad`, the first `times` times each."""

    def __init__(self, bad: set[bytes], times: int = 10**6) -> None:
        self.seen: list[bytes] = []
        self._left = dict.fromkeys(bad, times)

    def __call__(self, record: ConsumerRecord) -> None:
        value = record.value or b""
        self.seen.append(value)
        if self._left.get(value, 0) > 0:
            self._left[value] -= 1
            raise ValueError(f"cannot take {value!r}")


@contextmanager
def processing(
    broker: Kafka, group: str, topic: str, handler: Handler, **options: object
) -> Iterator[tuple[RecordProcessor, Consumer]]:
    properties = {**PROPERTIES, "group.id": group}
    with Consumer(broker.bootstrap, properties) as consumer, Producer(broker.bootstrap, {"linger.ms": 0}) as producer:
        topics = [topic, *([str(options["retry_topic"])] if "retry_topic" in options else [])]
        consumer.assign(TopicPartition(name, index) for name in topics for index in consumer.cluster.partitions(name))
        dead = f"{topic}-dead"
        yield RecordProcessor(consumer, producer, handler, dead_letter_topic=dead, **options), consumer  # type: ignore[arg-type]


def step_until(processor: RecordProcessor, total: int) -> Processed:
    """Steps until so many records were handled or given up."""
    sums, deadline = Processed(), time.monotonic() + 60
    while sums.handled + sums.dead < total:
        assert time.monotonic() < deadline, sums
        sums = Processed(*map(sum, zip(sums, processor.step(0.1), strict=True)))
    return sums


def produce(broker: Kafka, topic: str, *values: bytes) -> None:
    with Producer(broker.bootstrap) as producer:
        for value in values:
            producer.send(topic, value, key=b"key", headers=[("mine", b"1")], timestamp=1000)


def notes(record: ConsumerRecord) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in record.headers}


def test_a_record_that_keeps_failing_goes_to_the_dead_letters_and_the_rest_in_order(
    broker: Kafka, make_topic: TopicMaker, group: str
) -> None:
    topic, picky = make_topic(), Picky({b"2"})
    Topic(broker.bootstrap, f"{topic}-dead")
    produce(broker, topic, b"1", b"2", b"3")
    with processing(broker, group, topic, picky, retries=2) as (processor, consumer):
        assert step_until(processor, 3) == Processed(handled=2, dead=1)
        assert picky.seen == [b"1", b"2", b"2", b"2", b"3"]
        tp = TopicPartition(topic, 0)
        assert consumer.committed([tp]) == {tp: 3}
    (dead,) = read_all(broker.bootstrap, f"{topic}-dead")
    assert (dead.key, dead.value) == (b"key", b"2")
    assert notes(dead) == {
        "mine": "1",
        "pykafka.origin.topic": topic,
        "pykafka.origin.partition": "0",
        "pykafka.origin.offset": "1",
        "pykafka.origin.timestamp": "1000",
        "pykafka.attempts": "3",
        "pykafka.error": "ValueError: cannot take b'2'",
    }


def test_a_record_that_fails_once_is_tried_again_in_place(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, picky = make_topic(), Picky({b"1"}, times=1)
    produce(broker, topic, b"1", b"2")
    with processing(broker, group, topic, picky) as (processor, _):
        assert step_until(processor, 2) == Processed(handled=2)
    assert picky.seen == [b"1", b"1", b"2"]


def test_a_record_comes_back_through_the_retry_topic_while_others_pass(
    broker: Kafka, cluster: Cluster, make_topic: TopicMaker, group: str
) -> None:
    topic, picky = make_topic(), Picky({b"1"})
    Topic(broker.bootstrap, f"{topic}-retry")
    Topic(broker.bootstrap, f"{topic}-dead")
    produce(broker, topic, b"1", b"2", b"3")
    with processing(broker, group, topic, picky, retries=2, retry_topic=f"{topic}-retry") as (processor, _):
        assert step_until(processor, 3) == Processed(handled=2, retried=2, dead=1)
    assert picky.seen == [b"1", b"2", b"3", b"1", b"1"]
    (dead,) = read_all(broker.bootstrap, f"{topic}-dead")
    assert (notes(dead)["pykafka.attempts"], notes(dead)["pykafka.origin.topic"]) == ("3", topic)
    assert [name for name, _ in dead.headers].count("pykafka.origin.offset") == 1


def test_records_rest_in_the_retry_topic(broker: Kafka, cluster: Cluster, make_topic: TopicMaker, group: str) -> None:
    topic, picky = make_topic(), Picky({b"1"}, times=1)
    Topic(broker.bootstrap, f"{topic}-retry")
    produce(broker, topic, b"1")
    options = {"retry_topic": f"{topic}-retry", "retry_delay_ms": 300}
    with processing(broker, group, topic, picky, **options) as (processor, _):
        started = time.monotonic()
        assert step_until(processor, 1) == Processed(handled=1, retried=1)
        assert time.monotonic() - started > 0.29
        assert picky.seen == [b"1", b"1"]


def test_what_cannot_be_parked_is_not_committed_and_comes_again(
    broker: Kafka, cluster: Cluster, make_topic: TopicMaker, group: str
) -> None:
    topic, picky = make_topic(), Picky({b"large" * 300})
    Admin(cluster).create_topic(f"{topic}-dead", 1, configs={"max.message.bytes": "1000"})
    produce(broker, topic, b"1", b"large" * 300, b"3")
    tp = TopicPartition(topic, 0)
    with processing(broker, group, topic, picky, retries=0) as (processor, consumer):
        for _ in range(2):
            with pytest.raises(BrokerError, match="producing to"):
                step_until(processor, 3)
            assert consumer.committed([tp]) == {tp: 1}
            assert consumer.position(tp) == 1
    assert picky.seen == [b"1", b"large" * 300, b"large" * 300]


def test_an_interrupted_step_commits_what_was_done(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic = make_topic()
    tp = TopicPartition(topic, 0)

    def handler(record: ConsumerRecord) -> None:
        if record.value == b"2":
            raise KeyboardInterrupt

    produce(broker, topic, b"1", b"2", b"3")
    with processing(broker, group, topic, handler) as (processor, consumer):
        with pytest.raises(KeyboardInterrupt):
            step_until(processor, 3)
        assert consumer.committed([tp]) == {tp: 1}


def test_it_runs_until_it_is_stopped(broker: Kafka, make_topic: TopicMaker, group: str) -> None:
    topic, picky = make_topic(2), Picky(set())
    produce(broker, topic, b"1", b"2")
    with processing(broker, group, topic, picky) as (processor, _):
        assert processor.run(lambda: len(picky.seen) == 2) == Processed(handled=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dead_letter_topic": ""}, "dead_letter_topic must be named"),
        ({"dead_letter_topic": "t", "retry_topic": "t"}, "be another one than retry_topic"),
        ({"dead_letter_topic": "t", "retries": -1}, "must be at least 0"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        RecordProcessor(None, None, print, **options)  # type: ignore[arg-type]
