"""Bytes per record, asked of a real broker."""

from __future__ import annotations

import logging

import pytest

from broker.errors import ConfigError
from broker.protocol.topic_partition import TopicPartition
from spark_connector.progress.record_sizes import RecordSizes
from tests.support.broker_process import BrokerProcess
from tests.support.topics import Topic


def test_the_average_is_what_the_log_takes_per_offset(broker: BrokerProcess, topic: str) -> None:
    made = Topic(broker.bootstrap, topic, 3)
    made.produce([b"x" * 1000] * 50, 0)
    made.produce([b"x" * 10] * 50, 1)
    sizes = RecordSizes(broker.bootstrap)
    found = sizes([topic])
    sizes.close()
    assert 1000 < found[TopicPartition(topic, 0)] < 1100
    assert 10 < found[TopicPartition(topic, 1)] < 100
    assert TopicPartition(topic, 2) not in found  # empty


def test_brokers_are_asked_again_only_after_a_while(broker: BrokerProcess, topic: str) -> None:
    made = Topic(broker.bootstrap, topic)
    made.produce([b"x" * 10] * 10)
    now = 0.0
    sizes = RecordSizes({"kafka.Bootstrap.servers": broker.bootstrap, "subscribe": topic}, monotonic=lambda: now)
    before = sizes([topic])
    made.produce([b"x" * 10_000] * 10)
    now = 59.0
    assert sizes([topic]) == before
    now = 61.0
    assert sizes([topic])[TopicPartition(topic, 0)] > 4000
    sizes.close()


def test_no_broker_is_a_warning_and_no_estimate(caplog: pytest.LogCaptureFixture) -> None:
    sizes = RecordSizes({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": "0"})
    with caplog.at_level(logging.WARNING):
        assert sizes(["t"]) == {}
        assert sizes(["t"]) == {}
    assert [record.getMessage()[:29] for record in caplog.records] == ["Sizes of topics t are not kno"]


def test_wrong_settings_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="bootstrap"):
        RecordSizes({"kafka.client.id": "me"})
