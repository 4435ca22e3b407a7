"""Counters of a client: what is counted, over which time, and how it is read."""

from __future__ import annotations

import json

import pytest

from broker.client.client_stats import RATE_WINDOW_S, ClientStats, Statistics, StatsReporter, TopicTraffic
from broker.client.consumer import Consumer
from broker.client.producer import Producer
from broker.protocol.topic_partition import TopicPartition
from tests.client.conftest import TopicMaker
from tests.support.kafka import Kafka
from tests.support.waiting import eventually


def test_counts_add_up_by_topic_and_in_all() -> None:
    statistics = Statistics("c", 100.0)
    statistics.batches("b", 101.0, records=3, size=300)
    statistics.batches("a", 101.5, records=2, size=200, batches=2)
    statistics.batches("a", 102.0, records=1, size=100)
    statistics.retried("a")
    statistics.failed("b", 4)
    stats = statistics.snapshot(110.0)
    assert stats.topics["a"] == TopicTraffic(3, 300, 3, 1, 0, 0.3, 30.0)
    assert stats.topics["b"] == TopicTraffic(3, 300, 1, 0, 4, 0.3, 30.0)
    assert stats.total == TopicTraffic(6, 600, 4, 1, 4, 0.6, 60.0)
    assert stats.age_s == 10.0


def test_rates_forget_what_is_long_ago() -> None:
    statistics = Statistics("c", 0.0)
    statistics.batches("t", 1.0, records=1000, size=1)
    for second in range(100, 100 + RATE_WINDOW_S):
        statistics.batches("t", second + 0.5, records=2, size=20)
    traffic = statistics.snapshot(100.0 + RATE_WINDOW_S - 0.1).topics["t"]
    assert traffic.records == 1000 + 2 * RATE_WINDOW_S
    assert traffic.records_per_s == pytest.approx(2.0)
    assert traffic.bytes_per_s == pytest.approx(20.0)
    assert statistics.snapshot(1000.0).topics["t"].records_per_s == 0


def test_latencies_are_told_by_broker() -> None:
    statistics = Statistics("c", 0.0)
    for milliseconds in range(1, 101):
        statistics.answered(7, milliseconds / 1000)
    statistics.unreachable(8)
    stats = statistics.snapshot(1.0)
    latency = stats.brokers[7].latency_ms
    assert stats.brokers[7].requests == 100
    assert latency.average == pytest.approx(50.5)
    assert latency.p50 == pytest.approx(50, rel=0.1)
    assert latency.p99 == pytest.approx(99, rel=0.1)
    assert latency.maximum == pytest.approx(100)
    assert (stats.brokers[8].requests, stats.brokers[8].failures) == (0, 1)


def test_a_picture_can_be_written_as_json() -> None:
    statistics = Statistics("c", 0.0)
    statistics.batches("t", 1.0, records=1, size=10)
    statistics.answered(0, 0.001)
    written = json.loads(json.dumps(statistics.snapshot(1.0, buffered_bytes=5).as_dict()))
    assert written["topics"]["t"]["records"] == 1
    assert written["brokers"]["0"]["latency_ms"]["maximum"] == 1.0
    assert written["buffered_bytes"] == 5


def test_the_reporter_reports_when_it_is_time_and_survives_its_callback() -> None:
    seen: list[float] = []

    def on_stats(stats: ClientStats) -> None:
        seen.append(stats.age_s)
        raise ValueError("not this time")

    statistics = Statistics("c", 0.0)
    reporter = StatsReporter(on_stats, 1000, 0.0)
    for now in (0.5, 1.0, 1.9, 2.1):
        reporter.report(now, lambda now=now: statistics.snapshot(now))  # type: ignore[misc]
    assert seen == [1.0, 2.1]
    assert StatsReporter(on_stats, 0, 0.0).due_at == StatsReporter(None, 1000, 0.0).due_at == float("inf")


def test_what_is_produced_and_consumed_is_counted(broker: Kafka, make_topic: TopicMaker) -> None:
    topic, seen = make_topic(2), list[ClientStats]()
    with Producer(broker.bootstrap, {"statistics.interval.ms": 50}, on_stats=seen.append) as producer:
        for number in range(100):
            producer.send(topic, b"x" * 100, partition=number % 2)
        producer.flush(30)
        sent = producer.stats()
        eventually(lambda: bool(seen) and seen[-1].total.records == 100)
    assert (sent.total.records, sent.total.failed_records, sent.buffered_bytes) == (100, 0, 0)
    assert sent.topics[topic].bytes > 100 * 100
    assert sent.brokers
    for traffic in sent.brokers.values():
        assert traffic.requests >= 1
        assert 0 < traffic.latency_ms.p50 <= traffic.latency_ms.maximum
    polled: list[ClientStats] = []
    properties = {"statistics.interval.ms": 50, "max.poll.records": 7}
    with Consumer(broker.bootstrap, properties, on_stats=polled.append) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        consumer.seek_to_beginning()
        read = 0
        while read < 100:
            read += len(consumer.poll(1.0))
        stats = consumer.stats()
        eventually(lambda: not consumer.poll(0.01) and bool(polled))
    assert stats.total.records == 100
    assert stats.total.bytes == sent.total.bytes
    assert stats.total.batches == sent.total.batches
